//! Registers of AVX2. The invariant of every `unsafe` here: it runs inside [`run`], on a processor with AVX2 and FMA.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256, _CMP_GT_OQ, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_ps, _mm_movehl_ps, _mm_shuffle_ps,
    _mm256_and_ps, _mm256_castps128_ps256, _mm256_castps256_ps128, _mm256_cmp_ps, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_insertf128_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::vector::{Kernel, Vector};

#[derive(Clone, Copy)]
pub(super) struct Lanes(__m256);

// SAFETY (all of them): the trait's contract is passed on to the instruction.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl Vector for Lanes {
    const LANES: usize = 8;
    const ROWS: usize = 6;
    const VECTORS: usize = 2;
    const FMA: bool = true;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { _mm256_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(unsafe { _mm256_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        Self(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // Of the two operands the instruction returns the second where one is NaN.
        Self(unsafe { _mm256_max_ps(_mm256_setzero_ps(), self.0) })
    }
    #[inline(always)]
    unsafe fn where_positive(self, sign: Self) -> Self {
        Self(unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(sign.0, _mm256_setzero_ps()), self.0) })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        unsafe {
            // Halves of two rows each, so that the rest stays within halves of registers.
            let pair = |row: usize, column: usize| {
                let low = _mm_loadu_ps(from.add(row * from_step + column));
                let high = _mm_loadu_ps(from.add((row + 4) * from_step + column));
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
            };
            for column in [0, 4] {
                let [a, b, c, d] = [pair(0, column), pair(1, column), pair(2, column), pair(3, column)];
                let [ab_low, ab_high] = [_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)];
                let [cd_low, cd_high] = [_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d)];
                let columns = [
                    _mm256_shuffle_ps::<0x44>(ab_low, cd_low),
                    _mm256_shuffle_ps::<0xee>(ab_low, cd_low),
                    _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
                    _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
                ];
                for (c, &values) in columns.iter().enumerate() {
                    _mm256_storeu_ps(to.add((column + c) * to_step), values);
                }
            }
        }
    }
}

/// # Safety
/// The processor has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the instructions are those of this function.
    unsafe { kernel.run::<Lanes>() }
}
