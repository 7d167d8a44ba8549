//! Copies between private memory and words that another process may be changing.
//!
//! A racy read through a plain or volatile access is undefined behaviour even if its value is thrown away, so every
//! word moves as one relaxed atomic; a stamp or a lock around the copy says whether the copy counts.

#![allow(unsafe_code)] // views of private bytes as words, and the prefetch hint

use crate::error::{Error, Result};
use crate::memory::ReadWord;
use crate::sync::{AtomicU64, Ordering};

/// Copy shared words out. Panics when the lengths differ.
#[inline]
pub fn load(from: &[AtomicU64], into: &mut [u64]) {
    assert_eq!(from.len(), into.len(), "lengths of a word copy");
    for (to, word) in into.iter_mut().zip(from) {
        *to = word.load(Ordering::Relaxed);
    }
}

/// Copy shared words of a read-only mapping out. Panics when the lengths differ.
#[inline]
pub fn load_read_only(from: &[ReadWord], into: &mut [u64]) {
    assert_eq!(from.len(), into.len(), "lengths of a word copy");
    for (to, word) in into.iter_mut().zip(from) {
        *to = word.load(Ordering::Relaxed);
    }
}

/// Copy private words in. Panics when the lengths differ.
#[inline]
pub fn store(from: &[u64], into: &[AtomicU64]) {
    assert_eq!(from.len(), into.len(), "lengths of a word copy");
    for (word, from) in into.iter().zip(from) {
        word.store(*from, Ordering::Relaxed);
    }
}

/// View private bytes as words. The bytes must be aligned to 8 and a multiple of 8 long.
pub fn from_bytes<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a [u64]> {
    // SAFETY: every bit pattern is a valid u64.
    match unsafe { bytes.align_to::<u64>() } {
        ([], words, []) => Ok(words),
        _ => Err(unaligned(what, bytes)),
    }
}

/// View private bytes as words to fill. The bytes must be aligned to 8 and a multiple of 8 long.
pub fn from_bytes_mut<'a>(what: &'static str, bytes: &'a mut [u8]) -> Result<&'a mut [u64]> {
    if !bytes.len().is_multiple_of(8) || bytes.as_ptr().align_offset(8) != 0 {
        return Err(unaligned(what, bytes));
    }
    // SAFETY: every bit pattern is a valid u64, and a valid u8.
    let (head, words, tail) = unsafe { bytes.align_to_mut::<u64>() };
    debug_assert!(head.is_empty() && tail.is_empty());
    Ok(words)
}

/// View private words as bytes.
#[must_use]
pub fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: initialised memory of that many bytes, and a byte has no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), std::mem::size_of_val(words)) }
}

/// View private words as bytes to fill.
#[must_use]
pub fn bytes_of_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`, exclusively borrowed; every byte pattern is valid in a word.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), std::mem::size_of_val(words)) }
}

fn unaligned(what: &'static str, bytes: &[u8]) -> Error {
    Error::invalid(
        what,
        format!("{} bytes at an address that is {} modulo 8", bytes.len(), bytes.as_ptr().addr() % 8),
        "whole 8-byte words at an aligned address (use an array of its own, not a slice of another)",
    )
}

/// Hint that the cache line of `word` is loaded soon.
#[inline(always)]
pub fn prefetch(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    // SAFETY: SSE is part of x86-64; a prefetch has no effect but speed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(word.as_ptr().cast::<i8>());
    }
    #[cfg(all(target_arch = "aarch64", not(any(loom, shuttle))))]
    // SAFETY: a prefetch has no effect but speed.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) word.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(loom, shuttle, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = word;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_as_words() {
        let mut words = [1u64, 2];
        // SAFETY: the bytes of two u64, exclusively borrowed.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), 16) };
        assert_eq!(from_bytes("rows", bytes).unwrap(), [1, 2]);
        from_bytes_mut("rows", bytes).unwrap()[1] = 5;
        assert_eq!(bytes[8], 5);
        assert!(from_bytes("rows", &bytes[1..9]).unwrap_err().to_string().contains("1 modulo 8"));
        assert!(from_bytes_mut("rows", &mut bytes[..12]).is_err());
    }
}
