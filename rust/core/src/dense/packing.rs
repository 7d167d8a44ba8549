//! Weights and batches in panels.

#![allow(unsafe_code)] // Calls of `Vector`; `run` holds the accesses inside the slices.

use super::product::PANEL;
use super::vector::{Kernel, Vector};

/// One panel of columns of a row-major matrix, `[rows][32]`; columns that are not there are 0.
pub(super) fn pack(from: &[f32], step: usize, rows: usize, columns: usize, to: &mut [f32]) {
    for (r, to) in to[..rows * PANEL].chunks_exact_mut(PANEL).enumerate() {
        let from = &from[r * step..r * step + columns];
        if let Ok(from) = <&[f32; PANEL]>::try_from(from) {
            to.copy_from_slice(from);
        } else {
            to[..columns].copy_from_slice(from);
            to[columns..].fill(0.0);
        }
    }
}

/// The columns of a panel `[rows][32]` into a row-major matrix.
pub(super) fn unpack(from: &[f32], rows: usize, columns: usize, to: &mut [f32], step: usize) {
    for (r, from) in from[..rows * PANEL].chunks_exact(PANEL).enumerate() {
        to[r * step..r * step + columns].copy_from_slice(&from[..columns]);
    }
}

/// One panel of the transpose of a row-major matrix `[rows <= 32][columns]`: `to[c][r] = from[r][c]`; rows that are
/// not there are 0.
pub(super) struct Transpose<'a> {
    pub(super) from: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// `[columns][32]`.
    pub(super) to: &'a mut [f32],
}

impl Kernel for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        const BLOCK: usize = 8;
        let Self { from, rows, columns, to } = self;
        assert!(rows <= PANEL && from.len() >= rows * columns && to.len() >= columns * PANEL);
        if rows < PANEL {
            to[..columns * PANEL].fill(0.0);
        }
        let (whole_rows, whole_columns) = (rows - rows % BLOCK, columns - columns % BLOCK);
        for row in (0..whole_rows).step_by(BLOCK) {
            for column in (0..whole_columns).step_by(BLOCK) {
                // SAFETY: both blocks are inside, by the assertion; the processor is the caller's word.
                unsafe {
                    let from = from.as_ptr().add(row * columns + column);
                    V::transpose(from, columns, to.as_mut_ptr().add(column * PANEL + row), PANEL);
                }
            }
        }
        for row in 0..rows {
            let first = if row < whole_rows { whole_columns } else { 0 };
            for column in first..columns {
                to[column * PANEL + row] = from[row * columns + column];
            }
        }
    }
}

/// `out[r * step] = bias + sum over k of left(r, k) * weight[k]`: a layer's output of its own where there are few.
pub(super) struct Dots<'a> {
    pub(super) rows: usize,
    /// Panels `[inner / 32][rows][32]`, 0 beyond `inner`.
    pub(super) left: &'a [f32],
    /// Whole panels, 0 beyond `inner`.
    pub(super) weight: &'a [f32],
    pub(super) bias: f32,
    pub(super) out: &'a mut [f32],
    pub(super) step: usize,
}

impl Kernel for Dots<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { rows, left, weight, bias, out, step } = self;
        assert!(weight.len() % PANEL == 0 && left.len() >= weight.len() * rows && out.len() > (rows - 1) * step);
        for row in 0..rows {
            // SAFETY: whole panels are inside, by the assertion; the processor is the caller's word.
            unsafe {
                let mut sums = [V::splat(0.0); 2];
                for panel in 0..weight.len() / PANEL {
                    let left = left.as_ptr().add((panel * rows + row) * PANEL);
                    let weight = weight.as_ptr().add(panel * PANEL);
                    for at in (0..PANEL).step_by(2 * V::LANES) {
                        for (half, sum) in sums.iter_mut().enumerate() {
                            let at = at + half * V::LANES;
                            *sum = sum.add_product(V::load(left.add(at)), V::load(weight.add(at)));
                        }
                    }
                }
                out[row * step] = bias + (sums[0].sum() + sums[1].sum());
            }
        }
    }
}

/// A panel in bf16 for the left side by rows: pairs of columns, `[rows][16]`; columns beyond `columns` become 0.
pub(super) struct Narrow<'a> {
    /// `[rows][32]`.
    pub(super) from: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) to: &'a mut [f32],
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { from, rows, columns, to } = self;
        let to = to[..rows * PANEL / 2].chunks_exact_mut(PANEL / 2);
        for (from, to) in from[..rows * PANEL].chunks_exact(PANEL).zip(to) {
            let mut own = [0.0; PANEL];
            let row = whole(from, columns, &mut own);
            for (from, to) in row.chunks_exact(2 * V::LANES).zip(to.chunks_exact_mut(V::LANES)) {
                // SAFETY: both halves and their place are inside; the processor is the caller's word.
                unsafe {
                    let (low, high) = (V::load(from.as_ptr()), V::load(from.as_ptr().add(V::LANES)));
                    V::narrow(low, high).store(to.as_mut_ptr());
                }
            }
        }
    }
}

/// Rows of a matrix in bf16 for the right side, or the left one by columns: pairs of rows, `[rows / 2][32]`; columns
/// and a last row that are not there are 0.
pub(super) struct Interleave<'a> {
    pub(super) from: &'a [f32],
    /// From one row to the next.
    pub(super) step: usize,
    pub(super) rows: usize,
    /// 1 to 32.
    pub(super) columns: usize,
    pub(super) to: &'a mut [f32],
}

impl Kernel for Interleave<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { from, step, rows, columns, to } = self;
        for (pair, to) in to[..rows.div_ceil(2) * PANEL].chunks_exact_mut(PANEL).enumerate() {
            let mut own = [[0.0; PANEL]; 2];
            let [even, odd] = &mut own;
            let even = whole(&from[2 * pair * step..], columns, even);
            let odd = if 2 * pair + 1 < rows { whole(&from[(2 * pair + 1) * step..], columns, odd) } else { odd };
            for at in (0..PANEL).step_by(V::LANES) {
                // SAFETY: a register from `at` on is inside all three; the processor is the caller's word.
                unsafe {
                    let (even, odd) = (V::load(even.as_ptr().add(at)), V::load(odd.as_ptr().add(at)));
                    V::pair(even, odd).store(to.as_mut_ptr().add(at));
                }
            }
        }
    }
}

/// A row of a panel: that of `from`, or where it has fewer columns, those and zeros in `own`.
#[inline(always)]
fn whole<'a>(from: &'a [f32], columns: usize, own: &'a mut [f32; PANEL]) -> &'a [f32; PANEL] {
    if columns == PANEL {
        return from.first_chunk().expect("a row of a panel");
    }
    own[..columns].copy_from_slice(&from[..columns]);
    own
}
