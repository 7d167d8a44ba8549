//! The last phase of the gradients: sums over the rows, in one order whatever the number of threads.

#![allow(unsafe_code)] // Parts of shared memory: each item writes its own, what it reads an earlier phase has written.

use std::cell::RefCell;

use super::backward::{Pass, padded_widths};
use super::elementwise::ColumnSums;
use super::memory::{Buffer, Shared};
use super::packing::{Interleave, unpack};
use super::product::{Finish, Left, PANEL, Product, Start, padded};
use super::shape::{Layer, block};

/// A head with so few outputs has its weights' gradient made as the transpose, whose tiles it fills.
const NARROW: usize = 16;

thread_local! {
    static SCRATCH: RefCell<[Buffer; 3]> = RefCell::default();
}

/// What the phase reads.
pub(super) struct Gradients<'a> {
    pub(super) pass: &'a Pass<'a>,
    /// Gradients of the outputs of all layers.
    pub(super) deltas: &'a [f32],
    pub(super) deltas_of_row: usize,
    /// Those of the hidden layers in pairs of rows, in bf16.
    pub(super) pairs: &'a [f32],
    pub(super) pairs_of_row: usize,
    pub(super) norms: &'a [f32],
    pub(super) norm_len: usize,
    pub(super) inputs: &'a [f32],
    pub(super) blocks: usize,
}

#[derive(Clone, Copy)]
enum Item {
    /// Of 32 inputs of a layer of a member.
    Weights(usize, usize, usize),
    /// Of a narrow head of a member.
    Head(usize),
    /// Bias and LayerNorm of a layer of a member.
    Bias(usize, usize),
    /// A block of rows.
    Inputs(usize),
}

