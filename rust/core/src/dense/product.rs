//! The one matrix product: tiles of sums in registers, the right side in panels of 32 columns.
//!
//! Activations lie in panels too: `[columns / 32][rows][32]`. So the same array is a left side by rows (forward, and
//! gradients of inputs), a left side by columns (gradients of weights) and a right side, each with constant steps, and
//! no activation is ever copied or transposed.
//!
//! Products of bf16 are the same loops on half of the inner index: what is one number otherwise is a pair (`packing`).

#![allow(unsafe_code)] // Raw pointers in the loops; `Product::check` holds them inside the slices.

use super::vector::{Kernel, Vector};

/// Columns of a panel.
pub(super) const PANEL: usize = 32;

/// Numbers of a row of a panel on the left side: 32, or 16 pairs.
const fn left_row<V: Vector>() -> usize {
    if V::PAIRS { PANEL / 2 } else { PANEL }
}

/// `columns` in whole panels.
pub(super) const fn padded(columns: usize) -> usize {
    columns.div_ceil(PANEL) * PANEL
}

/// What the sums of a tile begin with.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zero,
    /// The same in each row, 32 numbers.
    Bias(&'a [f32]),
    /// What is in the output.
    Output,
}

/// What is done with the sums before they are written.
#[derive(Clone, Copy)]
pub(super) enum Finish<'a> {
    Nothing,
    Relu,
    /// Zero where this panel is not above 0: its row of the same number, or the one that the list names.
    WherePositive(&'a [f32], Option<&'a [u32]>),
}

/// How the left side lies in its panels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Row r of the product is row r of the panels; the inner index runs over columns, through panels that are `usize`
    /// numbers apart.
    Rows(usize),
    /// Row r of the product is column r of one panel; the inner index runs over its rows.
    Columns,
}

/// One panel of an output: `out[r][0..32] = finish(start + sum over p of left(r, p) * right[p][0..32])`.
pub(super) struct Product<'a> {
    pub(super) rows: usize,
    pub(super) inner: usize,
    pub(super) left: &'a [f32],
    pub(super) form: Left,
    /// `[inner][32]`.
    pub(super) right: &'a [f32],
    pub(super) out: &'a mut [f32],
    /// Numbers from one row of the output to the next.
    pub(super) stride: usize,
    /// Columns that matter, 1 to 32; others may be left as they are.
    pub(super) columns: usize,
    pub(super) start: Start<'a>,
    pub(super) finish: Finish<'a>,
}

impl Product<'_> {
    fn check(&self, width: usize) {
        let Self { rows, inner, left, form, right, out, stride, columns, .. } = self;
        assert!(*rows > 0 && *inner > 0 && (1..=PANEL).contains(columns) && *stride >= PANEL);
        let last = match form {
            Left::Rows(step) => (inner - 1) / width * step + (rows - 1) * width + (inner - 1) % width,
            Left::Columns => {
                assert!(*rows <= PANEL);
                (inner - 1) * PANEL + rows - 1
            }
        };
        assert!(left.len() > last && right.len() >= inner * PANEL && out.len() >= (rows - 1) * stride + PANEL);
        if let Start::Bias(bias) = self.start {
            assert!(bias.len() >= PANEL);
        }
        if let Finish::WherePositive(sign, list) = self.finish {
            let last = list.map_or(rows - 1, |list| list[..*rows].iter().max().map_or(0, |&row| row as usize));
            assert!(sign.len() >= (last + 1) * PANEL);
        }
    }
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        self.check(left_row::<V>());
        let narrow = self.columns <= V::LANES;
        // SAFETY: `check` holds every access inside the slices; the processor is the caller's word.
        unsafe {
            match (self.form, narrow) {
                (Left::Rows(_), false) => panel::<V, false, false>(&mut self),
                (Left::Rows(_), true) => panel::<V, false, true>(&mut self),
                (Left::Columns, false) => panel::<V, true, false>(&mut self),
                (Left::Columns, true) => panel::<V, true, true>(&mut self),
            }
        }
    }
}

