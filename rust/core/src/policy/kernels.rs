//! The inner loops of [`super::mlp`], compiled once per instruction set.

#![allow(unsafe_code)] // Calls of functions that were compiled for more instructions than the crate's baseline.

use super::mlp::{Activation, Layer, Norm};

/// Lanes of one weight panel (64 outputs): one input's weights are four cache lines.
pub(super) const PANEL: usize = 4;

/// Sixteen float32 on a cache line of their own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Lane(pub(super) [f32; Lane::WIDTH]);

impl Lane {
    pub(super) const WIDTH: usize = 16;
    pub(super) const ZERO: Self = Self([0.0; Self::WIDTH]);

    /// The numbers of consecutive lanes.
    pub(super) fn flat(lanes: &[Self]) -> &[f32] {
        // SAFETY: Lane is repr(C), exactly 64 bytes of f32 without padding, and stricter in alignment than f32.
        unsafe { std::slice::from_raw_parts(lanes.as_ptr().cast(), lanes.len() * Self::WIDTH) }
    }

    fn flat_mut(lanes: &mut [Self]) -> &mut [f32] {
        // SAFETY: as in `flat`; the exclusive borrow is passed on.
        unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len() * Self::WIDTH) }
    }
}

/// Lanes that hold `count` numbers.
pub(super) const fn lanes_for(count: usize) -> usize {
    count.div_ceil(Lane::WIDTH)
}

/// The instruction sets that the inner loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// Every set that this processor runs, best first.
    pub(super) fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        // AVX-512 was tried and gained nothing: one row is bound by the cache that holds the weights.
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            sets.push(Self::Avx2);
        }
        sets.push(Self::Portable);
        sets
    }

    pub(super) fn detect() -> Self {
        Self::available()[0]
    }

    /// Run `layers`; odd ones (first, third, ...) write to `a`, even ones to `b`.
    pub(super) fn forward(self, layers: &[Layer], x: &[f32], rows: usize, a: &mut [Lane], b: &mut [Lane]) {
        match self {
            Self::Portable => portable(layers, x, rows, a, b),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this variant is only made where `available` found the instructions.
            Self::Avx2 => unsafe { avx2(layers, x, rows, a, b) },
        }
    }
}

/// Whether `mul_add` is one instruction of the baseline; elsewhere it would be a library call.
const BASELINE_FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

