//! Who may go on: the replay ratio in whole numbers.
//!
//! The line is `ratio x max(0, steps - learning_starts)` updates. With `c` step indices granted, `u` updates completed
//! and `s` the slack:
//!
//! - step index `c` may be granted iff `c < total` and `ratio x max(0, c + 1 - learning_starts) - u <= s`. Granted and
//!   not completed, so the bound holds whatever becomes of the steps that are out;
//! - update `u + 1` (granted ones counted) may be granted iff `u + 1 - ratio x (steps - learning_starts) <= s` for
//!   *completed* steps, at least one row exists, and `u + 1 <= target`.
//!
//! **No deadlock** for any ratio and number of lanes if `s >= max(1, ratio)`, which is required. Suppose all granted
//! steps are completed, `c < total`, and neither side may go on. The step was refused, so `ratio x max(0, c + 1 - ls) >
//! u + s`, hence `c >= ls`. The update was refused for one of:
//! 1. no step yet: `c = ls = 0`, but then `ratio x 1 > u + s >= ratio`, a contradiction;
//! 2. too far ahead: `u + 1 > ratio x (c - ls) + s`. But `u < ratio x (c - ls) + ratio - s <= ratio x (c - ls)`, so
//!    `u + 1 < ratio x (c - ls) + 1 <= ratio x (c - ls) + s`, a contradiction;
//! 3. target reached: `u >= target`. But `ratio x (c + 1 - ls) <= ratio x (total - ls) < target + 1 <= u + s`, a
//!    contradiction.
//!
//! With `c = total` and all completed, updates are refused only at the target: the learner drains to it exactly. A step
//! that is out and not completed can only delay this until its lane, or the lane's successor, completes it. Nothing in
//! the argument needs the bound to hold at first, so a run may be resumed with another ratio.

use crate::error::{Error, Result};

/// Largest count of steps or updates: 47 bits, so that a count fits into a state word (and 140 million million is
/// plenty).
pub const MAX_COUNT: u64 = (1 << 47) - 2;

/// Largest numerator and denominator, so that no product overflows `i128`.
const MAX_TERM: u64 = 1 << 53;

/// Replay ratio, slack and length of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    total: u64,
    learning_starts: u64,
    /// Updates per step as a fraction; None: free.
    ratio: Option<(u64, u64)>,
    /// Slack in updates, times the denominator, rounded down.
    slack: u64,
}

