//! From the outputs of a policy's head to actions and their log-probabilities.

use super::rng::Rng;

/// Bounds of the log standard deviation of [`squashed_gaussian`], as in SB3 and in the code of Haarnoja et al. (2018).
pub const LOG_STD_RANGE: (f32, f32) = (-20.0, 2.0);

const HALF_LN_TAU: f32 = 0.918_938_5; // ln(2 pi) / 2

/// One draw of tanh(Normal(mean, exp(log_std))) for one observation (Haarnoja et al. 2018, appendix C).
///
/// `head` holds the means, then as many log standard deviations, which are clamped to [`LOG_STD_RANGE`]. `rng` is
/// `None` for the deterministic action tanh(mean). Returns the log-density of the action, summed over its dimensions.
///
/// # Panics
/// When `head` is not twice as long as `action`.
pub fn squashed_gaussian(head: &[f32], action: &mut [f32], rng: Option<&mut Rng>) -> f32 {
    assert_eq!(head.len(), 2 * action.len());
    let (means, log_stds) = head.split_at(action.len());
    let Some(rng) = rng else {
        let mut log_prob = 0.0;
        for ((action, &mean), &log_std) in action.iter_mut().zip(means).zip(log_stds) {
            *action = mean.tanh();
            log_prob -= clamp_log_std(log_std) + HALF_LN_TAU + log_tanh_slope(mean);
        }
        return log_prob;
    };
    let mut log_prob = 0.0;
    for ((action, &mean), &log_std) in action.iter_mut().zip(means).zip(log_stds) {
        let log_std = clamp_log_std(log_std);
        let noise = rng.normal() as f32;
        let pre_tanh = mean + log_std.exp() * noise;
        *action = pre_tanh.tanh();
        log_prob -= 0.5 * noise * noise + log_std + HALF_LN_TAU + log_tanh_slope(pre_tanh);
    }
    log_prob
}

/// tanh(head) for one observation; with `rng` plus Gaussian noise of standard deviation `noise`, clipped to [-1, 1]
/// (Fujimoto et al. 2018, algorithm 1).
///
/// # Panics
/// When `head` and `action` differ in length.
pub fn deterministic(head: &[f32], action: &mut [f32], noise: f32, mut rng: Option<&mut Rng>) {
    assert_eq!(head.len(), action.len());
    for (action, &output) in action.iter_mut().zip(head) {
        *action = output.tanh();
        if let Some(rng) = &mut rng {
            *action = (*action + noise * rng.normal() as f32).clamp(-1.0, 1.0);
        }
    }
}

/// One draw of Normal(mean, exp(log_std)) for one observation. `rng` is `None` for the mean. Returns the log-density of
/// the action as it is stored, summed over its dimensions.
///
/// # Panics
/// When the lengths differ.
pub fn gaussian(means: &[f32], log_stds: &[f32], action: &mut [f32], mut rng: Option<&mut Rng>) -> f32 {
    assert!(means.len() == action.len() && log_stds.len() == action.len());
    let mut log_prob = 0.0;
    for ((action, &mean), &log_std) in action.iter_mut().zip(means).zip(log_stds) {
        let std = log_std.exp();
        *action = rng.as_mut().map_or(mean, |rng| mean + std * rng.normal() as f32);
        // Of the rounded action: a learner that reads it again finds the same.
        let distance = (*action - mean) / std;
        log_prob -= 0.5 * distance * distance + log_std + HALF_LN_TAU;
    }
    log_prob
}

/// One draw for each component with probabilities softmax(logits). `rng` is `None` for the most likely choice, the
/// first of equals. Returns the log-probability, summed over the components; `None` where logits are not finite.
///
/// # Panics
/// When the lengths do not fit together.
pub fn categorical(logits: &[f32], choices: &[usize], action: &mut [i64], mut rng: Option<&mut Rng>) -> Option<f32> {
    let mut log_prob = 0.0;
    for (logits, action) in components(logits, choices).zip(action) {
        let best = first_of_highest(logits)?;
        let most = logits[best];
        let weights = logits.iter().map(|&logit| f64::from((logit - most).exp()));
        let total: f64 = weights.clone().sum();
        if !total.is_finite() {
            return None;
        }
        let chosen = rng.as_mut().map_or(best, |rng| {
            let mut left = rng.uniform() * total;
            let found = weights.clone().position(|weight| {
                left -= weight;
                left < 0.0
            });
            found.unwrap_or(best) // only rounding comes here
        });
        *action = chosen as i64;
        log_prob += logits[chosen] - most - total.ln() as f32;
    }
    Some(log_prob)
}

