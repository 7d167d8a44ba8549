//! The policy networks that a sampler runs between environment steps, without Python or torch.

pub mod distribution;
pub mod head;
mod kernels;
pub mod mlp;
pub mod normalizer;
pub mod rng;

pub use head::{Epsilon, Head, Value};
pub use mlp::{Activation, Mlp, MlpSpec};
use normalizer::Normalizer;
pub use rng::Rng;

use crate::error::{Error, Result};

/// What a policy is made from.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Length of one observation.
    pub obs_dim: usize,
    /// Length of one action.
    pub action_dim: usize,
    /// Outputs of each hidden layer.
    pub hidden: Vec<usize>,
    /// After each hidden layer.
    pub activation: Activation,
    /// As in [`MlpSpec`].
    pub layer_norm: bool,
    /// What the outputs mean.
    pub head: Head,
    /// Whether it values observations too.
    pub value: Value,
    /// Observations are normalised by two tensors of its parameters, and clipped to so many deviations.
    pub obs_clip: Option<f32>,
}

/// Where the actions of some rows go, as the head has them: [rows, action_dim].
#[derive(Debug)]
pub enum Actions<'a> {
    /// Real numbers.
    Reals(&'a mut [f32]),
    /// An index for each component.
    Choices(&'a mut [i64]),
}

/// What is wanted beside the actions: [rows] each.
#[derive(Debug, Default)]
pub struct Extras<'a> {
    /// Log-density or log-probability of the actions; NaN for a head without one.
    pub log_prob: Option<&'a mut [f32]>,
    /// Value of the observations; only of a policy that has one.
    pub value: Option<&'a mut [f32]>,
}

/// Where in a run actions are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Part of the run that is done, 0 to 1.
    pub progress: f64,
    /// No exploration.
    pub deterministic: bool,
    /// Of each row's environment among all, 0 to 1 ([rows], or empty: all 0); see [`Epsilon`].
    pub ranks: &'a [f32],
}

/// An actor: networks, head and random stream.
#[derive(Debug)]
pub struct Policy {
    actor: Mlp,
    log_std: Vec<f32>,
    critic: Option<Mlp>,
    normalizer: Option<Normalizer>,
    head: Head,
    value: Value,
    action_dim: usize,
    rng: Rng,
}

impl Policy {
    /// An actor whose parameters are all zero.
    ///
    /// # Panics
    /// When a size is zero.
    #[must_use]
    pub fn new(spec: Spec, rng: Rng) -> Self {
        let Spec { obs_dim, action_dim, hidden, activation, layer_norm, head, value, obs_clip } = spec;
        let network =
            |output| Mlp::new(MlpSpec { input: obs_dim, hidden: hidden.clone(), output, activation, layer_norm });
        Self {
            actor: network(head.outputs(action_dim) + usize::from(value == Value::Shared)),
            log_std: vec![0.0; head.log_stds(action_dim)],
            critic: (value == Value::Separate).then(|| network(1)),
            normalizer: obs_clip.map(|clip| Normalizer::new(obs_dim, clip)),
            head,
            value,
            action_dim,
            rng,
        }
    }

    /// Length of one observation.
    #[must_use]
    pub fn obs_dim(&self) -> usize {
        self.actor.spec().input
    }

    /// Length of one action.
    #[must_use]
    pub fn action_dim(&self) -> usize {
        self.action_dim
    }

    /// What the network's outputs mean.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Whether it values observations too.
    #[must_use]
    pub fn value(&self) -> Value {
        self.value
    }

    /// (name, shape) of each float32 parameter in the order of [`Policy::load`].
    #[must_use]
    pub fn manifest(&self) -> Vec<(String, Vec<usize>)> {
        let mut tensors = Vec::new();
        if !self.log_std.is_empty() {
            tensors.push(("actor.log_std".to_owned(), vec![self.log_std.len()]));
        }
        tensors.extend(self.actor.spec().manifest("actor"));
        if let Some(critic) = &self.critic {
            tensors.extend(critic.spec().manifest("critic"));
        }
        if self.normalizer.is_some() {
            tensors.extend(Normalizer::manifest(self.obs_dim()));
        }
        tensors
    }

