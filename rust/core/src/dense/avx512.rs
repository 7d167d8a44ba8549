//! Registers of AVX-512. The invariant of every `unsafe` here: it runs inside [`run`], on a processor with AVX-512 F.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512, _CMP_GT_OQ, _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps,
    _mm512_reduce_add_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::vector::{Kernel, Vector};

#[derive(Clone, Copy)]
pub(super) struct Lanes(pub(super) __m512);

// SAFETY (all of them): the trait's contract is passed on to the instruction.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl Vector for Lanes {
    const LANES: usize = 16;
    const ROWS: usize = 12;
    const VECTORS: usize = 2;
    const FMA: bool = true;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // Of the two operands the instruction returns the second where one is NaN.
        Self(unsafe { _mm512_max_ps(_mm512_setzero_ps(), self.0) })
    }
    #[inline(always)]
    unsafe fn where_positive(self, sign: Self) -> Self {
        Self(unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(sign.0, _mm512_setzero_ps()), self.0) })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        unsafe { super::avx2::Lanes::transpose(from, from_step, to, to_step) }
    }
}

/// # Safety
/// The processor has AVX-512 F, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the instructions are those of this function.
    unsafe { kernel.run::<Lanes>() }
}