/// The choice of highest value of each component, the first of equals; with `rng` and probability `epsilon` uniform
/// ones of all components at once. `None` where a value is not a number.
///
/// # Panics
/// When the lengths do not fit together.
pub fn epsilon_greedy(
    values: &[f32],
    choices: &[usize],
    action: &mut [i64],
    epsilon: f64,
    rng: Option<&mut Rng>,
) -> Option<()> {
    for (values, action) in components(values, choices).zip(&mut *action) {
        *action = first_of_highest(values)? as i64;
    }
    if let Some(rng) = rng
        && rng.uniform() < epsilon
    {
        for (action, &count) in action.iter_mut().zip(choices) {
            *action = rng.below(count as u64) as i64;
        }
    }
    Some(())
}

/// The outputs of each component.
fn components<'a>(outputs: &'a [f32], choices: &'a [usize]) -> impl Iterator<Item = &'a [f32]> {
    let mut rest = outputs;
    choices.iter().map(move |&count| {
        let (component, others) = rest.split_at(count);
        rest = others;
        component
    })
}

/// `None` where a value is not a number.
fn first_of_highest(values: &[f32]) -> Option<usize> {
    let mut best = 0;
    for (i, &value) in values.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if value > values[best] {
            best = i;
        }
    }
    Some(best)
}

fn clamp_log_std(log_std: f32) -> f32 {
    log_std.clamp(LOG_STD_RANGE.0, LOG_STD_RANGE.1)
}

/// log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)): stable where tanh rounds to one.
fn log_tanh_slope(u: f32) -> f32 {
    2.0 * (std::f32::consts::LN_2 - u - softplus(-2.0 * u))
}

fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_agrees_with_float64_and_stays_finite() {
        for u in [-3.0_f32, -0.5, 0.0, 0.1, 2.5] {
            let exact = (1.0 - f64::from(u).tanh().powi(2)).ln();
            assert!((f64::from(log_tanh_slope(u)) - exact).abs() < 1e-5, "{u}");
        }
        // Far out 1 - tanh^2 underflows; the logarithm is 2 log 2 - 2 |u|.
        for u in [30.0_f32, -30.0, 100.0] {
            let exact = 2.0 * (std::f32::consts::LN_2 - u.abs());
            assert!((log_tanh_slope(u) - exact).abs() < 1e-4, "{u}");
        }
    }

    #[test]
    fn log_std_is_clamped() {
        let mut rng = Rng::new([1, 2, 3, 4]);
        let mut action = [0.0];
        squashed_gaussian(&[0.3, -1e9], &mut action, Some(&mut rng));
        assert!((action[0] - 0.3_f32.tanh()).abs() < 1e-6);
        let log_prob = squashed_gaussian(&[0.0, 50.0], &mut action, None);
        assert!((log_prob - (-2.0 - HALF_LN_TAU)).abs() < 1e-5);
    }

    #[test]
    fn density_integrates_to_one() {
        // The mean of 1 / density over draws is the length of the support, 2, for a density that fills it.
        let mut rng = Rng::new([4, 3, 2, 1]);
        let (mut sum, n) = (0.0, 400_000);
        for _ in 0..n {
            let mut action = [0.0];
            sum += (-f64::from(squashed_gaussian(&[0.2, -0.2], &mut action, Some(&mut rng)))).exp();
        }
        assert!((sum / f64::from(n) - 2.0).abs() < 0.05, "{}", sum / f64::from(n));
    }

    #[test]
    fn exploration_noise_has_its_deviation_and_is_clipped() {
        let mut rng = Rng::new([5, 6, 7, 8]);
        let (mut sum, mut squares, n) = (0.0, 0.0, 100_000);
        let mut action = [0.0, 0.0];
        for _ in 0..n {
            deterministic(&[0.3, 9.0], &mut action, 0.1, Some(&mut rng));
            let noise = f64::from(action[0]) - 0.3_f64.tanh();
            sum += noise;
            squares += noise * noise;
            assert!(action[1] <= 1.0 && action[1] > 0.3);
        }
        let n = f64::from(n);
        assert!((sum / n).abs() < 0.002, "mean {}", sum / n);
        assert!(((squares / n).sqrt() - 0.1).abs() < 0.001, "deviation {}", (squares / n).sqrt());
        deterministic(&[0.3, -0.3], &mut action, 0.1, None);
        assert_eq!(action, [0.3_f32.tanh(), -0.3_f32.tanh()]);
    }

    #[test]
    fn a_gaussian_has_its_moments_and_density() {
        let mut rng = Rng::new([5, 6, 7, 8]);
        let (mut sum, mut squares, mut log_probs, n) = (0.0, 0.0, 0.0, 200_000);
        let mut action = [0.0];
        for _ in 0..n {
            log_probs += f64::from(gaussian(&[1.5], &[-0.7], &mut action, Some(&mut rng)));
            let noise = f64::from(action[0]) - 1.5;
            sum += noise;
            squares += noise * noise;
        }
        let n = f64::from(n);
        assert!((sum / n).abs() < 0.005, "mean {}", sum / n);
        assert!(((squares / n).sqrt() - (-0.7_f64).exp()).abs() < 0.005, "deviation {}", (squares / n).sqrt());
        let entropy = 0.5 - 0.7 + f64::from(HALF_LN_TAU);
        assert!((log_probs / n + entropy).abs() < 0.01, "entropy {}", -log_probs / n);
        assert!((gaussian(&[1.5], &[-0.7], &mut action, None) - (0.7 - HALF_LN_TAU)).abs() < 1e-6);
        assert_eq!(action, [1.5]);
    }

    #[test]
    fn choices_are_drawn_as_often_as_they_are_likely() {
        let mut rng = Rng::new([5, 6, 7, 8]);
        let logits = [0.5_f32, -1.0, 2.0, 30.0, 30.0];
        let mut action = [0_i64; 2];
        let mut counts = [0; 3];
        let n = 100_000;
        for _ in 0..n {
            let log_prob = categorical(&logits, &[3, 2], &mut action, Some(&mut rng)).unwrap();
            counts[action[0] as usize] += 1;
            let of_first = logits[action[0] as usize] - logits[..3].iter().map(|v| v.exp()).sum::<f32>().ln();
            assert!((log_prob - of_first - 0.5_f32.ln()).abs() < 1e-5);
            assert!((0..2).contains(&action[1]));
        }
        let total: f64 = logits[..3].iter().map(|&v| f64::from(v).exp()).sum();
        for (count, &logit) in counts.iter().zip(&logits) {
            let expected = f64::from(logit).exp() / total;
            assert!((f64::from(*count) / f64::from(n) - expected).abs() < 0.006, "{counts:?}");
        }
        categorical(&logits, &[3, 2], &mut action, None).unwrap();
        assert_eq!(action, [2, 0]);
    }

    #[test]
    fn the_highest_value_is_chosen_but_for_epsilon() {
        let mut rng = Rng::new([5, 6, 7, 8]);
        let values = [0.5, 2.0, 2.0, -1.0, -3.0];
        let mut action = [0_i64; 2];
        let (mut others, n) = (0, 100_000);
        for _ in 0..n {
            epsilon_greedy(&values, &[3, 2], &mut action, 0.3, Some(&mut rng)).unwrap();
            others += i32::from(action != [1, 0]);
        }
        assert!((f64::from(others) / f64::from(n) - 0.3 * 5.0 / 6.0).abs() < 0.006);
        epsilon_greedy(&values, &[3, 2], &mut action, 1.0, None).unwrap();
        assert_eq!(action, [1, 0]);
    }

    #[test]
    fn not_a_number_is_passed_on() {
        let mut choice = [0];
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(categorical(&[0.0, bad], &[2], &mut choice, Some(&mut Rng::new([1; 4]))).is_none());
        }
        assert!(epsilon_greedy(&[0.0, f32::NAN], &[2], &mut choice, 0.1, None).is_none());
        let mut action = [0.0];
        squashed_gaussian(&[f32::NAN, 0.0], &mut action, None);
        assert!(action[0].is_nan());
        deterministic(&[f32::NAN], &mut action, 0.1, Some(&mut Rng::new([1; 4])));
        assert!(action[0].is_nan());
    }
}