/// Every tile of the panel; `NARROW`: its first register of columns alone.
#[inline(always)]
unsafe fn panel<V: Vector, const COLUMNS: bool, const NARROW: bool>(product: &mut Product<'_>) {
    let width = if NARROW { V::LANES } else { V::LANES * V::VECTORS };
    let mut column = 0;
    while column < product.columns {
        let mut row = 0;
        macro_rules! tiles {
            ($($rows:literal)*) => {$(
                while $rows <= V::ROWS && product.rows - row >= $rows {
                    // SAFETY: the caller's; the tile is inside the panel.
                    unsafe {
                        if NARROW {
                            tile::<V, $rows, 1, COLUMNS>(product, row, column);
                        } else {
                            // All instruction sets have two registers in a row of a tile.
                            tile::<V, $rows, 2, COLUMNS>(product, row, column);
                        }
                    }
                    row += $rows;
                }
            )*};
        }
        const { assert!(V::VECTORS == 2 && PANEL.is_multiple_of(V::LANES * V::VECTORS)) };
        tiles!(12 8 6 4 2 1);
        column += width;
    }
}

#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const C: usize, const COLUMNS: bool>(
    product: &mut Product<'_>,
    row: usize,
    column: usize,
) {
    // SAFETY: the caller's, for all of it.
    unsafe {
        let out = product.out.as_mut_ptr().add(row * product.stride + column);
        let mut sums = [[V::splat(0.0); C]; R];
        match product.start {
            Start::Zero => {}
            Start::Bias(bias) => {
                for c in 0..C {
                    let bias = V::load(bias.as_ptr().add(column + c * V::LANES));
                    for sums in &mut sums {
                        sums[c] = bias;
                    }
                }
            }
            Start::Output => {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(out.add(r * product.stride + c * V::LANES));
                    }
                }
            }
        }
        let mut right = product.right.as_ptr().add(column);
        if COLUMNS {
            let left = product.left.as_ptr().add(row);
            segment::<V, R, C>(&mut sums, left, (1, PANEL), &mut right, product.inner);
        } else {
            let Left::Rows(step) = product.form else { unreachable!() };
            let width = left_row::<V>();
            let mut left = product.left.as_ptr().add(row * width);
            let mut inner = product.inner;
            while inner >= width {
                segment::<V, R, C>(&mut sums, left, (width, 1), &mut right, width);
                left = left.wrapping_add(step);
                inner -= width;
            }
            segment::<V, R, C>(&mut sums, left, (width, 1), &mut right, inner);
        }
        // Short loops over constant bounds: unrolled, so that the sums stay in registers.
        for (r, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                let sum = if matches!(product.finish, Finish::Relu) { sum.relu() } else { sum };
                sum.store(out.add(r * product.stride + c * V::LANES));
            }
        }
        // From the cache, where the sums have just gone: in the loops above it would cost them their registers.
        if let Finish::WherePositive(sign, list) = product.finish {
            for r in 0..R {
                let from = list.map_or(row + r, |list| list[row + r] as usize);
                let sign = sign.as_ptr().add(from * PANEL + column);
                for at in (0..C * V::LANES).step_by(V::LANES) {
                    let to = out.add(r * product.stride + at);
                    V::load(to).where_positive(V::load(sign.add(at))).store(to);
                }
            }
        }
    }
}

/// Adds `count` steps of the inner index to the sums. Rows of the left side are `row_step`
/// apart, steps `step`: constants once this is inlined.
#[inline(always)]
unsafe fn segment<V: Vector, const R: usize, const C: usize>(
    sums: &mut [[V; C]; R],
    mut left: *const f32,
    (row_step, step): (usize, usize),
    right: &mut *const f32,
    count: usize,
) {
    // SAFETY: the caller's, for all of it.
    unsafe {
        for _ in 0..count {
            let mut row = [V::splat(0.0); C];
            for (c, row) in row.iter_mut().enumerate() {
                *row = V::load(right.add(c * V::LANES));
            }
            *right = right.add(PANEL);
            for (r, sums) in sums.iter_mut().enumerate() {
                let value = V::splat(*left.add(r * row_step));
                for (sum, &row) in sums.iter_mut().zip(&row) {
                    *sum = sum.add_product(value, row);
                }
            }
            left = left.wrapping_add(step);
        }
    }
}
