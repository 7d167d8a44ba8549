//! Copies between private memory and words that another process may be changing.
//!
//! A racy read through a plain or volatile access is undefined behaviour even if its value is thrown away, so every word
//! moves as one relaxed atomic; a stamp or a lock around the copy says whether the copy counts.

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

/// Store bytes as little-endian words, the last one padded with zeros. Panics when they do not fit.
pub fn store_bytes(from: &[u8], into: &[AtomicU64]) {
    assert!(from.len() <= into.len() * 8, "bytes of a word copy");
    for (word, bytes) in into.iter().zip(from.chunks(8)) {
        let mut buffer = [0; 8];
        buffer[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(buffer), Ordering::Relaxed);
    }
}
