//! The policy networks that a sampler runs between environment steps, without Python or torch.

pub mod distribution;
mod kernels;
pub mod mlp;
pub mod rng;

pub use mlp::{Activation, Mlp, MlpSpec};
pub use rng::Rng;

/// What the outputs of a policy network mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Head {
    /// Means, then log standard deviations, of a Gaussian that tanh squashes into [-1, 1].
    SquashedGaussian,
    /// Actions before tanh. Exploration adds Gaussian noise behind it and clips to [-1, 1].
    Deterministic {
        /// Standard deviation of the noise.
        noise: f32,
    },
}

impl Head {
    /// Every name that [`Head::parse`] knows.
    pub const NAMES: [&str; 2] = ["squashed_gaussian", "deterministic"];

    /// The head with this name. `noise` is for [`Head::Deterministic`]; the other draws from its own distribution.
    #[must_use]
    pub fn parse(name: &str, noise: f32) -> Option<Self> {
        Some(match name {
            "squashed_gaussian" => Self::SquashedGaussian,
            "deterministic" => Self::Deterministic { noise },
            _ => return None,
        })
    }

    /// Network outputs that `action_dim` actions need.
    #[must_use]
    pub fn outputs(self, action_dim: usize) -> usize {
        match self {
            Self::SquashedGaussian => 2 * action_dim,
            Self::Deterministic { .. } => action_dim,
        }
    }
}

/// An actor: network, head and random stream.
#[derive(Debug)]
pub struct Policy {
    mlp: Mlp,
    head: Head,
    action_dim: usize,
    rng: Rng,
}

impl Policy {
    /// An actor whose parameters are all zero. `hidden`, `activation` and `layer_norm` as in [`MlpSpec`].
    ///
    /// # Panics
    /// When a size is zero.
    #[must_use]
    pub fn new(
        obs_dim: usize,
        action_dim: usize,
        hidden: Vec<usize>,
        activation: Activation,
        layer_norm: bool,
        head: Head,
        rng: Rng,
    ) -> Self {
        let spec = MlpSpec { input: obs_dim, hidden, output: head.outputs(action_dim), activation, layer_norm };
        Self { mlp: Mlp::new(spec), head, action_dim, rng }
    }

    /// Length of one observation.
    #[must_use]
    pub fn obs_dim(&self) -> usize {
        self.mlp.spec().input
    }

    /// Length of one action.
    #[must_use]
    pub fn action_dim(&self) -> usize {
        self.action_dim
    }

    /// What the network's outputs mean.
    #[must_use]
    pub fn head(&self) -> Head {
        self.head
    }

    /// (name, shape) of each float32 parameter in the order of [`Policy::load`].
    #[must_use]
    pub fn manifest(&self) -> Vec<(String, Vec<usize>)> {
        self.mlp.spec().manifest("actor")
    }

    /// Bytes of one set of parameters.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        4 * self.mlp.spec().parameters()
    }

    /// Take parameters: float32, little endian, packed in manifest order.
    ///
    /// # Panics
    /// When `bytes` is not [`Policy::nbytes`] long.
    pub fn load(&mut self, bytes: &[u8]) {
        self.mlp.load(bytes);
    }

    /// The random stream of [`Policy::act`] and [`Policy::uniform`].
    pub fn rng_mut(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Actions in [-1, 1] for `obs` [rows, obs_dim] into `actions` [rows, action_dim]; `log_prob` [rows] is filled
    /// where it is given, with NaN for a head whose actions have no density.
    ///
    /// # Panics
    /// When the lengths do not fit together.
    pub fn act(&mut self, obs: &[f32], actions: &mut [f32], mut log_prob: Option<&mut [f32]>, deterministic: bool) {
        let rows = obs.len() / self.obs_dim();
        let width = self.action_dim;
        assert_eq!(actions.len(), rows * width);
        let Self { mlp, head, rng, .. } = self;
        mlp.forward(obs, rows, |row, outputs| {
            let action = &mut actions[row * width..(row + 1) * width];
            let rng = (!deterministic).then_some(&mut *rng);
            let value = match head {
                Head::SquashedGaussian => distribution::squashed_gaussian(outputs, action, rng),
                Head::Deterministic { noise } => {
                    distribution::deterministic(outputs, action, *noise, rng);
                    f32::NAN
                }
            };
            if let Some(log_prob) = &mut log_prob {
                log_prob[row] = value;
            }
        });
    }

    /// Uniform actions in [-1, 1), for the warm-up.
    pub fn uniform(&mut self, actions: &mut [f32]) {
        actions.fill_with(|| self.rng.symmetric());
    }
}

#[cfg(test)]
mod tests {
    use super::kernels::Isa;
    use super::*;

    fn random_mlp(spec: MlpSpec, isa: Isa, rng: &mut Rng) -> (Mlp, Vec<f32>) {
        let values: Vec<f32> = (0..spec.parameters()).map(|_| rng.symmetric() * 0.3).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut mlp = Mlp::with_isa(spec, isa);
        mlp.load(&bytes);
        (mlp, values)
    }

