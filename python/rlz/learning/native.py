"""How a compiled update calls the dense layers of `rlz._native`: C++ that the compiler puts before its own.

Each operator of `rlz.networks.dense` becomes a function that takes torch's tensor handles, allocates what it gives back,
and calls the C function of the same name with addresses. Imports torch's compiler: for its helper process only.
"""

from __future__ import annotations

import torch

from rlz.networks import dense

_OPENING = """
    auto address = [](AtenTensorHandle tensor) {
        void* data = nullptr;
        aoti_torch_get_data_ptr(tensor, &data);
        return static_cast<float*>(data);
    };
    auto size = [](AtenTensorHandle tensor, int64_t dim) {
        int64_t* sizes = nullptr;
        aoti_torch_get_sizes(tensor, &sizes);
        return sizes[dim];
    };
    auto make = [](std::initializer_list<int64_t> sizes, AtenTensorHandle* made) {
        int64_t strides[3], step = 1;
        for (size_t dim = sizes.size(); dim-- > 0; step *= sizes.begin()[dim]) strides[dim] = step;
        return aoti_torch_empty_strided(sizes.size(), sizes.begin(), strides, aoti_torch_dtype_float32(),
                                        aoti_torch_device_type_cpu(), 0, made);
    };
    (void)size;
    #define RLZ_TRY(call) if (auto status = (call)) return status
"""

_FORWARD = """
    int64_t* strides = nullptr;
    aoti_torch_get_strides(x, &strides);
    const int64_t rows = size(x, 0);
    RLZ_TRY(make({shape[1], rows, shape[3]}, y));
    RLZ_TRY(make({keep ? rows * %KEPT% : 0}, kept));
    return rlz_dense_forward(shape, count, rows, address(flat), address(x), rows > 1 ? strides[0] : shape[2],
                             address(*y), keep ? address(*kept) : nullptr);
"""

_BACKWARD = """
    const int64_t rows = size(dy, 1);
    RLZ_TRY(make({weights ? size(flat, 0) : 0}, dflat));
    RLZ_TRY(inputs ? make({rows, shape[2]}, dx) : make({0}, dx));
    return rlz_dense_backward(shape, count, rows, address(flat), address(kept), address(dy),
                              weights ? address(*dflat) : nullptr, inputs ? address(*dx) : nullptr);
"""

_ADAM = """
    for (auto made : {new_p, new_mean, new_square}) RLZ_TRY(make({size(p, 0)}, made));
    const float* old[] = {address(p), address(mean), address(square)};
    float* fresh[] = {address(*new_p), address(*new_mean), address(*new_square)};
    return rlz_dense_adam(size(p, 0), address(constants), old, address(gradient), fresh);
"""

_POLYAK = """
    RLZ_TRY(make({size(target, 0)}, made));
    return rlz_dense_polyak(size(target, 0), address(target), address(online), static_cast<float>(tau), address(*made));
"""

_T = "AtenTensorHandle"


def _function(name: str, arguments: str, body: str) -> str:
    signature = f"AOTITorchError aoti_torch_cpu_{name}({arguments})"
    return f"{signature} {{{_OPENING}{body}}}"


def shims() -> dict[torch._ops.OpOverload, list[str]]:
    """For the compiler's option `aot_inductor.custom_ops_to_c_shims`."""
    ops = torch.ops.rlz
    return {
        ops.dense_forward.default: [
            "int rlz_dense_forward(const int64_t*, size_t, size_t, const float*, const float*, size_t, float*, float*)",
            "size_t rlz_dense_kept(const int64_t*, size_t)",
            _function(
                "dense_forward",
                f"{_T} flat, {_T} x, const int64_t* shape, int64_t count, int32_t keep, {_T}* y, {_T}* kept",
                _FORWARD.replace("%KEPT%", "static_cast<int64_t>(rlz_dense_kept(shape, count))"),
            ),
        ],
        ops.dense_backward.default: [
            "int rlz_dense_backward(const int64_t*, size_t, size_t, const float*, const float*, const float*, float*, float*)",
            _function(
                "dense_backward",
                f"{_T} flat, {_T} kept, {_T} dy, const int64_t* shape, int64_t count, int32_t weights, int32_t inputs, "
                f"{_T}* dflat, {_T}* dx",
                _BACKWARD,
            ),
        ],
        ops.dense_adam.default: [
            "int rlz_dense_adam(size_t, const float*, const float* const*, const float*, float* const*)",
            _function(
                "dense_adam",
                f"{_T} p, {_T} mean, {_T} square, {_T} gradient, {_T} constants, "
                f"{_T}* new_p, {_T}* new_mean, {_T}* new_square",
                _ADAM,
            ),
        ],
        ops.dense_polyak.default: [
            "int rlz_dense_polyak(size_t, const float*, const float*, float, float*)",
            _function("dense_polyak", f"{_T} target, {_T} online, double tau, {_T}* made", _POLYAK),
        ],
    }
