//! What the outputs of a policy network mean, and what else the network gives.

use crate::error::{Error, Result};

/// What the outputs of a policy network mean.
#[derive(Clone, Debug, PartialEq)]
pub enum Head {
    /// Means, then log standard deviations, of a Gaussian that tanh squashes into [-1, 1].
    SquashedGaussian,
    /// Actions before tanh. Exploration adds Gaussian noise behind it and clips to [-1, 1].
    Deterministic {
        /// Standard deviation of the noise.
        noise: f32,
    },
    /// Means of a Gaussian whose log standard deviations are parameters of their own. Its actions are not bounded:
    /// whoever plays one clips it, and its density is that of the action before.
    Gaussian,
    /// Logits of all choices of every component, side by side.
    Categorical {
        /// Number of choices of each component.
        choices: Vec<usize>,
    },
    /// Values of all choices of every component, side by side; the highest is chosen, or with probability epsilon any.
    EpsilonGreedy {
        /// Number of choices of each component.
        choices: Vec<usize>,
        /// The probability.
        epsilon: Epsilon,
    },
}

/// Probability of a uniform choice: linear in the progress of a run, and smaller by a power for higher ranks.
///
/// (Mnih et al. 2015; Horgan et al. 2018, arXiv 1803.00933, section 4.1: 0.4^(1 + 7 i / (n - 1)) for actor i of n is
/// `start` = `end` = 0.4 and `spread` = 7.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epsilon {
    /// At the beginning of a run.
    pub start: f64,
    /// When it has fallen.
    pub end: f64,
    /// Part of the run during which it falls, 0 to 1.
    pub over: f64,
    /// What a rank of 1 adds to the power 1 that it is raised to.
    pub spread: f64,
}

impl Epsilon {
    /// At a part of the run (0 to 1), for an environment of rank 0 to 1 among all.
    #[must_use]
    pub fn at(&self, progress: f64, rank: f32) -> f64 {
        let done = if self.over == 0.0 { 1.0 } else { (progress / self.over).min(1.0) };
        let linear = (1.0 - done) * self.start + done * self.end;
        if self.spread == 0.0 { linear } else { linear.powf(1.0 + self.spread * f64::from(rank)) }
    }

    fn check(&self) -> Result<()> {
        for (what, value) in [("epsilon start", self.start), ("epsilon end", self.end), ("epsilon over", self.over)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::invalid(what, value, "0 to 1"));
            }
        }
        if !(self.spread.is_finite() && self.spread >= 0.0) {
            return Err(Error::invalid("epsilon spread", self.spread, "at least 0"));
        }
        Ok(())
    }
}

impl Head {
    /// Every name that [`Head::parse`] knows.
    pub const NAMES: [&str; 5] = ["squashed_gaussian", "deterministic", "gaussian", "categorical", "epsilon_greedy"];

    /// The head with this name. What another head needs (`noise` above 0, `choices`, `epsilon`) has to be left out.
    pub fn parse(name: &str, noise: f32, choices: &[usize], epsilon: Option<Epsilon>) -> Result<Self> {
        if !noise.is_finite() || noise < 0.0 {
            return Err(Error::invalid("exploration_noise", noise, "at least 0"));
        }
        let named = choices.to_vec();
        let head = match (name, epsilon) {
            ("squashed_gaussian", _) => Self::SquashedGaussian,
            ("deterministic", _) => Self::Deterministic { noise },
            ("gaussian", _) => Self::Gaussian,
            ("categorical", _) => Self::Categorical { choices: named },
            ("epsilon_greedy", Some(epsilon)) => Self::EpsilonGreedy { choices: named, epsilon },
            ("epsilon_greedy", None) => {
                return Err(Error::invalid("epsilon", "nothing", "start, end, over and spread for this head"));
            }
            _ => return Err(Error::invalid("head", format!("{name:?}"), format!("one of {}", Self::NAMES.join(", ")))),
        };
        if noise > 0.0 && !matches!(head, Self::Deterministic { .. }) {
            let expected = format!("0 for the head {name}, which explores by itself");
            return Err(Error::invalid("exploration_noise", noise, expected));
        }
        match &head {
            Self::EpsilonGreedy { epsilon, .. } => epsilon.check()?,
            _ if epsilon.is_some() => {
                return Err(Error::invalid("epsilon", "one", format!("none for the head {name}")));
            }
            _ => {}
        }
        let known = format!("{choices:?}");
        match head.choices() {
            Some(choices) if choices.is_empty() || choices.contains(&0) => {
                let expected = format!("the number of choices of each component for the head {name}, each at least 1");
                Err(Error::invalid("choices", known, expected))
            }
            None if !choices.is_empty() => Err(Error::invalid(
                "choices",
                known,
                format!("none for the head {name}, whose actions are real numbers"),
            )),
            _ => Ok(head),
        }
    }

