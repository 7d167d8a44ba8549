//! From the outputs of a policy's head to actions and their log-probabilities.

use super::rng::Rng;

/// Bounds of the log standard deviation of [`squashed_gaussian`], as in SB3 and the SAC authors' code.
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
    fn not_a_number_is_passed_on() {
        let mut action = [0.0];
        squashed_gaussian(&[f32::NAN, 0.0], &mut action, None);
        assert!(action[0].is_nan());
        deterministic(&[f32::NAN], &mut action, 0.1, Some(&mut Rng::new([1; 4])));
        assert!(action[0].is_nan());
    }
}
