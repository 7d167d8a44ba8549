//! Gradients of a stack of networks: of its inputs, and of its parameters.

#![allow(unsafe_code)] // Parts of shared memory: each item writes its own, what it reads an earlier phase has written.

use std::cell::RefCell;
use std::ops::Range;

use crate::policy::Activation;

use super::Machine;
use super::elementwise::{Derive, NormaliseBack};
use super::gradients::Gradients;
use super::memory::{Buffer, Shared};
use super::packing::{Interleave, Transpose, pack};
use super::product::{Finish, Left, PANEL, Product, Start, padded};
use super::shape::{BLOCK, Layer, Shape, block};

thread_local! {
    static WORK: RefCell<[Buffer; 5]> = RefCell::default();
    static SCRATCH: RefCell<[Buffer; 2]> = RefCell::default();
    static SPREAD: RefCell<Buffer> = RefCell::default();
}

/// The gradients that a call computes, and where to.
#[derive(Default)]
pub struct Wanted<'a> {
    /// Of all parameters; 0 for networks that are not used.
    pub parameters: Option<&'a mut [f32]>,
    /// Of some columns of the inputs, `[row][column]`, summed over the networks.
    pub inputs: Option<(Range<usize>, &'a mut [f32])>,
}

/// Gradients for `dy[member][row][output]` of the used networks.
///
/// `kept`: what [`super::forward`] kept.
///
/// # Panics
/// When a slice does not have the length that the shape asks for.
pub fn backward(
    machine: Machine,
    shape: &Shape,
    flat: &[f32],
    kept: &[f32],
    rows: usize,
    dy: &[f32],
    wanted: Wanted<'_>,
) {
    let Wanted { parameters, inputs } = wanted;
    let (columns, dx) = inputs.unzip();
    let columns = columns.unwrap_or_default();
    assert!(flat.len() == shape.numel() && kept.len() == rows * shape.kept() && columns.end <= shape.inputs);
    assert!(dy.len() == shape.used * rows * shape.outputs);
    assert!(parameters.as_ref().is_none_or(|gradient| gradient.len() == flat.len()));
    assert!(dx.as_ref().is_none_or(|dx| dx.len() == rows * columns.len()));
    if rows == 0 {
        parameters.into_iter().for_each(|gradient| gradient.fill(0.0));
        return;
    }
    let layers = shape.layers();
    let deltas_of_row: usize = layers.iter().map(|layer| padded(layer.output)).sum();
    let blocks = rows.div_ceil(BLOCK);
    WORK.with_borrow_mut(|[weights, deltas, inputs, norms, pairs]| {
        let mut pass = Pass { machine, shape, layers: &layers, columns, rows, flat, all_kept: kept, weights: &[] };
        let weights =
            weights.take((0..layers.len()).map(|layer| pass.transposed_len(layer)).sum::<usize>() * shape.used);
        pass.transpose_all(weights);
        pass.weights = weights;
        let norm_len: usize = if shape.layer_norm { 2 * shape.hidden.iter().sum::<usize>() } else { 0 };
        let deltas = Shared::new(deltas.take(shape.used * rows * deltas_of_row));
        let width = padded(pass.columns.len());
        let inputs = Shared::new(inputs.take(shape.used * rows * width));
        let norms = Shared::new(norms.take(shape.used * blocks * norm_len));
        // Once more in pairs of rows, for the gradients of weights.
        let pairs_of_row = if shape.bf16 && parameters.is_some() { padded_widths(&shape.hidden) } else { 0 };
        let pairs = Shared::new(pairs.take(shape.used * rows.div_ceil(2) * pairs_of_row));
        // Rows without a gradient (where another critic was the smallest) may be left out where nothing is summed over
        // rows; only ReLU's gradient finds the others' activations by a list.
        let sparse = parameters.is_none() && shape.activation == Activation::Relu && !shape.layer_norm;
        machine.run(shape.used * blocks, |item| {
            let (member, (first, count)) = (item / blocks, block(rows, item % blocks));
            let row = member * rows + first;
            // SAFETY: the member's rows of this block are this item's alone, in all four.
            let (own, norm, input, pairs) = unsafe {
                (
                    deltas.part(row * deltas_of_row, count * deltas_of_row),
                    norms.part(item * norm_len, norm_len),
                    inputs.part(row * width, count * width),
                    pairs
                        .part((member * rows.div_ceil(2) + first / 2) * pairs_of_row, count.div_ceil(2) * pairs_of_row),
                )
            };
            let dy = &dy[row * shape.outputs..][..count * shape.outputs];
            let alive: Vec<u32> = if sparse { alive(dy, shape.outputs) } else { Vec::new() };
            if sparse && alive.len() < count {
                pass.down_some(member, first, count, dy, &alive, own, input);
            } else {
                pass.down(member, (first, count), None, dy, own, norm, pairs);
                pass.to_inputs(member, count, own, input);
            }
        });
        // SAFETY: the phase that wrote them is over.
        let (deltas, inputs, norms, pairs) = unsafe {
            (
                deltas.read(0, shape.used * rows * deltas_of_row),
                inputs.read(0, shape.used * rows * width),
                norms.read(0, shape.used * blocks * norm_len),
                pairs.read(0, shape.used * rows.div_ceil(2) * pairs_of_row),
            )
        };
        let gradients =
            Gradients { pass: &pass, deltas, deltas_of_row, pairs, pairs_of_row, norms, norm_len, inputs, blocks };
        gradients.run(parameters, dx);
    });
}

