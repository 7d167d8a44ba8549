//! Dense layers of the learner: outputs and gradients of stacks of multi-layer perceptrons, Adam, moving averages.
//!
//! A call is a few parallel phases over items that write apart (`pool`): weights into panels, then blocks of rows
//! through all layers, then sums over the rows. Sums are made in one order whatever the number of threads, so a result
//! has the same bits with one thread and with many. All loops are generic over a register (`vector`) and compiled once
//! for each instruction set, in a module of its own that holds the intrinsics. Panels (`product`) are the one layout.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod backward;
mod elementwise;
mod forward;
mod memory;
mod optimiser;
mod packing;
mod pool;
mod portable;
mod product;
mod shape;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod vector;

pub use backward::{Wanted, backward};
pub use forward::forward;
pub use optimiser::{Step, adam, commit, polyak};
pub use shape::Shape;
pub use vector::Isa;

/// What a call runs on.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Instructions, of [`Isa::available`].
    pub isa: Isa,
    /// Most threads, 1 or more.
    pub threads: usize,
}

impl Machine {
    fn run<F: Fn(usize) + Sync>(self, items: usize, work: F) {
        pool::Pool::get().run(self.threads, items, work);
    }
}

/// A batch: rows of `width` numbers, each `step` numbers after the one before.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    values: &'a [f32],
    rows: usize,
    width: usize,
    step: usize,
}

impl<'a> Rows<'a> {
    /// # Panics
    /// When the last row is not in `values`.
    #[must_use]
    pub fn new(values: &'a [f32], rows: usize, width: usize, step: usize) -> Self {
        assert!(rows == 0 || values.len() >= (rows - 1) * step + width, "{rows} rows of {width}, {step} apart");
        Self { values, rows, width, step }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Numbers from the beginning of a row to that of the next.
    #[must_use]
    pub fn step(&self) -> usize {
        self.step
    }

    fn from(&self, row: usize, column: usize) -> &'a [f32] {
        &self.values[row * self.step + column..]
    }
}
