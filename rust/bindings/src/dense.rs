//! The dense layers for the learner: plain C functions on addresses, for compiled updates and for ctypes.
//!
//! A compiled update (`rlz.learning.compiled`) is a library that finds these by name; `rlz.networks.dense` states their
//! arguments and checks every tensor before its address comes here. Each returns 0, or 1 after it has printed what was
//! wrong.

#![allow(unsafe_code)] // Slices from addresses, whose length the caller warrants.
#![allow(unreachable_pub)] // C finds them by name.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::LazyLock;

use pyo3::prelude::*;
use rlz_core::dense::{Isa, Machine, Rows, Shape, Step, Wanted, adam, backward, commit, forward, polyak};
use rlz_core::sync::{Ordering, StaticU64};

use crate::failure::{Failure, Result};
use crate::whole;

static THREADS: StaticU64 = StaticU64::new(1);

fn machine() -> Machine {
    static BEST: LazyLock<Isa> = LazyLock::new(|| Isa::available()[0]);
    Machine { isa: *BEST, threads: THREADS.load(Ordering::Relaxed) as usize }
}

/// Run `work`; a panic, whose message is printed by then, becomes the status. It must not pass through C.
fn status(work: impl FnOnce()) -> i32 {
    i32::from(catch_unwind(AssertUnwindSafe(work)).is_err())
}

/// # Safety
/// `numbers` has `count` numbers.
unsafe fn shape(numbers: *const i64, count: usize) -> Shape {
    // SAFETY: the caller's.
    Shape::parse(unsafe { from_raw_parts(numbers, count) }).unwrap_or_else(|error| panic!("{error}"))
}

/// Numbers that a batch of rows takes.
fn extent(rows: usize, width: usize, step: usize) -> usize {
    rows.checked_sub(1).map_or(0, |last| last * step + width)
}

/// `y[used][rows][outputs]` of `x[rows][inputs]`, whose rows are `step` apart; `kept[rows * kept]` or null.
///
/// # Safety
/// The addresses have the numbers that the shape says, and nobody else uses what is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlz_dense_forward(
    numbers: *const i64,
    count: usize,
    rows: usize,
    flat: *const f32,
    x: *const f32,
    step: usize,
    y: *mut f32,
    kept: *mut f32,
) -> i32 {
    // SAFETY: the caller's, for all of it.
    status(|| unsafe {
        let shape = shape(numbers, count);
        let flat = from_raw_parts(flat, shape.numel());
        let x = Rows::new(from_raw_parts(x, extent(rows, shape.inputs, step)), rows, shape.inputs, step);
        let y = from_raw_parts_mut(y, shape.used * rows * shape.outputs);
        let kept = (!kept.is_null()).then(|| from_raw_parts_mut(kept, rows * shape.kept()));
        forward(machine(), &shape, flat, x, y, kept);
    })
}

/// `dflat[numel]` and `dx[rows][columns]` of the inputs from `first` on, or null, for `dy[used][rows][outputs]`.
///
/// # Safety
/// As [`rlz_dense_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlz_dense_backward(
    numbers: *const i64,
    count: usize,
    rows: usize,
    flat: *const f32,
    kept: *const f32,
    dy: *const f32,
    dflat: *mut f32,
    dx: *mut f32,
    first: usize,
    columns: usize,
) -> i32 {
    // SAFETY: the caller's, for all of it.
    status(|| unsafe {
        let shape = shape(numbers, count);
        let flat = from_raw_parts(flat, shape.numel());
        let kept = from_raw_parts(kept, rows * shape.kept());
        let dy = from_raw_parts(dy, shape.used * rows * shape.outputs);
        let wanted = Wanted {
            parameters: (!dflat.is_null()).then(|| from_raw_parts_mut(dflat, shape.numel())),
            inputs: (!dx.is_null()).then(|| (first..first + columns, from_raw_parts_mut(dx, rows * columns))),
        };
        backward(machine(), &shape, flat, kept, rows, dy, wanted);
    })
}