    /// The same network in float64, straight from the definition.
    fn reference(spec: &MlpSpec, values: &[f32], x: &[f32]) -> Vec<f64> {
        let mut values = values.iter().map(|&v| f64::from(v));
        let mut x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        let sizes: Vec<usize> = spec.hidden.iter().copied().chain([spec.output]).collect();
        for (i, &output) in sizes.iter().enumerate() {
            let mut y = vec![0.0; output];
            for &xi in &x {
                for y in &mut y {
                    *y += xi * values.next().unwrap();
                }
            }
            y.iter_mut().for_each(|y| *y += values.next().unwrap());
            if i < spec.hidden.len() {
                if spec.layer_norm {
                    let mean = y.iter().sum::<f64>() / output as f64;
                    let variance = y.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / output as f64;
                    y.iter_mut().for_each(|v| *v = (*v - mean) / (variance + 1e-5).sqrt());
                    y.iter_mut().for_each(|v| *v *= values.next().unwrap());
                    y.iter_mut().for_each(|v| *v += values.next().unwrap());
                }
                y.iter_mut().for_each(|v| {
                    *v = match spec.activation {
                        Activation::Relu => v.max(0.0),
                        Activation::Tanh => v.tanh(),
                        Activation::Silu => *v / (1.0 + (-*v).exp()),
                        Activation::Elu => {
                            if *v > 0.0 {
                                *v
                            } else {
                                v.exp_m1()
                            }
                        }
                    }
                });
            }
            x = y;
        }
        x
    }

    #[test]
    fn every_instruction_set_agrees_with_the_definition() {
        let mut rng = Rng::new([1, 2, 3, 4]);
        for isa in Isa::available() {
            for activation in [Activation::Relu, Activation::Tanh, Activation::Silu, Activation::Elu] {
                for layer_norm in [false, true] {
                    for hidden in [vec![], vec![1], vec![33], vec![64, 48], vec![256, 17, 100]] {
                        let (input, output) = (1 + rng.below(40) as usize, 1 + rng.below(40) as usize);
                        let spec = MlpSpec { input, hidden, output, activation, layer_norm };
                        let (mut mlp, values) = random_mlp(spec.clone(), isa, &mut rng);
                        for rows in [1, 2, 3, 5, 8] {
                            let x: Vec<f32> = (0..rows * input).map(|_| rng.normal() as f32).collect();
                            mlp.forward(&x, rows, |row, outputs| {
                                let expected = reference(&spec, &values, &x[row * input..(row + 1) * input]);
                                for (output, expected) in outputs.iter().zip(expected) {
                                    let error = (f64::from(*output) - expected).abs();
                                    assert!(error < 1e-5 * (1.0 + expected.abs()), "{isa:?} {spec:?}: {error}");
                                }
                            });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_batch() {
        let mut rng = Rng::new([4, 3, 2, 1]);
        for isa in Isa::available() {
            let spec = MlpSpec {
                input: 27,
                hidden: vec![256, 256],
                output: 16,
                activation: Activation::Relu,
                layer_norm: false,
            };
            let (mut mlp, _) = random_mlp(spec, isa, &mut rng);
            let x: Vec<f32> = (0..7 * 27).map(|_| rng.symmetric()).collect();
            let mut together = Vec::new();
            mlp.forward(&x, 7, |_, outputs| together.push(outputs.to_vec()));
            for (row, expected) in together.iter().enumerate() {
                mlp.forward(&x[row * 27..(row + 1) * 27], 1, |_, outputs| assert_eq!(outputs, expected));
            }
        }
    }

    #[test]
    fn manifest_covers_the_parameters() {
        let policy =
            Policy::new(27, 8, vec![256, 128], Activation::Relu, true, Head::SquashedGaussian, Rng::new([1; 4]));
        let names: Vec<String> = policy.manifest().into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "actor.0.weight",
                "actor.0.bias",
                "actor.0.norm.weight",
                "actor.0.norm.bias",
                "actor.1.weight",
                "actor.1.bias",
                "actor.1.norm.weight",
                "actor.1.norm.bias",
                "actor.head.weight",
                "actor.head.bias"
            ]
        );
        assert_eq!(policy.nbytes(), 4 * (27 * 256 + 3 * 256 + 256 * 128 + 3 * 128 + 128 * 16 + 16));
    }

    #[test]
    #[ignore = "a measurement"]
    fn speed() {
        let mut rng = Rng::new([1, 2, 3, 4]);
        for isa in Isa::available() {
            for rows in [1, 4, 16, 64] {
                for activation in [Activation::Relu, Activation::Tanh] {
                    let spec = MlpSpec { input: 27, hidden: vec![256, 256], output: 16, activation, layer_norm: false };
                    let (mut mlp, _) = random_mlp(spec, isa, &mut rng);
                    let x: Vec<f32> = (0..rows * 27).map(|_| rng.symmetric()).collect();
                    let mut best = f64::MAX;
                    for _ in 0..20 {
                        let start = std::time::Instant::now();
                        for _ in 0..100 {
                            mlp.forward(std::hint::black_box(&x), rows, |_, outputs| {
                                std::hint::black_box(outputs);
                            });
                        }
                        best = best.min(start.elapsed().as_secs_f64() / 100.0);
                    }
                    println!("{isa:?} {activation:?} rows {rows}: {:.2} us", best * 1e6);
                }
            }
        }
    }
}
