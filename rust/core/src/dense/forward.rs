//! Outputs of a stack of networks.

#![allow(unsafe_code)] // Parts of shared memory: each item writes its own, what it reads an earlier phase has written.

use std::cell::RefCell;

use crate::policy::Activation;

use super::elementwise::{Activate, Normalise};
use super::memory::{Buffer, Shared};
use super::packing::{Dots, Interleave, pack, unpack};
use super::product::{Finish, Left, PANEL, Product, Start, padded};
use super::shape::{BLOCK, Layer, Shape, block};
use super::{Machine, Rows};

thread_local! {
    static SCRATCH: RefCell<[Buffer; 3]> = RefCell::default();
    static PACKED: RefCell<[Buffer; 2]> = RefCell::default();
}

/// Outputs of each used network for each row of `x`: `y[member][row][output]`.
///
/// `kept`: what [`super::backward`] needs, [`Shape::kept`] numbers for each row; None when there will be no gradient.
///
/// # Panics
/// When a slice is too short for the shape.
pub fn forward(machine: Machine, shape: &Shape, flat: &[f32], x: Rows<'_>, y: &mut [f32], kept: Option<&mut [f32]>) {
    assert!(
        flat.len() == shape.numel() && x.width() == shape.inputs && y.len() == shape.used * x.rows() * shape.outputs
    );
    if x.rows() == 0 {
        return;
    }
    PACKED.with_borrow_mut(|[weights, inputs]| {
        let inputs_len = x.rows() * padded(shape.inputs);
        let keep = kept.is_some();
        let (inputs, kept) = match kept {
            Some(kept) => {
                assert!(kept.len() == x.rows() * shape.kept());
                kept.split_at_mut(inputs_len)
            }
            None => (inputs.take(inputs_len), Default::default()),
        };
        let layers = shape.layers();
        let weights = weights.take(layers.iter().map(packed_len).sum::<usize>() * shape.used);
        pack_all(machine, shape, &layers, flat, x, weights, inputs);
        let pass = Pass { machine, shape, layers: &layers, flat, weights, inputs };
        let (y, kept) = (Shared::new(y), Shared::new(kept));
        let blocks = x.rows().div_ceil(BLOCK);
        machine.run(shape.used * blocks, |item| {
            let (member, (first, rows)) = (item / blocks, block(x.rows(), item % blocks));
            SCRATCH.with_borrow_mut(|[passing, panel, narrow]| {
                let size = shape.kept_of_member();
                let hidden = if keep {
                    // SAFETY: the member's rows of this block are this item's alone.
                    unsafe { kept.part((member * x.rows() + first) * size, rows * size) }
                } else {
                    passing.take(rows * size)
                };
                pass.hidden(member, first, rows, hidden, narrow);
                // SAFETY: as above.
                let y = unsafe { y.part((member * x.rows() + first) * shape.outputs, rows * shape.outputs) };
                pass.head(member, first, rows, hidden, panel.take(rows * PANEL), y);
            });
        });
    });
}

/// Numbers of a packed layer: panels of weights, then the bias.
fn packed_len(layer: &Layer) -> usize {
    let inner = if layer.dots { padded(layer.input) } else { layer.steps(layer.input) };
    (inner + 1) * padded(layer.output)
}

fn pack_all(
    machine: Machine,
    shape: &Shape,
    layers: &[Layer],
    flat: &[f32],
    x: Rows<'_>,
    weights: &mut [f32],
    inputs: &mut [f32],
) {
    // Items: each panel of each layer of each member, then each block of the inputs.
    let mut items = Vec::new();
    let mut at = 0;
    for member in 0..shape.used {
        for layer in layers {
            items.extend((0..padded(layer.output) / PANEL).map(|panel| (member, layer, panel, at)));
            at += packed_len(layer);
        }
    }
    let (weights, inputs) = (Shared::new(weights), Shared::new(inputs));
    let work = |item: usize| {
        if let Some(&(member, layer, panel, at)) = items.get(item) {
            let column = panel * PANEL;
            let columns = PANEL.min(layer.output - column);
            let from = &flat[layer.weight + member * layer.weights()..][..layer.weights()];
            let bias = &flat[layer.bias + member * layer.output + column..][..columns];
            // SAFETY: each panel, and its part of the bias, is one item's.
            let (to, to_bias) = unsafe {
                let inner = if layer.dots { 0 } else { layer.steps(layer.input) };
                let to = weights.part(at + column * inner, inner * PANEL);
                (to, weights.part(at + packed_len(layer) - padded(layer.output) + column, PANEL))
            };
            if layer.dots {
                // SAFETY: the only panel of this layer.
                let to = unsafe { weights.part(at, layer.output * padded(layer.input)) };
                for (output, to) in to.chunks_exact_mut(padded(layer.input)).enumerate() {
                    to.fill(0.0);
                    for (to, from) in to.iter_mut().zip(from[output..].iter().step_by(layer.output)) {
                        *to = *from;
                    }
                }
            } else if layer.bf16 {
                let from = &from[column..];
                machine.isa.run_products(true, Interleave { from, step: layer.output, rows: layer.input, columns, to });
            } else {
                pack(&from[column..], layer.output, layer.input, columns, to);
            }
            pack(bias, columns, 1, columns, to_bias);
        } else {
            let (first, rows) = block(x.rows(), item - items.len());
            // SAFETY: each block of rows is one item's.
            let to = unsafe { inputs.part(first * padded(shape.inputs), rows * padded(shape.inputs)) };
            for (panel, to) in to.chunks_exact_mut(rows * PANEL).enumerate() {
                let column = panel * PANEL;
                pack(x.from(first, column), x.step(), rows, PANEL.min(shape.inputs - column), to);
            }
        }
    };
    machine.run(items.len() + x.rows().div_ceil(BLOCK), work);
}

