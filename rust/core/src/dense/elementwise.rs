//! Activations, LayerNorm and their gradients over the panels of a block of rows.

#![allow(unsafe_code)] // Implements `Kernel`; the loops themselves are safe.

use crate::elementary::{exp, multiply_add, tanh};
use crate::policy::Activation;

use super::product::PANEL;
use super::vector::{Kernel, Vector};

/// LayerNorm's epsilon, torch's.
const EPSILON: f32 = 1e-5;

/// Applies an activation to each number.
pub(super) struct Activate<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) activation: Activation,
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        match (self.activation, V::FMA) {
            (Activation::Relu, _) => map(self.values, |x| if x < 0.0 { 0.0 } else { x }), // NaN stays NaN
            (Activation::Tanh, true) => map(self.values, tanh::<true>),
            (Activation::Tanh, false) => map(self.values, tanh::<false>),
            (Activation::Silu, true) => map(self.values, |x| x * sigmoid::<true>(x)),
            (Activation::Silu, false) => map(self.values, |x| x * sigmoid::<false>(x)),
            (Activation::Elu, true) => map(self.values, |x| if x > 0.0 { x } else { exp::<true>(x) - 1.0 }),
            (Activation::Elu, false) => map(self.values, |x| if x > 0.0 { x } else { exp::<false>(x) - 1.0 }),
        }
    }
}

/// Multiplies gradients by the derivative of an activation.
pub(super) struct Derive<'a> {
    pub(super) gradient: &'a mut [f32],
    /// The activation's outputs; for SiLU its inputs.
    pub(super) at: &'a [f32],
    pub(super) activation: Activation,
}

impl Kernel for Derive<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { gradient, at, activation } = self;
        match (activation, V::FMA) {
            (Activation::Relu, _) => zip(gradient, at, |g, y| if y > 0.0 { g } else { 0.0 }),
            (Activation::Tanh, true) => zip(gradient, at, |g, y| g * multiply_add::<true>(-y, y, 1.0)),
            (Activation::Tanh, false) => zip(gradient, at, |g, y| g * (1.0 - y * y)),
            (Activation::Elu, _) => zip(gradient, at, |g, y| if y > 0.0 { g } else { g * (y + 1.0) }),
            (Activation::Silu, true) => zip(gradient, at, |g, x| g * silu_slope::<true>(x)),
            (Activation::Silu, false) => zip(gradient, at, |g, x| g * silu_slope::<false>(x)),
        }
    }
}

#[inline(always)]
fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

#[inline(always)]
fn silu_slope<const FMA: bool>(x: f32) -> f32 {
    let s = sigmoid::<FMA>(x);
    multiply_add::<FMA>(s, x * (1.0 - s), s)
}

#[inline(always)]
fn map(values: &mut [f32], f: impl Fn(f32) -> f32) {
    for value in values {
        *value = f(*value);
    }
}

#[inline(always)]
fn zip(values: &mut [f32], others: &[f32], f: impl Fn(f32, f32) -> f32) {
    for (value, &other) in values.iter_mut().zip(others) {
        *value = f(*value, other);
    }
}

/// LayerNorm (Ba et al. 2016, arXiv 1607.06450; biased variance) of `values`, panels `[width / 32][rows][32]`.
pub(super) struct Normalise<'a> {
    pub(super) rows: usize,
    pub(super) width: usize,
    /// In: the layer's sums. Out: normalised, scaled and shifted.
    pub(super) values: &'a mut [f32],
    pub(super) scale: &'a [f32],
    pub(super) shift: &'a [f32],
    /// Out: normalised, in panels.
    pub(super) normal: &'a mut [f32],
    /// Out: one over the standard deviation of each row.
    pub(super) inverse: &'a mut [f32],
}

impl Kernel for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { rows, width, values, scale, shift, normal, inverse } = self;
        let over = 1.0 / width as f32;
        for (row, inverse) in inverse[..rows].iter_mut().enumerate() {
            let mean = over * row_sum(values, rows, row, width, |x| x);
            let variance = over * row_sum(values, rows, row, width, |x| (x - mean) * (x - mean));
            let scaled = 1.0 / (variance + EPSILON).sqrt();
            *inverse = scaled;
            for_panels(width, |panel, c| {
                let at = (panel * rows + row) * PANEL;
                let (values, normal) = (&mut values[at..at + c], &mut normal[at..at + c]);
                let (scale, shift) = (&scale[panel * PANEL..][..c], &shift[panel * PANEL..][..c]);
                for i in 0..c {
                    normal[i] = (values[i] - mean) * scaled;
                    values[i] = normal[i] * scale[i] + shift[i];
                }
            });
        }
    }
}

