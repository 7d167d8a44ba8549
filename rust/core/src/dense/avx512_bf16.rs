//! Registers of AVX-512 whose factors are pairs of bf16. The invariant of every `unsafe` here: it runs inside [`run`],
//! on a processor with AVX-512 F and BF16.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh,
    _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_or_si512, _mm512_slli_epi32,
};
use std::mem::transmute;

use super::avx512;
use super::vector::{Kernel, Vector};

#[derive(Clone, Copy)]
pub(super) struct Lanes(avx512::Lanes);

// SAFETY (all of them): the trait's contract is passed on to the instruction.
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe impl Vector for Lanes {
    const LANES: usize = avx512::Lanes::LANES;
    const ROWS: usize = avx512::Lanes::ROWS;
    const VECTORS: usize = avx512::Lanes::VECTORS;
    const FMA: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { avx512::Lanes::load(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { self.0.store(to) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(unsafe { avx512::Lanes::splat(value) })
    }
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // The same 512 bits, read as what they are.
        let pairs = |lanes: Self| unsafe { transmute::<__m512, __m512bh>(lanes.0.0) };
        Self(avx512::Lanes(unsafe { _mm512_dpbf16_ps(self.0.0, pairs(a), pairs(b)) }))
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        Self(unsafe { self.0.relu() })
    }
    #[inline(always)]
    unsafe fn where_positive(self, sign: Self) -> Self {
        Self(unsafe { self.0.where_positive(sign.0) })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { self.0.sum() }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        unsafe { avx512::Lanes::transpose(from, from_step, to, to_step) }
    }
    #[inline(always)]
    unsafe fn narrow(low: Self, high: Self) -> Self {
        let both = unsafe { transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high.0.0, low.0.0)) };
        Self(avx512::Lanes(both))
    }
    #[inline(always)]
    unsafe fn pair(even: Self, odd: Self) -> Self {
        unsafe {
            let wide =
                |lanes: Self| _mm512_cvtepu16_epi32(transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(lanes.0.0)));
            let pairs = _mm512_or_si512(wide(even), _mm512_slli_epi32::<16>(wide(odd)));
            Self(avx512::Lanes(_mm512_castsi512_ps(pairs)))
        }
    }
}

/// # Safety
/// The processor has AVX-512 F and BF16, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512bf16,avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the instructions are those of this function.
    unsafe { kernel.run::<Lanes>() }
}
