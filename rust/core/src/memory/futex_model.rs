//! Stand-in for the futex under a model checker.
//!
//! Sleeps have no end of their own here: a thread whose wake gets lost yields for ever, which the checker reports as
//! too long a run. A sleeper wakes when somebody was woken and its own word has changed: what sleeps on another word
//! sleeps on.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

#[cfg(loom)]
use loom::{lazy_static, thread::yield_now};
#[cfg(shuttle)]
use shuttle::{lazy_static, thread::yield_now};

lazy_static! {
    /// Wakes so far. Acquire and Release on it stand for the kernel's lock, under which it compares the word.
    static ref WAKES: AtomicU64 = AtomicU64::new(0);
}

/// Sleep while the low 32 bits of `word` equal `expected`.
#[allow(clippy::cast_possible_truncation)] // compares the low half
pub fn wait(word: &AtomicU64, expected: u32, _timeout: Duration) {
    let mut wakes = WAKES.load(Ordering::Acquire);
    while word.load(Ordering::Relaxed) as u32 == expected {
        let seen = wakes;
        while wakes == seen {
            yield_now();
            wakes = WAKES.load(Ordering::Acquire);
        }
    }
}

/// Wake who sleeps on `word`, which the caller has changed.
pub fn wake_all(_word: &AtomicU64) {
    WAKES.fetch_add(1, Ordering::AcqRel);
}