/// Adam's step: parameters, mean and square from `old` into `new`, `count` numbers each.
///
/// # Safety
/// As [`rlz_dense_forward`]; `old` and `new` are three addresses, `constants` beta1, beta2, epsilon, size, correction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlz_dense_adam(
    count: usize,
    constants: *const f32,
    old: *const *const f32,
    gradient: *const f32,
    new: *const *mut f32,
) -> i32 {
    // SAFETY: the caller's, for all of it.
    status(|| unsafe {
        let [beta1, beta2, epsilon, size, correction] = *constants.cast::<[f32; 5]>();
        let step = Step { beta1, beta2, epsilon, size, correction };
        let old = (*old.cast::<[*const f32; 3]>()).map(|old| from_raw_parts(old, count));
        let new = (*new.cast::<[*mut f32; 3]>()).map(|new| from_raw_parts_mut(new, count));
        adam(machine(), step, old, from_raw_parts(gradient, count), new);
    })
}

/// `new = target + tau * (online - target)`, `count` numbers.
///
/// # Safety
/// As [`rlz_dense_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlz_dense_polyak(
    count: usize,
    target: *const f32,
    online: *const f32,
    tau: f32,
    new: *mut f32,
) -> i32 {
    // SAFETY: the caller's, for all of it.
    status(|| unsafe {
        let (target, online) = (from_raw_parts(target, count), from_raw_parts(online, count));
        polyak(machine(), target, online, tau, from_raw_parts_mut(new, count));
    })
}

/// Copies `sizes[i]` numbers from `sources[i]` to `targets[i]`, for each of `count`.
///
/// # Safety
/// As [`rlz_dense_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlz_dense_commit(
    count: usize,
    sizes: *const usize,
    targets: *const *mut f32,
    sources: *const *const f32,
) -> i32 {
    // SAFETY: the caller's, for all of it.
    status(|| unsafe {
        let pair = |i: usize| {
            let size = *sizes.add(i);
            (from_raw_parts_mut(*targets.add(i), size), from_raw_parts(*sources.add(i), size))
        };
        commit(machine(), (0..count).map(pair).collect());
    })
}

/// Numbers that a forward pass keeps for the gradient, for each row.
///
/// # Safety
/// As [`rlz_dense_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlz_dense_kept(numbers: *const i64, count: usize) -> usize {
    let mut kept = 0;
    // SAFETY: the caller's.
    status(|| kept = unsafe { shape(numbers, count) }.kept());
    kept
}

/// Threads of the calls from now on.
#[pyfunction]
pub(crate) fn dense_threads(#[pyo3(from_py_with = whole::threads)] threads: usize) -> Result<()> {
    if !(1..=1024).contains(&threads) {
        return Err(Failure::value(format!("threads: given {threads}, expected 1 to 1024")));
    }
    THREADS.store(threads as u64, Ordering::Relaxed);
    Ok(())
}

/// Numbers that a forward pass keeps for the gradient, for each row.
#[pyfunction]
pub(crate) fn dense_kept(#[pyo3(from_py_with = whole::shape)] shape: Vec<i64>) -> Result<usize> {
    Ok(Shape::parse(&shape)?.kept())
}

/// Name of the instruction set in use.
#[pyfunction]
pub(crate) fn dense_instructions() -> &'static str {
    machine().isa.name()
}

/// Multiplications and additions a second of one core that does nothing else, of float32 or of bf16.
#[pyfunction]
#[pyo3(signature = (bf16=false))]
pub(crate) fn dense_peak(py: Python<'_>, bf16: bool) -> Result<f64> {
    let isa = machine().isa;
    if bf16 && !isa.bf16() {
        return Err(Failure::value(format!("bf16: {} has no products of bf16", isa.name())));
    }
    Ok(py.detach(|| isa.peak(bf16)))
}

/// There are products of bf16.
#[pyfunction]
pub(crate) fn dense_bf16() -> bool {
    machine().isa.bf16()
}