    /// Bytes of one set of parameters.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        let critic = self.critic.as_ref().map_or(0, |critic| critic.spec().parameters());
        4 * (self.actor.spec().parameters() + self.log_std.len() + critic + self.statistics())
    }

    /// Numbers that observations are normalised by.
    fn statistics(&self) -> usize {
        if self.normalizer.is_some() { 2 * self.obs_dim() } else { 0 }
    }

    /// Take parameters: float32, little endian, packed in manifest order.
    ///
    /// # Panics
    /// When `bytes` is not [`Policy::nbytes`] long.
    pub fn load(&mut self, bytes: &[u8]) {
        let (log_std, rest) = bytes.split_at(4 * self.log_std.len());
        let (actor, rest) = rest.split_at(4 * self.actor.spec().parameters());
        let (critic, statistics) = rest.split_at(rest.len() - 4 * self.statistics());
        self.actor.load(actor);
        for (value, bytes) in self.log_std.iter_mut().zip(log_std.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        match &mut self.critic {
            Some(network) => network.load(critic),
            None => assert!(critic.is_empty()),
        }
        if let Some(normalizer) = &mut self.normalizer {
            normalizer.load(statistics);
        }
    }

    /// The random stream of [`Policy::act`] and [`Policy::uniform`].
    pub fn rng_mut(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Choose actions for `obs` [rows, obs_dim].
    ///
    /// An error where the outputs of an observation make no choice, because they are not finite. Real actions that are
    /// not finite are passed on.
    ///
    /// # Panics
    /// When the lengths, or the kind of `actions` and the head, do not fit together.
    pub fn act(&mut self, obs: &[f32], mut actions: Actions<'_>, extras: Extras<'_>, moment: Moment<'_>) -> Result<()> {
        let rows = obs.len() / self.obs_dim();
        let width = self.action_dim;
        let Extras { mut log_prob, mut value } = extras;
        let Self { actor, log_std, critic, normalizer, head, rng, .. } = self;
        let obs = normalizer.as_mut().map_or(obs, |normalizer| normalizer.apply(obs));
        let outputs_of_head = head.outputs(width);
        let mut failed = None;
        actor.forward(obs, rows, |row, outputs| {
            let (outputs, shared) = outputs.split_at(outputs_of_head);
            if let (Some(value), &[of_row]) = (&mut value, shared) {
                value[row] = of_row;
            }
            let rng = (!moment.deterministic).then_some(&mut *rng);
            let of_row = row * width..(row + 1) * width;
            let of_actions = match (&*head, &mut actions) {
                (Head::SquashedGaussian, Actions::Reals(actions)) => {
                    distribution::squashed_gaussian(outputs, &mut actions[of_row], rng)
                }
                (Head::Deterministic { noise }, Actions::Reals(actions)) => {
                    distribution::deterministic(outputs, &mut actions[of_row], *noise, rng);
                    f32::NAN
                }
                (Head::Gaussian, Actions::Reals(actions)) => {
                    distribution::gaussian(outputs, log_std, &mut actions[of_row], rng)
                }
                (Head::Categorical { choices }, Actions::Choices(actions)) => {
                    let drawn = distribution::categorical(outputs, choices, &mut actions[of_row], rng);
                    drawn.unwrap_or_else(|| {
                        failed.get_or_insert(row);
                        f32::NAN
                    })
                }
                (Head::EpsilonGreedy { choices, epsilon }, Actions::Choices(actions)) => {
                    let epsilon = epsilon.at(moment.progress, moment.ranks.get(row).copied().unwrap_or(0.0));
                    if distribution::epsilon_greedy(outputs, choices, &mut actions[of_row], epsilon, rng).is_none() {
                        failed.get_or_insert(row);
                    }
                    f32::NAN
                }
                (head, actions) => panic!("{head:?} with {actions:?}"),
            };
            if let Some(log_prob) = &mut log_prob {
                log_prob[row] = of_actions;
            }
        });
        if let (Some(value), Some(critic)) = (value, critic) {
            critic.forward(obs, rows, |row, outputs| value[row] = outputs[0]);
        }
        failed.map_or(Ok(()), |row| Err(Error::NoChoice { row }))
    }

    /// Uniform actions for the warm-up: in [-1, 1), or any choice.
    ///
    /// # Panics
    /// When the kind of `actions` and the head do not fit together.
    pub fn uniform(&mut self, actions: Actions<'_>) {
        match (actions, self.head.choices()) {
            (Actions::Reals(actions), None) => actions.fill_with(|| self.rng.symmetric()),
            (Actions::Choices(actions), Some(choices)) => {
                for (action, &count) in actions.iter_mut().zip(choices.iter().cycle()) {
                    *action = self.rng.below(count as u64) as i64;
                }
            }
            (actions, _) => panic!("{:?} with {actions:?}", self.head),
        }
    }
}

#[cfg(test)]
mod tests;
