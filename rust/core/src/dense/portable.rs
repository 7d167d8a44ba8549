//! Registers as arrays, which the compiler makes vectors of with whatever the architecture's baseline has.

#![allow(unsafe_code)] // Only reads and writes through pointers, whose range the caller warrants.

use crate::elementary::{BASELINE_FMA, multiply_add};

use super::vector::Vector;

#[derive(Clone, Copy)]
pub(super) struct Lanes([f32; 4]);

// SAFETY: no instruction beyond the baseline is used.
unsafe impl Vector for Lanes {
    const LANES: usize = 4;
    const ROWS: usize = 4;
    const VECTORS: usize = 2;
    const FMA: bool = BASELINE_FMA;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's.
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| multiply_add::<BASELINE_FMA>(a.0[i], b.0[i], self.0[i])))
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        Self(self.0.map(|value| if value < 0.0 { 0.0 } else { value }))
    }
    #[inline(always)]
    unsafe fn where_positive(self, sign: Self) -> Self {
        Self(std::array::from_fn(|i| if sign.0[i] > 0.0 { self.0[i] } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        (self.0[0] + self.0[2]) + (self.0[1] + self.0[3])
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: the caller's.
                unsafe { *to.add(column * to_step + row) = *from.add(row * from_step + column) };
            }
        }
    }
}