/// Numbers of a row of panels for each of these widths.
pub(super) fn padded_widths(widths: &[usize]) -> usize {
    widths.iter().map(|&width| padded(width)).sum()
}

/// Rows that are not 0.
fn alive(dy: &[f32], width: usize) -> Vec<u32> {
    let rows = dy.chunks_exact(width).zip(0..);
    rows.filter(|(row, _)| row.iter().any(|&value| value != 0.0)).map(|(_, index)| index).collect()
}

/// Outputs of a layer for all rows of a block, and which rows they are wanted of.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    values: &'a [f32],
    rows: usize,
    alive: Option<&'a [u32]>,
}

/// A call.
pub(super) struct Pass<'a> {
    pub(super) machine: Machine,
    pub(super) shape: &'a Shape,
    pub(super) layers: &'a [Layer],
    /// Of the inputs, whose gradients are wanted.
    pub(super) columns: Range<usize>,
    pub(super) rows: usize,
    flat: &'a [f32],
    /// What the forward pass kept.
    pub(super) all_kept: &'a [f32],
    /// Transposed.
    weights: &'a [f32],
}

impl Pass<'_> {
    /// Inputs of a layer whose gradients are needed.
    fn wanted(&self, layer: usize) -> Range<usize> {
        if layer == 0 { self.columns.clone() } else { 0..self.layers[layer].input }
    }

    /// Numbers of a layer's transposed weights in panels.
    fn transposed_len(&self, layer: usize) -> usize {
        let above = &self.layers[layer];
        padded(self.wanted(layer).len()) * above.steps(above.output)
    }

    fn transpose_all(&self, to: &mut [f32]) {
        let mut items = Vec::new();
        let mut at = 0;
        for member in 0..self.shape.used {
            for (index, layer) in self.layers.iter().enumerate() {
                let wanted = self.wanted(index);
                for row in wanted.clone().step_by(PANEL) {
                    let from = layer.weight + member * layer.weights() + row * layer.output;
                    items.push((from, PANEL.min(wanted.end - row), layer, at));
                    at += PANEL * layer.steps(layer.output);
                }
            }
        }
        let to = Shared::new(to);
        self.machine.run(items.len(), |item| {
            let (from, rows, layer, at) = items[item];
            let columns = layer.output;
            // SAFETY: each panel is one item's.
            let to = unsafe { to.part(at, PANEL * layer.steps(columns)) };
            let from = &self.flat[from..][..rows * columns];
            if layer.bf16 {
                SCRATCH.with_borrow_mut(|[panel, ..]| {
                    let panel = panel.take(PANEL * columns);
                    self.machine.isa.run(Transpose { from, rows, columns, to: panel });
                    let pairs = Interleave { from: panel, step: PANEL, rows: columns, columns: PANEL, to };
                    self.machine.isa.run_products(true, pairs);
                });
            } else {
                self.machine.isa.run(Transpose { from, rows, columns, to });
            }
        });
    }

    /// What is kept of a block of a member.
    pub(super) fn kept(&self, member: usize, first: usize, rows: usize) -> &[f32] {
        let size = self.shape.kept_of_member();
        let start = self.rows * padded(self.shape.inputs) + (member * self.rows + first) * size;
        &self.all_kept[start..start + rows * size]
    }

    fn transposed(&self, member: usize, layer: usize) -> &[f32] {
        let each = self.weights.len() / self.shape.used;
        let below: usize = (0..layer).map(|layer| self.transposed_len(layer)).sum();
        &self.weights[member * each + below..][..self.transposed_len(layer)]
    }

    /// As `down`, then the inputs, for the rows of a block that are alive; the other rows of `input` become 0.
    #[allow(clippy::too_many_arguments)] // The item, and the parts that it writes.
    fn down_some(
        &self,
        member: usize,
        first: usize,
        rows: usize,
        dy: &[f32],
        alive: &[u32],
        deltas: &mut [f32],
        input: &mut [f32],
    ) {
        input.fill(0.0);
        if alive.is_empty() {
            return;
        }
        let count = alive.len();
        let size = deltas.len() / rows;
        let deltas = &mut deltas[..size * count];
        let dy = alive.iter().flat_map(|&row| &dy[row as usize * self.shape.outputs..][..self.shape.outputs]);
        self.down(member, (first, rows), Some(alive), &dy.copied().collect::<Vec<_>>(), deltas, &mut [], &mut []);
        SPREAD.with_borrow_mut(|packed| {
            let packed = packed.take(input.len() / rows * count);
            self.to_inputs(member, count, deltas, packed);
            for (input, packed) in input.chunks_exact_mut(rows * PANEL).zip(packed.chunks_exact(count * PANEL)) {
                for (&row, packed) in alive.iter().zip(packed.chunks_exact(PANEL)) {
                    input[row as usize * PANEL..][..PANEL].copy_from_slice(packed);
                }
            }
        });
    }

    /// Gradients of the wanted inputs from those of the first layer's outputs.
    fn to_inputs(&self, member: usize, rows: usize, deltas: &[f32], input: &mut [f32]) {
        self.product(member, 0, rows, &deltas[..padded(self.layers[0].output) * rows], input, None);
    }

    /// Gradients of the outputs of all layers of a block of rows, before the activation: panels of layer 0, of layer 1,
    /// ..., of the head. `alive`: the rows that `dy` is of, where it is not of all.
    #[allow(clippy::too_many_arguments)] // The item, and the parts that it writes.
    fn down(
        &self,
        member: usize,
        (first, all): (usize, usize),
        alive: Option<&[u32]>,
        dy: &[f32],
        deltas: &mut [f32],
        norm: &mut [f32],
        pairs: &mut [f32],
    ) {
        let rows = alive.map_or(all, <[u32]>::len);
        let (shape, isa) = (self.shape, self.machine.isa);
        let places = shape.places();
        let kept = self.kept(member, first, all);
        let mut at = deltas.len() - padded(shape.outputs) * rows;
        for (panel, to) in deltas[at..].chunks_exact_mut(rows * PANEL).enumerate() {
            let column = panel * PANEL;
            pack(&dy[column..], shape.outputs, rows, PANEL.min(shape.outputs - column), to);
        }
        let (mut norm_at, mut pairs_at) = (norm.len(), pairs.len());
        for index in (1..self.layers.len()).rev() {
            let (layer, below, place) = (&self.layers[index], &self.layers[index - 1], &places[index - 1]);
            let (rest, above) = deltas[..at + padded(layer.output) * rows].split_at_mut(at);
            at -= padded(below.output) * rows;
            let own = &mut rest[at..];
            let outputs = &kept[place.outputs * all..][..padded(below.output) * all];
            let relu = shape.activation == Activation::Relu;
            self.product(
                member,
                index,
                rows,
                above,
                own,
                relu.then_some(Outputs { values: outputs, rows: all, alive }),
            );
            if !relu {
                let inner = if shape.activation != Activation::Silu {
                    outputs
                } else if let (Some((scale, shift)), Some(normal)) = (below.norm, place.inner) {
                    // LayerNorm's outputs are not kept: made again where the activation's outputs need to be no more.
                    isa.run(Derive {
                        gradient: own,
                        at: &self.scaled(member, below, (scale, shift), &kept[normal * rows..], rows),
                        activation: shape.activation,
                    });
                    &[]
                } else {
                    &kept[place.inner.unwrap_or_default() * rows..][..own.len()]
                };
                if !inner.is_empty() {
                    isa.run(Derive { gradient: own, at: inner, activation: shape.activation });
                }
            }
            if let (Some((scale, _)), Some(normal), Some(inverse)) = (below.norm, place.inner, place.inverse) {
                norm_at -= 2 * below.output;
                let (scale_gradient, shift_gradient) = norm[norm_at..][..2 * below.output].split_at_mut(below.output);
                isa.run(NormaliseBack {
                    rows,
                    width: below.output,
                    gradient: own,
                    normal: &kept[normal * rows..],
                    inverse: &kept[inverse * rows..][..rows],
                    scale: &self.flat[scale + member * below.output..][..below.output],
                    scale_gradient,
                    shift_gradient,
                });
            }
            if !pairs.is_empty() {
                let size = rows.div_ceil(2) * PANEL;
                pairs_at -= padded(below.output) / PANEL * size;
                for (from, to) in own.chunks_exact(rows * PANEL).zip(pairs[pairs_at..].chunks_exact_mut(size)) {
                    isa.run_products(true, Interleave { from, step: PANEL, rows, columns: PANEL, to });
                }
            }
        }
    }

    /// Gradient of a layer's inputs from that of its outputs.
    fn product(
        &self,
        member: usize,
        layer: usize,
        rows: usize,
        above: &[f32],
        own: &mut [f32],
        relu: Option<Outputs<'_>>,
    ) {
        let weights = self.transposed(member, layer);
        let (input, above_layer) = (self.wanted(layer).len(), &self.layers[layer]);
        let (inner, bf16) = (above_layer.steps(above_layer.output), above_layer.bf16);
        SCRATCH.with_borrow_mut(|[_, narrow]| {
            let (left, step) = if bf16 {
                (self.machine.narrow(above, rows, above_layer.output, narrow), rows * PANEL / 2)
            } else {
                (above, rows * PANEL)
            };
            for (panel, out) in own.chunks_exact_mut(rows * PANEL).enumerate() {
                let finish = match relu {
                    Some(Outputs { values, rows, alive }) => {
                        Finish::WherePositive(&values[panel * rows * PANEL..], alive)
                    }
                    None => Finish::Nothing,
                };
                let product = Product {
                    rows,
                    inner,
                    left,
                    form: Left::Rows(step),
                    right: &weights[panel * PANEL * inner..],
                    out,
                    stride: PANEL,
                    columns: PANEL.min(input - panel * PANEL),
                    start: Start::Zero,
                    finish,
                };
                self.machine.isa.run_products(bf16, product);
            }
        });
    }

    /// LayerNorm's outputs from its normalised sums.
    fn scaled(
        &self,
        member: usize,
        layer: &Layer,
        (scale, shift): (usize, usize),
        normal: &[f32],
        rows: usize,
    ) -> Vec<f32> {
        let own = member * layer.output;
        let mut values = vec![0.0; padded(layer.output) * rows];
        for (panel, values) in values.chunks_exact_mut(rows * PANEL).enumerate() {
            let columns = PANEL.min(layer.output - panel * PANEL);
            let scale = &self.flat[scale + own + panel * PANEL..][..columns];
            let shift = &self.flat[shift + own + panel * PANEL..][..columns];
            for (row, values) in values.chunks_exact_mut(PANEL).enumerate() {
                let normal = &normal[(panel * rows + row) * PANEL..][..columns];
                for (((value, normal), scale), shift) in values.iter_mut().zip(normal).zip(scale).zip(shift) {
                    *value = normal * scale + shift;
                }
            }
        }
        values
    }
}