    /// Number of choices of each component; `None` where actions are real numbers.
    #[must_use]
    pub fn choices(&self) -> Option<&[usize]> {
        match self {
            Self::Categorical { choices } | Self::EpsilonGreedy { choices, .. } => Some(choices),
            _ => None,
        }
    }

    /// Network outputs that `action_dim` actions need.
    #[must_use]
    pub fn outputs(&self, action_dim: usize) -> usize {
        match self {
            Self::SquashedGaussian => 2 * action_dim,
            Self::Deterministic { .. } | Self::Gaussian => action_dim,
            Self::Categorical { choices } | Self::EpsilonGreedy { choices, .. } => choices.iter().sum(),
        }
    }

    /// Log standard deviations that are parameters of their own.
    #[must_use]
    pub fn log_stds(&self, action_dim: usize) -> usize {
        if *self == Self::Gaussian { action_dim } else { 0 }
    }

    /// Whether its actions have a density or probability.
    #[must_use]
    pub fn has_log_prob(&self) -> bool {
        matches!(self, Self::SquashedGaussian | Self::Gaussian | Self::Categorical { .. })
    }
}

/// Where a policy's estimate of the value of an observation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// It has none.
    None,
    /// One more output of the actor's network, the last.
    Shared,
    /// A network of its own with the actor's hidden layers and one output.
    Separate,
}

impl Value {
    /// Every name that [`Value::parse`] knows.
    pub const NAMES: [&str; 3] = ["none", "shared", "separate"];

    /// The kind with this name.
    pub fn parse(name: &str) -> Result<Self> {
        Ok(match name {
            "none" => Self::None,
            "shared" => Self::Shared,
            "separate" => Self::Separate,
            _ => {
                return Err(Error::invalid("value", format!("{name:?}"), format!("one of {}", Self::NAMES.join(", "))));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epsilon_is_linear_in_progress_and_a_ladder_over_ranks() {
        let epsilon = Epsilon { start: 1.0, end: 0.1, over: 0.5, spread: 0.0 };
        for (progress, expected) in [(0.0, 1.0), (0.25, 0.55), (0.5, 0.1), (1.0, 0.1)] {
            assert!((epsilon.at(progress, 0.7) - expected).abs() < 1e-12);
        }
        assert_eq!(Epsilon { over: 0.0, ..epsilon }.at(0.0, 0.0), 0.1);
        let ladder = Epsilon { start: 0.4, end: 0.4, over: 0.0, spread: 7.0 };
        for (rank, power) in [(0.0, 1), (0.5, 9), (1.0, 8)] {
            let expected = if power == 9 { 0.4_f64.powf(4.5) } else { 0.4_f64.powi(power) };
            assert!((ladder.at(0.3, rank) - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn options_of_another_head_are_refused() {
        let epsilon = Epsilon { start: 1.0, end: 0.1, over: 0.5, spread: 0.0 };
        let wrong = [
            Head::parse("gaussian", 0.1, &[], None),
            Head::parse("gaussian", 0.0, &[2], None),
            Head::parse("categorical", 0.0, &[], None),
            Head::parse("categorical", 0.0, &[2, 0], None),
            Head::parse("categorical", 0.0, &[2], Some(epsilon)),
            Head::parse("epsilon_greedy", 0.0, &[2], None),
            Head::parse("epsilon_greedy", 0.0, &[2], Some(Epsilon { start: 1.5, ..epsilon })),
            Head::parse("epsilon_greedy", 0.0, &[2], Some(Epsilon { spread: f64::NAN, ..epsilon })),
            Head::parse("beta", 0.0, &[], None),
        ];
        assert!(wrong.iter().all(Result::is_err), "{wrong:?}");
        assert_eq!(Head::parse("categorical", 0.0, &[2, 3], None).unwrap().outputs(2), 5);
    }
}
