//! Stand-in for the futex under a model checker.
//!
//! Sleeps have no end of their own here: a thread whose wake gets lost yields for ever, which the checker reports as too
//! long a run. One count for all words, so sleepers may wake without a reason, as with the real one.

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
    let wakes = WAKES.load(Ordering::Acquire);
    if word.load(Ordering::Relaxed) as u32 == expected {
        while WAKES.load(Ordering::Acquire) == wakes {
            yield_now();
        }
    }
}

/// Wake everyone who sleeps.
pub fn wake_all(_word: &AtomicU64) {
    WAKES.fetch_add(1, Ordering::AcqRel);
}
