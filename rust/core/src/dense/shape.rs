//! What a stack of networks looks like, and where everything of it lies.

use crate::error::{Error, Result};
use crate::policy::Activation;

use super::product::padded;

/// Rows that go through all layers together: their activations and one layer's weights fit into a core's own cache.
pub(super) const BLOCK: usize = 128;

/// Largest width, number of layers and number of networks: no product of sizes overflows.
const MOST: i64 = 1 << 20;

/// `members` networks of one shape: hidden layers with LayerNorm or without and an activation, and a linear head.
///
/// Parameters are one flat vector: for each layer in turn the weights `[members, in, out]`, the biases `[members, out]`
/// and, for hidden layers with LayerNorm, scale and shift `[members, out]` each; that is `rlz.networks.mlp`'s order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Networks in the stack.
    pub members: usize,
    /// How many of them, from the first on, are run.
    pub used: usize,
    /// Length of an input row.
    pub inputs: usize,
    /// Outputs of each hidden layer; may be empty.
    pub hidden: Vec<usize>,
    /// Outputs of the head.
    pub outputs: usize,
    /// After each hidden layer.
    pub activation: Activation,
    /// LayerNorm between a hidden layer and its activation.
    pub layer_norm: bool,
    /// Products of the hidden layers, and of their gradients, have factors in bf16; sums are float32.
    pub bf16: bool,
}

/// Where one layer's parameters begin in the flat vector, for member 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) weight: usize,
    pub(super) bias: usize,
    /// Scale and shift of LayerNorm.
    pub(super) norm: Option<(usize, usize)>,
    /// The head's few outputs are made of dot products.
    pub(super) dots: bool,
    /// Products have factors in bf16.
    pub(super) bf16: bool,
}

/// Most outputs of a head that are made of dot products: a panel would be empty almost everywhere.
const FEW: usize = 4;

impl Layer {
    pub(super) fn weights(&self) -> usize {
        self.input * self.output
    }

    /// Steps of a product's inner index, over `size` numbers.
    pub(super) fn steps(&self, size: usize) -> usize {
        if self.bf16 { size.div_ceil(2) } else { size }
    }
}

/// What of a hidden layer is kept for its gradient, in numbers for each row, beside the layer's outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Outputs, in panels.
    pub(super) outputs: usize,
    /// LayerNorm's normalised sums, or SiLU's inputs without LayerNorm, in panels.
    pub(super) inner: Option<usize>,
    /// One over LayerNorm's standard deviation.
    pub(super) inverse: Option<usize>,
}

impl Shape {
    /// From numbers: members, used, inputs, outputs, activation (index in [`Activation::NAMES`]), LayerNorm and
    /// bf16 (0 or 1 each), then the hidden layers.
    ///
    /// # Errors
    /// [`Error::Invalid`] for numbers that are no shape.
    pub fn parse(numbers: &[i64]) -> Result<Self> {
        let invalid = || Error::Invalid {
            what: "shape",
            given: format!("{numbers:?}"),
            expected: "members, used, inputs, outputs, activation, layer_norm, bf16, hidden sizes".into(),
        };
        let &[members, used, inputs, outputs, activation, layer_norm, bf16, ref hidden @ ..] = numbers else {
            return Err(invalid());
        };
        let sizes = [members, used, inputs, outputs];
        let name = usize::try_from(activation).ok().and_then(|index| Activation::NAMES.get(index));
        if sizes.iter().chain(hidden).any(|size| !(1..=MOST).contains(size))
            || used > members
            || [layer_norm, bf16].iter().any(|flag| !(0..=1).contains(flag))
        {
            return Err(invalid());
        }
        Ok(Self {
            members: members as usize,
            used: used as usize,
            inputs: inputs as usize,
            hidden: hidden.iter().map(|&size| size as usize).collect(),
            outputs: outputs as usize,
            activation: name.and_then(|name| Activation::parse(name)).ok_or_else(invalid)?,
            layer_norm: layer_norm == 1,
            bf16: bf16 == 1,
        })
    }

    /// Length of the flat vector.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.layers().last().map_or(0, |head| head.bias + self.members * head.output)
    }

    /// Numbers that [`super::forward`] keeps for [`super::backward`], for each row.
    #[must_use]
    pub fn kept(&self) -> usize {
        padded(self.inputs) + self.used * self.kept_of_member()
    }

    pub(super) fn kept_of_member(&self) -> usize {
        let inverses = if self.layer_norm { self.hidden.len() } else { 0 };
        self.kept_panels() + inverses
    }

    fn keeps_inner(&self) -> bool {
        self.layer_norm || self.activation == Activation::Silu
    }

    fn kept_panels(&self) -> usize {
        let each = 1 + usize::from(self.keeps_inner());
        self.hidden.iter().map(|&width| each * padded(width)).sum()
    }

    /// Places of what is kept of each hidden layer, for a member and one row.
    pub(super) fn places(&self) -> Vec<Kept> {
        let (mut at, mut inverse) = (0, self.kept_panels());
        let place = |&width: &usize| {
            let outputs = at;
            at += padded(width);
            let inner = self.keeps_inner().then_some(at);
            at += if inner.is_some() { padded(width) } else { 0 };
            let norm = self.layer_norm.then_some(inverse);
            inverse += 1;
            Kept { outputs, inner, inverse: norm }
        };
        self.hidden.iter().map(place).collect()
    }

    /// Hidden layers, then the head.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let (mut at, mut input) = (0, self.inputs);
        let mut take = |count: usize| {
            at += self.members * count;
            at - self.members * count
        };
        let mut layers = Vec::with_capacity(self.hidden.len() + 1);
        for (index, &output) in self.hidden.iter().chain([&self.outputs]).enumerate() {
            let (weight, bias) = (take(input * output), take(output));
            let head = index == self.hidden.len();
            let norm = (self.layer_norm && !head).then(|| (take(output), take(output)));
            let (dots, bf16) = (head && output <= FEW, self.bf16 && !head);
            layers.push(Layer { input, output, weight, bias, norm, dots, bf16 });
            input = output;
        }
        layers
    }
}

/// Blocks of rows: first row and number of rows of each.
pub(super) fn block(rows: usize, index: usize) -> (usize, usize) {
    (index * BLOCK, BLOCK.min(rows - index * BLOCK))
}