struct Pass<'a> {
    machine: Machine,
    shape: &'a Shape,
    layers: &'a [Layer],
    flat: &'a [f32],
    weights: &'a [f32],
    inputs: &'a [f32],
}

impl Pass<'_> {
    /// The packed weights of a layer of a member.
    fn packed(&self, member: usize, layer: usize) -> &[f32] {
        let each: usize = self.layers.iter().map(packed_len).sum();
        let before: usize = self.layers[..layer].iter().map(packed_len).sum();
        &self.weights[member * each + before..][..packed_len(&self.layers[layer])]
    }

    /// All hidden layers of a block of rows, into what is kept of it.
    fn hidden(&self, member: usize, first: usize, rows: usize, kept: &mut [f32], narrow: &mut Buffer) {
        let places = self.shape.places();
        for (index, (layer, place)) in self.layers.iter().zip(&places).enumerate() {
            let (before, rest) = kept.split_at_mut(place.outputs * rows);
            let (outputs, rest) = rest.split_at_mut(padded(layer.output) * rows);
            let left = match index.checked_sub(1) {
                None => &self.inputs[first * padded(layer.input)..],
                Some(last) => &before[places[last].outputs * rows..],
            };
            let inner = layer.steps(layer.input);
            let (left, step) = if layer.bf16 {
                (self.machine.narrow(left, rows, layer.input, narrow), rows * PANEL / 2)
            } else {
                (left, rows * PANEL)
            };
            let packed = self.packed(member, index);
            let fused = layer.norm.is_none() && self.shape.activation == Activation::Relu;
            for (panel, out) in outputs.chunks_exact_mut(rows * PANEL).enumerate() {
                let column = panel * PANEL;
                let product = Product {
                    rows,
                    inner,
                    left,
                    form: Left::Rows(step),
                    right: &packed[column * inner..],
                    out,
                    stride: PANEL,
                    columns: PANEL,
                    start: Start::Bias(&packed[packed.len() - padded(layer.output) + column..]),
                    finish: if fused { Finish::Relu } else { Finish::Nothing },
                };
                self.machine.isa.run_products(layer.bf16, product);
            }
            // Offsets of what follows the outputs count from here.
            let from = (place.outputs + padded(layer.output)) * rows;
            if let (Some((scale, shift)), Some(normal), Some(inverse)) = (layer.norm, place.inner, place.inverse) {
                let (normal, rest) = rest[normal * rows - from..].split_at_mut(padded(layer.output) * rows);
                let inverse = &mut rest[inverse * rows - from - padded(layer.output) * rows..];
                let own = member * layer.output;
                self.machine.isa.run(Normalise {
                    rows,
                    width: layer.output,
                    values: outputs,
                    scale: &self.flat[scale + own..][..layer.output],
                    shift: &self.flat[shift + own..][..layer.output],
                    normal,
                    inverse,
                });
            } else if let Some(inner) = place.inner {
                rest[inner * rows - from..][..outputs.len()].copy_from_slice(outputs);
            }
            if !fused {
                self.machine.isa.run(Activate { values: outputs, activation: self.shape.activation });
            }
        }
    }

    /// The head of a block of rows; `panel`: room for one.
    fn head(&self, member: usize, first: usize, rows: usize, kept: &[f32], panel: &mut [f32], y: &mut [f32]) {
        let head = self.layers.len() - 1;
        let layer = &self.layers[head];
        let left = match self.shape.places().last() {
            None => &self.inputs[first * padded(layer.input)..],
            Some(place) => &kept[place.outputs * rows..],
        };
        let packed = self.packed(member, head);
        let bias = &packed[packed.len() - padded(layer.output)..];
        if layer.dots {
            for (output, weight) in packed.chunks_exact(padded(layer.input)).take(layer.output).enumerate() {
                let (bias, out) = (bias[output], &mut y[output..]);
                self.machine.isa.run(Dots { rows, left, weight, bias, out, step: layer.output });
            }
            return;
        }
        for column in (0..layer.output).step_by(PANEL) {
            let columns = PANEL.min(layer.output - column);
            self.machine.isa.run(Product {
                rows,
                inner: layer.input,
                left,
                form: Left::Rows(rows * PANEL),
                right: &packed[column * layer.input..],
                out: &mut *panel,
                stride: PANEL,
                columns,
                start: Start::Bias(&bias[column..]),
                finish: Finish::Nothing,
            });
            unpack(panel, rows, columns, &mut y[column..], layer.output);
        }
    }
}