/// Gradient of LayerNorm with respect to its inputs, in place; adds those of scale and shift up.
pub(super) struct NormaliseBack<'a> {
    pub(super) rows: usize,
    pub(super) width: usize,
    /// In: of the outputs. Out: of the inputs.
    pub(super) gradient: &'a mut [f32],
    pub(super) normal: &'a [f32],
    pub(super) inverse: &'a [f32],
    pub(super) scale: &'a [f32],
    /// Out, `[width]` each: sums over the rows.
    pub(super) scale_gradient: &'a mut [f32],
    pub(super) shift_gradient: &'a mut [f32],
}

impl Kernel for NormaliseBack<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { rows, width, gradient, normal, inverse, scale, scale_gradient, shift_gradient } = self;
        let over = 1.0 / width as f32;
        scale_gradient[..width].fill(0.0);
        shift_gradient[..width].fill(0.0);
        for (row, inverse) in inverse[..rows].iter().enumerate() {
            let (mut plain, mut along) = (0.0, 0.0);
            for_panels(width, |panel, c| {
                let at = (panel * rows + row) * PANEL;
                let (gradient, normal) = (&mut gradient[at..at + c], &normal[at..at + c]);
                let first = panel * PANEL;
                let (scale, of_scale) = (&scale[first..first + c], &mut scale_gradient[first..first + c]);
                let of_shift = &mut shift_gradient[first..first + c];
                for i in 0..c {
                    of_scale[i] += gradient[i] * normal[i];
                    of_shift[i] += gradient[i];
                    gradient[i] *= scale[i];
                }
                plain += sum(gradient, |g| g);
                along += dot(gradient, normal);
            });
            let (plain, along) = (over * plain, over * along);
            for_panels(width, |panel, c| {
                let at = (panel * rows + row) * PANEL;
                let (gradient, normal) = (&mut gradient[at..at + c], &normal[at..at + c]);
                for i in 0..c {
                    gradient[i] = inverse * (gradient[i] - plain - normal[i] * along);
                }
            });
        }
    }
}

/// Calls `f(panel, columns of it)` for each panel.
#[inline(always)]
fn for_panels(width: usize, mut f: impl FnMut(usize, usize)) {
    for panel in 0..width.div_ceil(PANEL) {
        f(panel, PANEL.min(width - panel * PANEL));
    }
}

/// Sum of `f` over one row of panels.
#[inline(always)]
fn row_sum(values: &[f32], rows: usize, row: usize, width: usize, f: impl Fn(f32) -> f32) -> f32 {
    let mut total = 0.0;
    for_panels(width, |panel, c| total += sum(&values[(panel * rows + row) * PANEL..][..c], &f));
    total
}

/// Sum in sixteen partial sums, so that it vectorises and loses less to rounding.
#[inline(always)]
fn sum(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0_f32; 16];
    let chunks = values.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().map(|&v| f(v)).sum();
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += f(value);
        }
    }
    rest + sums.iter().sum::<f32>()
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    let (left, right) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in left.zip(right) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += x * y;
        }
    }
    rest + sums.iter().sum::<f32>()
}

/// Adds the rows of panels up: `sums[c] = sum over rows`, whole panels.
pub(super) struct ColumnSums<'a> {
    pub(super) rows: usize,
    /// `[panels][rows][32]`.
    pub(super) values: &'a [f32],
    /// `[panels * 32]`; what is there is added to.
    pub(super) sums: &'a mut [f32],
}

impl Kernel for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for (values, sums) in self.values.chunks_exact(self.rows * PANEL).zip(self.sums.chunks_exact_mut(PANEL)) {
            let mut total: [f32; PANEL] = sums.try_into().expect("a panel");
            for row in values.chunks_exact(PANEL) {
                for (total, value) in total.iter_mut().zip(row) {
                    *total += value;
                }
            }
            sums.copy_from_slice(&total);
        }
    }
}
