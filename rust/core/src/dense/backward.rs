//! Gradients of a stack of networks: of its inputs, and of its parameters.

#![allow(unsafe_code)] // Parts of shared memory: each item writes its own, what it reads an earlier phase has written.

use std::cell::RefCell;
use std::ops::Range;

use crate::policy::Activation;

use super::Machine;
use super::elementwise::{ColumnSums, Derive, NormaliseBack};
use super::memory::{Buffer, Shared};
use super::packing::{Transpose, pack, unpack};
use super::product::{Finish, Left, PANEL, Product, Start, padded};
use super::shape::{BLOCK, Layer, Shape, block};

/// A head with so few outputs has its weights' gradient made as the transpose, whose tiles it fills.
const NARROW: usize = 16;

thread_local! {
    static WORK: RefCell<[Buffer; 4]> = RefCell::default();
    static SCRATCH: RefCell<[Buffer; 2]> = RefCell::default();
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
    WORK.with_borrow_mut(|[weights, deltas, inputs, norms]| {
        let mut pass = Pass { machine, shape, layers: &layers, columns, rows, flat, kept, weights: &[] };
        let weights =
            weights.take((0..layers.len()).map(|layer| pass.transposed_len(layer)).sum::<usize>() * shape.used);
        pass.transpose_all(weights);
        pass.weights = weights;
        let norm_len: usize = if shape.layer_norm { 2 * shape.hidden.iter().sum::<usize>() } else { 0 };
        let deltas = Shared::new(deltas.take(shape.used * rows * deltas_of_row));
        let width = padded(pass.columns.len());
        let inputs = Shared::new(inputs.take(shape.used * rows * width));
        let norms = Shared::new(norms.take(shape.used * blocks * norm_len));
        // Rows without a gradient (where another critic was the smallest) may be left out where nothing is summed over
        // rows; only ReLU's gradient finds the others' activations by a list.
        let sparse = parameters.is_none() && shape.activation == Activation::Relu && !shape.layer_norm;
        machine.run(shape.used * blocks, |item| {
            let (member, (first, count)) = (item / blocks, block(rows, item % blocks));
            let row = member * rows + first;
            // SAFETY: the member's rows of this block are this item's alone, in all three.
            let (own, norm, input) = unsafe {
                (
                    deltas.part(row * deltas_of_row, count * deltas_of_row),
                    norms.part(item * norm_len, norm_len),
                    inputs.part(row * width, count * width),
                )
            };
            let dy = &dy[row * shape.outputs..][..count * shape.outputs];
            let alive: Vec<u32> = if sparse { alive(dy, shape.outputs) } else { Vec::new() };
            if sparse && alive.len() < count {
                pass.down_some(member, first, count, dy, &alive, own, input);
            } else {
                pass.down(member, (first, count), None, dy, own, norm);
                pass.to_inputs(member, count, own, input);
            }
        });
        // SAFETY: the phase that wrote them is over.
        let (deltas, inputs, norms) = unsafe {
            (
                deltas.read(0, shape.used * rows * deltas_of_row),
                inputs.read(0, shape.used * rows * width),
                norms.read(0, shape.used * blocks * norm_len),
            )
        };
        let gradients = Gradients { pass: &pass, deltas, deltas_of_row, norms, norm_len, inputs, blocks };
        gradients.run(parameters, dx);
    });
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

struct Pass<'a> {
    machine: Machine,
    shape: &'a Shape,
    layers: &'a [Layer],
    /// Of the inputs, whose gradients are wanted.
    columns: Range<usize>,
    rows: usize,
    flat: &'a [f32],
    kept: &'a [f32],
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
        padded(self.wanted(layer).len()) * self.layers[layer].output
    }

    fn transpose_all(&self, to: &mut [f32]) {
        let mut items = Vec::new();
        let mut at = 0;
        for member in 0..self.shape.used {
            for (index, layer) in self.layers.iter().enumerate() {
                let wanted = self.wanted(index);
                for row in wanted.clone().step_by(PANEL) {
                    let from = layer.weight + member * layer.weights() + row * layer.output;
                    items.push((from, PANEL.min(wanted.end - row), layer.output, at));
                    at += PANEL * layer.output;
                }
            }
        }
        let to = Shared::new(to);
        self.machine.run(items.len(), |item| {
            let (from, rows, columns, at) = items[item];
            // SAFETY: each panel is one item's.
            let to = unsafe { to.part(at, PANEL * columns) };
            self.machine.isa.run(Transpose { from: &self.flat[from..][..rows * columns], rows, columns, to });
        });
    }

    /// What is kept of a block of a member.
    fn kept(&self, member: usize, first: usize, rows: usize) -> &[f32] {
        let size = self.shape.kept_of_member();
        let start = self.rows * padded(self.shape.inputs) + (member * self.rows + first) * size;
        &self.kept[start..start + rows * size]
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
        self.down(member, (first, rows), Some(alive), &dy.copied().collect::<Vec<_>>(), deltas, &mut []);
        SCRATCH.with_borrow_mut(|[packed, _]| {
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
    fn down(
        &self,
        member: usize,
        (first, all): (usize, usize),
        alive: Option<&[u32]>,
        dy: &[f32],
        deltas: &mut [f32],
        norm: &mut [f32],
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
        let mut norm_at = norm.len();
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
        let (input, output) = (self.wanted(layer).len(), self.layers[layer].output);
        for (panel, out) in own.chunks_exact_mut(rows * PANEL).enumerate() {
            let finish = match relu {
                Some(Outputs { values, rows, alive }) => Finish::WherePositive(&values[panel * rows * PANEL..], alive),
                None => Finish::Nothing,
            };
            self.machine.isa.run(Product {
                rows,
                inner: output,
                left: above,
                form: Left::Rows(rows * PANEL),
                right: &weights[panel * PANEL * output..],
                out,
                stride: PANEL,
                columns: PANEL.min(input - panel * PANEL),
                start: Start::Zero,
                finish,
            });
        }
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

/// The last phase: sums over the rows, in one order whatever the number of threads.
struct Gradients<'a> {
    pass: &'a Pass<'a>,
    deltas: &'a [f32],
    deltas_of_row: usize,
    norms: &'a [f32],
    norm_len: usize,
    inputs: &'a [f32],
    blocks: usize,
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
    fn run(&self, dflat: Option<&mut [f32]>, dx: Option<&mut [f32]>) {
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
            SCRATCH.with_borrow_mut(|[panel, sums]| match items[item] {
                Item::Weights(member, layer, part) => {
                    self.weights(member, layer, part, dflat, panel.take(PANEL * PANEL))
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

    /// One panel of a layer's inputs, for a block of a member.
    fn input(&self, member: usize, layer: usize, panel: usize, first: usize, rows: usize) -> &[f32] {
        let values = match layer.checked_sub(1) {
            None => &self.pass.kept[first * padded(self.pass.shape.inputs)..],
            Some(below) => &self.pass.kept(member, first, rows)[self.pass.shape.places()[below].outputs * rows..],
        };
        &values[panel * rows * PANEL..][..rows * PANEL]
    }

    fn weights(&self, member: usize, layer: usize, panel: usize, dflat: Shared<'_>, scratch: &mut [f32]) {
        let Layer { input, output, weight, .. } = self.pass.layers[layer];
        let (count, from) =
            (PANEL.min(input - panel * PANEL), weight + member * input * output + panel * PANEL * output);
        // SAFETY: these rows of the weights are this item's alone.
        let gradient = unsafe { dflat.part(from, count * output) };
        for index in 0..self.blocks {
            let (first, rows) = block(self.pass.rows, index);
            let left = self.input(member, layer, panel, first, rows);
            let right = self.delta(member, layer, first, rows);
            for (column, right) in right.chunks_exact(rows * PANEL).enumerate() {
                let column = column * PANEL;
                let whole = column + PANEL <= output;
                let (out, stride) = if whole { (&mut gradient[column..], output) } else { (&mut *scratch, PANEL) };
                self.pass.machine.isa.run(Product {
                    rows: count,
                    inner: rows,
                    left,
                    form: Left::Columns,
                    right,
                    out,
                    stride,
                    columns: PANEL.min(output - column),
                    start: if index == 0 { Start::Zero } else { Start::Output },
                    finish: Finish::Nothing,
                });
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