impl Gradients<'_> {
    pub(super) fn run(&self, dflat: Option<&mut [f32]>, dx: Option<&mut [f32]>) {
        let (shape, layers) = (self.pass.shape, self.pass.layers);
        let head = layers.len() - 1;
        let mut items = Vec::new();
        if dflat.is_some() {
            // Longest first.
            for (index, layer) in layers.iter().enumerate().rev() {
                for member in 0..shape.used {
                    if index == head && layer.output <= NARROW {
                        items.push(Item::Head(member));
                    } else {
                        items.extend((0..layer.input.div_ceil(PANEL)).map(|panel| Item::Weights(member, index, panel)));
                    }
                    items.push(Item::Bias(member, index));
                }
            }
        }
        if dx.is_some() {
            items.extend((0..self.blocks).map(Item::Inputs));
        }
        let dflat = dflat.map(|dflat| {
            for layer in layers {
                let sizes = [(layer.weight, layer.weights()), (layer.bias, layer.output)];
                let norms = layer.norm.map(|(scale, shift)| [(scale, layer.output), (shift, layer.output)]);
                for (at, size) in sizes.into_iter().chain(norms.into_iter().flatten()) {
                    dflat[at + shape.used * size..at + shape.members * size].fill(0.0);
                }
            }
            Shared::new(dflat)
        });
        let dx = dx.map(Shared::new);
        let none = || Shared::new(&mut []);
        let (dflat, dx) = (dflat.unwrap_or_else(none), dx.unwrap_or_else(none));
        self.pass.machine.run(items.len(), |item| {
            SCRATCH.with_borrow_mut(|[panel, sums, left]| match items[item] {
                Item::Weights(member, layer, part) => {
                    self.weights(member, layer, part, dflat, panel.take(PANEL * PANEL), left)
                }
                Item::Head(member) => self.head(member, dflat, panel.take(NARROW * PANEL)),
                Item::Bias(member, layer) => self.bias(member, layer, dflat, sums),
                Item::Inputs(block) => self.inputs(block, dx, panel),
            });
        });
    }

    /// Gradients of the outputs of a layer, for a block of a member.
    fn delta(&self, member: usize, layer: usize, first: usize, rows: usize) -> &[f32] {
        let before: usize = self.pass.layers[..layer].iter().map(|layer| padded(layer.output)).sum();
        let start = (member * self.pass.rows + first) * self.deltas_of_row + before * rows;
        &self.deltas[start..start + padded(self.pass.layers[layer].output) * rows]
    }

    /// As `delta`, in pairs of rows.
    fn delta_pairs(&self, member: usize, layer: usize, first: usize, rows: usize) -> &[f32] {
        let (all, rows) = (self.pass.rows.div_ceil(2), rows.div_ceil(2));
        let before = padded_widths(&self.pass.shape.hidden[..layer]);
        let start = (member * all + first / 2) * self.pairs_of_row + before * rows;
        &self.pairs[start..start + padded(self.pass.layers[layer].output) * rows]
    }

    /// One panel of a layer's inputs, for a block of a member.
    fn input(&self, member: usize, layer: usize, panel: usize, first: usize, rows: usize) -> &[f32] {
        let values = match layer.checked_sub(1) {
            None => &self.pass.all_kept[first * padded(self.pass.shape.inputs)..],
            Some(below) => &self.pass.kept(member, first, rows)[self.pass.shape.places()[below].outputs * rows..],
        };
        &values[panel * rows * PANEL..][..rows * PANEL]
    }

    fn weights(
        &self,
        member: usize,
        layer: usize,
        panel: usize,
        dflat: Shared<'_>,
        scratch: &mut [f32],
        pairs: &mut Buffer,
    ) {
        let Layer { input, output, weight, bf16, .. } = self.pass.layers[layer];
        let (count, from) =
            (PANEL.min(input - panel * PANEL), weight + member * input * output + panel * PANEL * output);
        // SAFETY: these rows of the weights are this item's alone.
        let gradient = unsafe { dflat.part(from, count * output) };
        for index in 0..self.blocks {
            let (first, rows) = block(self.pass.rows, index);
            let left = self.input(member, layer, panel, first, rows);
            let inner = self.pass.layers[layer].steps(rows);
            let (left, right) = if bf16 {
                let to = pairs.take(inner * PANEL);
                self.pass
                    .machine
                    .isa
                    .run_products(true, Interleave { from: left, step: PANEL, rows, columns: PANEL, to: &mut *to });
                (&*to, self.delta_pairs(member, layer, first, rows))
            } else {
                (left, self.delta(member, layer, first, rows))
            };
            for (column, right) in right.chunks_exact(inner * PANEL).enumerate() {
                let column = column * PANEL;
                let whole = column + PANEL <= output;
                let (out, stride) = if whole { (&mut gradient[column..], output) } else { (&mut *scratch, PANEL) };
                let product = Product {
                    rows: count,
                    inner,
                    left,
                    form: Left::Columns,
                    right,
                    out,
                    stride,
                    columns: PANEL.min(output - column),
                    start: if index == 0 { Start::Zero } else { Start::Output },
                    finish: Finish::Nothing,
                };
                self.pass.machine.isa.run_products(bf16, product);
            }
        }
        let column = output - output % PANEL;
        if column < output {
            unpack(scratch, count, output - column, &mut gradient[column..], output);
        }
    }

    fn head(&self, member: usize, dflat: Shared<'_>, scratch: &mut [f32]) {
        let head = self.pass.layers.len() - 1;
        let Layer { input, output, weight, .. } = self.pass.layers[head];
        // SAFETY: the member's head is this item's alone.
        let gradient = unsafe { dflat.part(weight + member * input * output, input * output) };
        for panel in 0..input.div_ceil(PANEL) {
            for index in 0..self.blocks {
                let (first, rows) = block(self.pass.rows, index);
                self.pass.machine.isa.run(Product {
                    rows: output,
                    inner: rows,
                    left: self.delta(member, head, first, rows),
                    form: Left::Columns,
                    right: self.input(member, head, panel, first, rows),
                    out: &mut *scratch,
                    stride: PANEL,
                    columns: PANEL,
                    start: if index == 0 { Start::Zero } else { Start::Output },
                    finish: Finish::Nothing,
                });
            }
            for (column, values) in scratch.chunks_exact(PANEL).take(output).enumerate() {
                let rows = PANEL.min(input - panel * PANEL);
                for (row, value) in values[..rows].iter().enumerate() {
                    gradient[(panel * PANEL + row) * output + column] = *value;
                }
            }
        }
    }

    fn bias(&self, member: usize, layer: usize, dflat: Shared<'_>, sums: &mut Buffer) {
        let Layer { output, bias, norm, .. } = self.pass.layers[layer];
        let sums = sums.take(padded(output));
        sums.fill(0.0);
        for index in 0..self.blocks {
            let (first, rows) = block(self.pass.rows, index);
            let values = self.delta(member, layer, first, rows);
            self.pass.machine.isa.run(ColumnSums { rows, values, sums: &mut *sums });
        }
        // SAFETY: the member's bias of this layer is this item's alone.
        unsafe { dflat.part(bias + member * output, output) }.copy_from_slice(&sums[..output]);
        let Some((scale, shift)) = norm else { return };
        let before: usize = self.pass.layers[..layer].iter().map(|layer| 2 * layer.output).sum();
        for (place, half) in [(scale, 0), (shift, output)] {
            // SAFETY: as above, of LayerNorm's parameters.
            let gradient = unsafe { dflat.part(place + member * output, output) };
            gradient.fill(0.0);
            for index in 0..self.blocks {
                let of_block = (member * self.blocks + index) * self.norm_len + before + half;
                for (gradient, value) in gradient.iter_mut().zip(&self.norms[of_block..]) {
                    *gradient += value;
                }
            }
        }
    }

    fn inputs(&self, index: usize, dx: Shared<'_>, total: &mut Buffer) {
        let width = self.pass.columns.len();
        let (first, rows) = block(self.pass.rows, index);
        // SAFETY: these rows are this item's alone.
        let dx = unsafe { dx.part(first * width, rows * width) };
        let total = total.take(rows * PANEL);
        for panel in 0..width.div_ceil(PANEL) {
            for member in 0..self.pass.shape.used {
                let start = (member * self.pass.rows + first) * padded(width) + panel * rows * PANEL;
                let values = &self.inputs[start..start + rows * PANEL];
                if member == 0 {
                    total.copy_from_slice(values);
                } else {
                    for (total, value) in total.iter_mut().zip(values) {
                        *total += value;
                    }
                }
            }
            let column = panel * PANEL;
            unpack(total, rows, PANEL.min(width - column), &mut dx[column..], width);
        }
    }
}