fn portable(layers: &[Layer], x: &[f32], rows: usize, a: &mut [Lane], b: &mut [Lane]) {
    network::<2, 2, 1, BASELINE_FMA>(layers, x, rows, a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(layers: &[Layer], x: &[f32], rows: usize, a: &mut [Lane], b: &mut [Lane]) {
    network::<4, 4, 1, true>(layers, x, rows, a, b);
}

/// All layers. `ROWS` rows share a pass over the weights with `MANY` lanes of sums each; a single row has `ONE`.
/// The three are chosen so that the sums fit into the registers.
#[inline(always)]
fn network<const ROWS: usize, const ONE: usize, const MANY: usize, const FMA: bool>(
    layers: &[Layer],
    x: &[f32],
    rows: usize,
    a: &mut [Lane],
    b: &mut [Lane],
) {
    for (i, layer) in layers.iter().enumerate() {
        let (from, into) = if i % 2 == 0 { (&*b, &mut *a) } else { (&*a, &mut *b) };
        let (from, stride) =
            if i == 0 { (x, layer.input) } else { (Lane::flat(from), lanes_for(layer.input) * Lane::WIDTH) };
        let mut row = 0;
        while row + ROWS <= rows {
            linear::<ROWS, MANY, FMA>(layer, &from[row * stride..], stride, row, into);
            row += ROWS;
        }
        while row < rows {
            linear::<1, ONE, FMA>(layer, &from[row * stride..], stride, row, into);
            row += 1;
        }
        let Some(activation) = layer.activation else { continue };
        let lanes = lanes_for(layer.output);
        for row in into[..rows * lanes].chunks_exact_mut(lanes) {
            if let Some(norm) = &layer.norm {
                normalise::<FMA>(&mut Lane::flat_mut(row)[..layer.output], norm);
            }
            activate::<FMA>(row, activation);
        }
    }
}

/// `ROWS` rows of one layer.
#[inline(always)]
fn linear<const ROWS: usize, const LANES: usize, const FMA: bool>(
    layer: &Layer,
    x: &[f32],
    stride: usize,
    row: usize,
    into: &mut [Lane],
) {
    let lanes = lanes_for(layer.output);
    let x: [&[f32]; ROWS] = std::array::from_fn(|r| &x[r * stride..r * stride + layer.input]);
    let mut first = 0;
    while first < lanes {
        let width = PANEL.min(lanes - first);
        let panel = &layer.panels[first * layer.input..(first + width) * layer.input];
        let mut at = 0;
        while at + LANES <= width {
            tile::<ROWS, LANES, FMA>(x, panel, width, at, &layer.bias[first..], row, lanes, first, into);
            at += LANES;
        }
        while at < width {
            tile::<ROWS, 1, FMA>(x, panel, width, at, &layer.bias[first..], row, lanes, first, into);
            at += 1;
        }
        first += width;
    }
}

/// `ROWS` rows of `LANES` lanes of outputs, `at` lanes into one panel.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // One call site, inlined: the arguments are the coordinates of the tile.
fn tile<const ROWS: usize, const LANES: usize, const FMA: bool>(
    x: [&[f32]; ROWS],
    panel: &[Lane],
    width: usize,
    at: usize,
    bias: &[Lane],
    row: usize,
    lanes: usize,
    first: usize,
    into: &mut [Lane],
) {
    let mut sums: [[Lane; LANES]; ROWS] = [std::array::from_fn(|p| bias[at + p]); ROWS];
    for (i, weights) in panel.chunks_exact(width).enumerate() {
        let weights: &[Lane; LANES] = weights[at..at + LANES].try_into().expect("length is LANES");
        for (sums, x) in sums.iter_mut().zip(x) {
            let value = x[i];
            for (sum, weight) in sums.iter_mut().zip(weights) {
                for (sum, &weight) in sum.0.iter_mut().zip(&weight.0) {
                    *sum = multiply_add::<FMA>(value, weight, *sum);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let start = (row + r) * lanes + first + at;
        into[start..start + LANES].copy_from_slice(sums);
    }
}

#[inline(always)]
fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// torch's LayerNorm over one row: biased variance, epsilon 1e-5.
#[inline(always)]
fn normalise<const FMA: bool>(row: &mut [f32], norm: &Norm) {
    const EPSILON: f32 = 1e-5;
    let scale = 1.0 / row.len() as f32;
    let mean = sum(row, |v| v) * scale;
    let variance = sum(row, |v| (v - mean) * (v - mean)) * scale;
    let inverse = 1.0 / (variance + EPSILON).sqrt();
    let (gains, shifts) = (Lane::flat(&norm.scale), Lane::flat(&norm.shift));
    for ((value, &gain), &shift) in row.iter_mut().zip(gains).zip(shifts) {
        *value = multiply_add::<FMA>((*value - mean) * inverse, gain, shift);
    }
}

/// Sum in sixteen partial sums, so that it vectorises and loses less to rounding.
#[inline(always)]
fn sum(row: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0_f32; Lane::WIDTH];
    let chunks = row.chunks_exact(Lane::WIDTH);
    let rest: f32 = chunks.remainder().iter().map(|&v| f(v)).sum();
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += f(value);
        }
    }
    rest + sums.iter().sum::<f32>()
}

#[inline(always)]
fn activate<const FMA: bool>(row: &mut [Lane], activation: Activation) {
    match activation {
        Activation::Relu => map(row, |v| if v < 0.0 { 0.0 } else { v }), // NaN stays NaN
        Activation::Tanh => map(row, tanh::<FMA>),
        Activation::Silu => map(row, |v| v / (1.0 + exp::<FMA>(-v))),
        Activation::Elu => map(row, |v| if v > 0.0 { v } else { exp::<FMA>(v) - 1.0 }),
    }
}

#[inline(always)]
fn map(row: &mut [Lane], f: impl Fn(f32) -> f32) {
    for lane in row {
        for value in &mut lane.0 {
            *value = f(*value);
        }
    }
}

/// exp, within 2 units in the last place; vectorises, unlike the library call. (Cephes, expf.)
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = multiply_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<FMA>(n, -LN_2_LOW, multiply_add::<FMA>(n, -LN_2_HIGH, x));
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = multiply_add::<FMA>(p, r, coefficient);
    }
    let mantissa = multiply_add::<FMA>(p, r * r, r) + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    mantissa * power
}

/// tanh, within 3 units in the last place; vectorises. (Cephes, tanhf.)
#[inline(always)]
fn tanh<const FMA: bool>(x: f32) -> f32 {
    let z = x * x;
    let mut p = -5.704_988_7e-3;
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = multiply_add::<FMA>(p, z, coefficient);
    }
    let near = multiply_add::<FMA>(p * z, x, x);
    let far = (1.0 - 2.0 / (exp::<FMA>(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_tanh_agree_with_float64() {
        for i in -400_000..=400_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            for value in [exp::<true>(x), exp::<false>(x)] {
                assert!((f64::from(value) - exact).abs() <= 2.5e-7 * exact, "exp({x}) = {value}");
            }
            let exact = f64::from(x).tanh();
            for value in [tanh::<true>(x), tanh::<false>(x)] {
                assert!((f64::from(value) - exact).abs() <= 3e-7 * exact.abs(), "tanh({x}) = {value}");
            }
        }
        assert!(exp::<true>(-1000.0) < 1e-37 && exp::<true>(1000.0).is_finite());
        assert_eq!((tanh::<true>(1000.0), tanh::<true>(-1000.0)), (1.0, -1.0));
        assert!(exp::<true>(f32::NAN).is_nan() && tanh::<true>(f32::NAN).is_nan());
    }
}
