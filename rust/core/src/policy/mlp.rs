//! Forward pass of a multi-layer perceptron for the few observations of one sampler step.
//!
//! One step needs the actor for 1 to 64 observations, so reading the weights is what costs. Weights are stored in
//! panels of up to 64 outputs, input-major inside a panel: the innermost loop adds `x[i] * weight_row` to sums that
//! stay in registers and reads memory once, in order. The same generic code is compiled for several instruction sets,
//! one of which is picked once per process. A row's result does not depend on the other rows of its batch.

use super::kernels::{Isa, Lane, lanes_for};

/// Elementwise function after each hidden layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// x / (1 + exp(-x))
    Silu,
    /// x above 0, exp(x) - 1 below.
    Elu,
}

impl Activation {
    /// Every name that [`Activation::parse`] knows.
    pub const NAMES: [&str; 4] = ["relu", "tanh", "silu", "elu"];

    /// The activation with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "relu" => Self::Relu,
            "tanh" => Self::Tanh,
            "silu" => Self::Silu,
            "elu" => Self::Elu,
            _ => return None,
        })
    }
}

/// Sizes and kind of an [`Mlp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlpSpec {
    /// Length of one observation.
    pub input: usize,
    /// Outputs of each hidden layer; may be empty.
    pub hidden: Vec<usize>,
    /// Outputs of the linear head.
    pub output: usize,
    /// After each hidden layer.
    pub activation: Activation,
    /// LayerNorm (epsilon 1e-5, learned scale and shift) between a hidden linear layer and its activation.
    pub layer_norm: bool,
}

impl MlpSpec {
    /// (name below `prefix`, shape) of each parameter, in the order [`Mlp::load`] reads them; weights are [in, out].
    #[must_use]
    pub fn manifest(&self, prefix: &str) -> Vec<(String, Vec<usize>)> {
        let mut entries = Vec::new();
        let mut input = self.input;
        for (i, &output) in self.hidden.iter().enumerate() {
            entries.push((format!("{prefix}.{i}.weight"), vec![input, output]));
            entries.push((format!("{prefix}.{i}.bias"), vec![output]));
            if self.layer_norm {
                entries.push((format!("{prefix}.{i}.norm.weight"), vec![output]));
                entries.push((format!("{prefix}.{i}.norm.bias"), vec![output]));
            }
            input = output;
        }
        entries.push((format!("{prefix}.head.weight"), vec![input, self.output]));
        entries.push((format!("{prefix}.head.bias"), vec![self.output]));
        entries
    }

    /// Number of float32 parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.manifest("").iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }
}

/// The network: weights in panels and scratch space for one batch.
#[derive(Debug)]
pub struct Mlp {
    spec: MlpSpec,
    isa: Isa,
    layers: Vec<Layer>,
    scratch: [Vec<Lane>; 2],
}

/// One linear layer, with the LayerNorm behind it where there is one.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) input: usize,
    pub(super) output: usize,
    /// Panels of up to `PANEL` lanes of outputs; each is [input][lanes of the panel].
    pub(super) panels: Vec<Lane>,
    pub(super) bias: Vec<Lane>,
    pub(super) norm: Option<Norm>,
    /// `None` for the head.
    pub(super) activation: Option<Activation>,
}

#[derive(Debug)]
pub(super) struct Norm {
    pub(super) scale: Vec<Lane>,
    pub(super) shift: Vec<Lane>,
}

impl Mlp {
    /// A network with all parameters zero.
    ///
    /// # Panics
    /// When a size is zero.
    #[must_use]
    pub fn new(spec: MlpSpec) -> Self {
        Self::with_isa(spec, Isa::detect())
    }

    pub(super) fn with_isa(spec: MlpSpec, isa: Isa) -> Self {
        assert!(spec.input > 0 && spec.output > 0 && !spec.hidden.contains(&0), "sizes must be positive: {spec:?}");
        let mut layers = Vec::new();
        let mut input = spec.input;
        for &output in &spec.hidden {
            layers.push(Layer::zeros(input, output, spec.layer_norm, Some(spec.activation)));
            input = output;
        }
        layers.push(Layer::zeros(input, spec.output, false, None));
        Self { spec, isa, layers, scratch: [Vec::new(), Vec::new()] }
    }

    /// What the network was made with.
    #[must_use]
    pub fn spec(&self) -> &MlpSpec {
        &self.spec
    }

    /// Take parameters in manifest order, little-endian float32, from packed bytes.
    ///
    /// # Panics
    /// When `bytes` is not `4 * spec().parameters()` long.
    pub fn load(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), 4 * self.spec.parameters());
        let mut values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        for layer in &mut self.layers {
            layer.load(&mut values);
        }
    }

    /// Outputs for `rows` observations, packed in `x`; calls `each(row, outputs)` for every row in order.
    ///
    /// # Panics
    /// When `x` is not `rows * spec().input` long.
    pub fn forward(&mut self, x: &[f32], rows: usize, mut each: impl FnMut(usize, &[f32])) {
        assert_eq!(x.len(), rows * self.spec.input);
        let width = self.layers.iter().map(|layer| lanes_for(layer.output)).max().unwrap_or(1);
        for scratch in &mut self.scratch {
            if scratch.len() < rows * width {
                scratch.resize(rows * width, Lane::ZERO);
            }
        }
        let [a, b] = &mut self.scratch;
        self.isa.forward(&self.layers, x, rows, a, b);
        let outputs = if self.layers.len() % 2 == 1 { a } else { b };
        let output_lanes = lanes_for(self.spec.output);
        for row in 0..rows {
            let lanes = &outputs[row * output_lanes..(row + 1) * output_lanes];
            each(row, &Lane::flat(lanes)[..self.spec.output]);
        }
    }
}

impl Layer {
    fn zeros(input: usize, output: usize, layer_norm: bool, activation: Option<Activation>) -> Self {
        let lanes = lanes_for(output);
        let zeros = |count| vec![Lane::ZERO; count];
        Self {
            input,
            output,
            panels: zeros(input * lanes),
            bias: zeros(lanes),
            norm: layer_norm.then(|| Norm { scale: zeros(lanes), shift: zeros(lanes) }),
            activation,
        }
    }

    fn load(&mut self, values: &mut impl Iterator<Item = f32>) {
        let lanes = lanes_for(self.output);
        for i in 0..self.input {
            for o in 0..self.output {
                let lane = o / Lane::WIDTH;
                let first = lane - lane % super::kernels::PANEL;
                let width = super::kernels::PANEL.min(lanes - first);
                let at = first * self.input + i * width + (lane - first);
                self.panels[at].0[o % Lane::WIDTH] = values.next().expect("length was checked");
            }
        }
        let mut fill = |target: &mut [Lane], output: usize| {
            for o in 0..output {
                target[o / Lane::WIDTH].0[o % Lane::WIDTH] = values.next().expect("length was checked");
            }
        };
        fill(&mut self.bias, self.output);
        if let Some(norm) = &mut self.norm {
            fill(&mut norm.scale, self.output);
            fill(&mut norm.shift, self.output);
        }
    }
}
