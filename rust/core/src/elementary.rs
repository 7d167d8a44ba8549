//! exp and tanh as loops vectorise them, and the product that is one instruction where there is one.

/// Whether `mul_add` is one instruction of the baseline; elsewhere it would be a library call.
pub(crate) const BASELINE_FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

#[inline(always)]
pub(crate) fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// exp, within 2 units in the last place; vectorises, unlike the library call. (Cephes, expf.)
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = multiply_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<FMA>(n, -LN_2_LOW, multiply_add::<FMA>(n, -LN_2_HIGH, x));
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = multiply_add::<FMA>(p, r, coefficient);
    }
    let mantissa = multiply_add::<FMA>(p, r * r, r) + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    mantissa * power
}

/// tanh, within 3 units in the last place; vectorises. (Cephes, tanhf.)
#[inline(always)]
pub(crate) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let z = x * x;
    let mut p = -5.704_988_7e-3;
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = multiply_add::<FMA>(p, z, coefficient);
    }
    let near = multiply_add::<FMA>(p * z, x, x);
    let far = (1.0 - 2.0 / (exp::<FMA>(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_tanh_agree_with_float64() {
        for i in -400_000..=400_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            for value in [exp::<true>(x), exp::<false>(x)] {
                assert!((f64::from(value) - exact).abs() <= 2.5e-7 * exact, "exp({x}) = {value}");
            }
            let exact = f64::from(x).tanh();
            for value in [tanh::<true>(x), tanh::<false>(x)] {
                assert!((f64::from(value) - exact).abs() <= 3e-7 * exact.abs(), "tanh({x}) = {value}");
            }
        }
        assert!(exp::<true>(-1000.0) < 1e-37 && exp::<true>(1000.0).is_finite());
        assert_eq!((tanh::<true>(1000.0), tanh::<true>(-1000.0)), (1.0, -1.0));
        assert!(exp::<true>(f32::NAN).is_nan() && tanh::<true>(f32::NAN).is_nan());
    }
}
