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
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod backward;
mod elementwise;
mod forward;
mod gradients;
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

use product::PANEL;

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

    /// The first `columns` columns of panels `[columns / 32][rows][32]` in bf16, for the left side of a product.
    fn narrow<'a>(self, from: &[f32], rows: usize, columns: usize, to: &'a mut memory::Buffer) -> &'a [f32] {
        let to = to.take(rows * product::padded(columns) / 2);
        let panels = from.chunks(rows * PANEL).zip(to.chunks_exact_mut(rows * PANEL / 2));
        for (panel, (from, to)) in panels.enumerate() {
            let columns = PANEL.min(columns - panel * PANEL);
            self.isa.run_products(true, packing::Narrow { from, rows, columns, to });
        }
        to
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