impl Rule {
    /// `ratio` = (numerator, denominator) of updates per env step, None for free; `slack` in updates.
    pub fn new(total_timesteps: u64, learning_starts: u64, ratio: Option<(u64, u64)>, slack: f64) -> Result<Self> {
        let Some((numerator, denominator)) = ratio else {
            return Self::checked(total_timesteps, learning_starts, None, 0);
        };
        if !(1..=MAX_TERM).contains(&numerator) || !(1..=MAX_TERM).contains(&denominator) {
            return Err(Error::invalid(
                "replay ratio",
                format!("{numerator}/{denominator}"),
                "a positive fraction with terms up to 2^53 (a ratio with fewer digits), or free",
            ));
        }
        // A slack that was computed as a float from the ratio must not fall below it by rounding.
        let scaled = (slack * denominator as f64 * (1.0 + 1e-12) + 1e-9).floor();
        let least = numerator.max(denominator);
        if scaled.is_nan() || scaled < least as f64 {
            return Err(Error::invalid(
                "ratio slack",
                slack,
                format!(
                    "at least max(1, replay ratio) = {}, or samplers and learner would wait for each other",
                    (least as f64) / (denominator as f64)
                ),
            ));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // at least 1, cut at the top
        let slack = scaled.min(2f64.powi(62)) as u64;
        Self::checked(total_timesteps, learning_starts, ratio, slack)
    }

    fn checked(total: u64, learning_starts: u64, ratio: Option<(u64, u64)>, slack: u64) -> Result<Self> {
        for (what, count) in [("total_timesteps", total), ("learning_starts", learning_starts)] {
            if count > MAX_COUNT {
                return Err(Error::invalid(what, count, format!("at most {MAX_COUNT}")));
            }
        }
        Ok(Self { total, learning_starts, ratio, slack })
    }

    pub(super) fn to_words(self) -> [u64; 5] {
        let (numerator, denominator) = self.ratio.unwrap_or((0, 0));
        [self.total, self.learning_starts, numerator, denominator, self.slack]
    }

    pub(super) fn from_words([total, learning_starts, numerator, denominator, slack]: [u64; 5]) -> Result<Self> {
        if (numerator, denominator, slack) == (0, 0, 0) {
            return Self::checked(total, learning_starts, None, 0);
        }
        let terms = 1..=MAX_TERM;
        let fits = terms.contains(&numerator) && terms.contains(&denominator);
        if !fits || slack < numerator.max(denominator) || slack > 1 << 62 {
            let given = format!("{numerator}/{denominator} with slack {slack}/{denominator}");
            return Err(Error::invalid("replay ratio", given, "a fraction and a slack of at least max(1, ratio)"));
        }
        Self::checked(total, learning_starts, Some((numerator, denominator)), slack)
    }

    /// Env steps of the whole run.
    #[must_use]
    pub fn total_timesteps(&self) -> u64 {
        self.total
    }

    /// Env steps at which the line begins.
    #[must_use]
    pub fn learning_starts(&self) -> u64 {
        self.learning_starts
    }

    /// Updates of the whole run, None when free.
    #[must_use]
    pub fn target_updates(&self) -> Option<u64> {
        let (numerator, denominator) = self.ratio?;
        let line = u128::from(numerator) * u128::from(self.total.saturating_sub(self.learning_starts));
        Some(u64::try_from(line / u128::from(denominator)).unwrap_or(u64::MAX))
    }

    /// Whether step index `index` may be granted with `updates` completed.
    #[must_use]
    pub fn may_step(&self, index: u64, updates: u64) -> bool {
        let Some((numerator, denominator)) = self.ratio else { return index < self.total };
        let line = i128::from(numerator) * i128::from((index + 1).saturating_sub(self.learning_starts));
        index < self.total && line - i128::from(updates) * i128::from(denominator) <= i128::from(self.slack)
    }

    /// How many indices from `index` on may be granted with `updates` completed: [`Rule::may_step`] holds for them.
    #[must_use]
    pub fn steps_allowed(&self, index: u64, updates: u64) -> u64 {
        let Some((numerator, denominator)) = self.ratio else { return self.total.saturating_sub(index) };
        let ahead = (u128::from(self.slack) + u128::from(updates) * u128::from(denominator)) / u128::from(numerator);
        let end = u64::try_from(ahead).unwrap_or(u64::MAX).saturating_add(self.learning_starts).min(self.total);
        end.saturating_sub(index)
    }

    /// How many more updates may be granted, with `updates` granted and `steps` completed.
    #[must_use]
    pub fn updates_allowed(&self, updates: u64, steps: u64) -> u64 {
        let Some((numerator, denominator)) = self.ratio else {
            let open = steps > self.learning_starts && steps < self.total;
            return if open { u64::MAX } else { 0 };
        };
        if steps < self.learning_starts.max(1) {
            return 0;
        }
        let line = i128::from(numerator) * i128::from(steps - self.learning_starts);
        let most = (line + i128::from(self.slack)) / i128::from(denominator);
        let most = most.min(i128::from(self.target_updates().unwrap_or(u64::MAX)));
        u64::try_from(most - i128::from(updates)).unwrap_or(0)
    }

    /// Fewest completed steps at which [`Rule::updates_allowed`] is not 0 or [`Rule::no_more_updates`] holds.
    #[must_use]
    pub fn steps_needed(&self, updates: u64) -> u64 {
        let needed = match self.ratio {
            None => self.learning_starts + 1,
            Some(_) if self.target_updates().is_some_and(|target| updates >= target) => self.total,
            Some((numerator, denominator)) => {
                let ahead = (i128::from(updates) + 1) * i128::from(denominator) - i128::from(self.slack);
                let steps = (ahead.max(0) + i128::from(numerator) - 1) / i128::from(numerator); // rounded up
                u64::try_from(steps).unwrap_or(u64::MAX).saturating_add(self.learning_starts).max(1)
            }
        };
        needed.min(self.total)
    }

    /// Whether no update will be allowed any more.
    #[must_use]
    pub fn no_more_updates(&self, updates: u64, steps: u64) -> bool {
        steps >= self.total && self.updates_allowed(updates, steps) == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slack_is_checked() {
        let message = Rule::new(10, 0, Some((4, 1)), 3.0).unwrap_err().to_string();
        assert!(message.contains("max(1, replay ratio) = 4"), "{message}");
        for slack in [0.5, f64::NAN, -1.0] {
            assert!(Rule::new(10, 0, Some((1, 4)), slack).is_err(), "{slack}");
        }
        // Ratios that are no binary fractions, with the slack computed as a float.
        for (numerator, denominator) in [(4, 3), (10, 7), (1001, 1000), (1 << 53, (1 << 53) - 1)] {
            let slack = f64::max(1.0, numerator as f64 / denominator as f64);
            Rule::new(10, 0, Some((numerator, denominator)), slack).unwrap();
        }
        assert!(Rule::new(10, 0, Some((0, 1)), 1.0).is_err());
        assert!(Rule::new(10, 0, Some((1, 0)), 1.0).is_err());
        Rule::new(10, 0, Some((1, 1)), f64::INFINITY).unwrap();
        assert!(Rule::new(MAX_COUNT + 1, 0, None, 1.0).is_err());
    }

    #[test]
    fn words_round_trip() {
        for rule in [Rule::new(7, 3, None, 1.0).unwrap(), Rule::new(70, 3, Some((3, 7)), 2.5).unwrap()] {
            assert_eq!(Rule::from_words(rule.to_words()).unwrap(), rule);
        }
        assert!(Rule::from_words([7, 3, 1, 0, 1]).is_err());
        assert!(Rule::from_words([7, 3, 4, 1, 3]).is_err());
        assert!(Rule::from_words([u64::MAX, 3, 1, 1, 1]).is_err());
    }

    #[test]
    fn free_running() {
        let rule = Rule::new(10, 4, None, 0.0).unwrap();
        assert!(rule.may_step(9, 0) && !rule.may_step(10, 0));
        assert_eq!(rule.updates_allowed(0, 4), 0);
        assert_eq!(rule.updates_allowed(0, 5), u64::MAX);
        assert!(!rule.no_more_updates(0, 9));
        assert!(rule.no_more_updates(0, 10));
        assert_eq!(rule.target_updates(), None);
    }

    proptest! {
        #[test]
        fn allowed_steps_are_those_that_may_be_granted(
            total in 0u64..60, learning_starts in 0u64..70, ratio in prop::option::of((1u64..9, 1u64..9)),
            extra in 0.0f64..9.0, updates in 0u64..200, index in 0u64..70,
        ) {
            let slack = ratio.map_or(1.0, |(numerator, denominator)| f64::max(1.0, numerator as f64 / denominator as f64));
            let rule = Rule::new(total, learning_starts, ratio, slack + extra).unwrap();
            let allowed = (index..200).take_while(|index| rule.may_step(*index, updates)).count();
            prop_assert_eq!(rule.steps_allowed(index, updates), allowed as u64);
        }

        #[test]
        fn needed_steps_are_the_fewest(
            total in 0u64..60, learning_starts in 0u64..70, ratio in prop::option::of((1u64..9, 1u64..9)),
            extra in 0.0f64..4.0, updates in 0u64..200,
        ) {
            let slack = ratio.map_or(1.0, |(numerator, denominator)| f64::max(1.0, numerator as f64 / denominator as f64));
            let rule = Rule::new(total, learning_starts, ratio, slack + extra).unwrap();
            let needed = rule.steps_needed(updates);
            for steps in 0..=total {
                let due = rule.updates_allowed(updates, steps) > 0 || rule.no_more_updates(updates, steps);
                prop_assert_eq!(due, steps >= needed, "{} of {}", steps, needed);
            }
        }

        /// One side or the other may always go on, the distance keeps its bound, and the end is exact: for any choice
        /// of who goes first.
        #[test]
        fn bounded_and_free_of_deadlock(
            total in 0u64..60, learning_starts in 0u64..70, numerator in 1u64..9, denominator in 1u64..9,
            extra in 0.0f64..4.0, order in prop::collection::vec(any::<bool>(), 64), first in (0u64..20, 0u64..20),
            resumed in any::<bool>(),
        ) {
            let ratio = numerator as f64 / denominator as f64;
            let slack = ratio.max(1.0) + extra;
            let rule = Rule::new(total, learning_starts, Some((numerator, denominator)), slack).unwrap();
            let (mut steps, mut updates) = if resumed { first } else { (0, 0) };
            let mut turn = 0;
            loop {
                let may_step = rule.may_step(steps, updates);
                let may_update = rule.updates_allowed(updates, steps) > 0;
                if !may_step && !may_update {
                    break;
                }
                turn += 1;
                if may_step && (!may_update || order[turn % order.len()]) { steps += 1 } else { updates += 1 }
                if !resumed {
                    let line = ratio * steps.saturating_sub(learning_starts) as f64;
                    prop_assert!((updates as f64 - line).abs() <= slack + 1e-6, "{steps} {updates}");
                }
            }
            prop_assert!(rule.no_more_updates(updates, steps));
            if !resumed {
                prop_assert_eq!(steps, total);
                prop_assert_eq!(Some(updates), rule.target_updates());
            }
            prop_assert!(steps >= total);
        }
    }
}
