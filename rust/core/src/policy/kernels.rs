//! The inner loops of [`super::mlp`], compiled once per instruction set.

#![allow(unsafe_code)] // Calls of functions that were compiled for more instructions than the crate's baseline.

use super::mlp::{Activation, Layer, Norm};
use crate::elementary::{BASELINE_FMA, exp, multiply_add, tanh};

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
