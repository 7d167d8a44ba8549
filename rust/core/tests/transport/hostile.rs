//! A segment's header is hostile input: whatever stands in it, attaching gives an error or a consistent handle.

use std::os::fd::AsFd;

use proptest::prelude::*;
use rlz_core::Error;
use rlz_core::limiter::Limiter;
use rlz_core::limiter::rule::Rule;
use rlz_core::memory::{Access, Segment};
use rlz_core::replay::Replay;
use rlz_core::sync::Ordering;

use crate::common::words_field;

fn poke(fd: impl AsFd, word: usize, value: u64) {
    let segment = Segment::attach(fd.as_fd(), Access::ReadWrite).unwrap();
    segment.words(word * 8, 1).unwrap()[0].store(value, Ordering::Relaxed);
}

fn small() -> Replay {
    Replay::create(&words_field(8), 6, 2, 1).unwrap()
}

#[test]
fn each_damage_is_named() {
    let cases: [(usize, u64, &str); 9] = [
        (0, 0, "begins with"),
        (1, 9 << 32, "here 1.0, there 9.0"),
        (2, 2, "holds: limiter"),
        (2, 99, "unknown kind 99"),
        (3, 1, "layout hash"),
        (4, 1, "says 1 bytes"),
        (7, 0, "did not finish"),
        (8, 5, "5 parameters, expected 4"),
        (9, u64::MAX, "field table"),
    ];
    for (word, value, expected) in cases {
        let replay = small();
        poke(&replay, word, value);
        let message = Replay::attach(replay.as_fd()).unwrap_err().to_string();
        assert!(message.contains(expected), "{word}: {message}");
    }
}

#[test]
fn kinds_are_told_apart() {
    let rule = Rule::new(10, 0, Some((1, 1)), 1.0).unwrap();
    let limiter = Limiter::create(rule, 1, 1, 0, 0).unwrap();
    assert!(matches!(Replay::attach(limiter.as_fd()), Err(Error::BadSegment { .. })));
    assert!(Limiter::attach(small().as_fd()).unwrap_err().to_string().contains("replay buffer"));
}

proptest! {
    /// Random words in the header, with the hash repaired or not (here: rarely valid, but nothing may panic or fault).
    #[test]
    fn random_words_never_crash(pokes in prop::collection::vec((0usize..80, any::<u64>(), 0u32..64), 1..4)) {
        let replay = small();
        for (word, value, shift) in pokes {
            poke(&replay, word, value >> shift);
        }
        if let Ok(attached) = Replay::attach(replay.as_fd()) {
            prop_assert_eq!(attached.lanes(), 2);
            attached.committed().unwrap();
            attached.ring().unwrap();
        }
    }

    #[test]
    fn random_limiter_words_never_crash(word in 0usize..80, value in any::<u64>(), shift in 0u32..64) {
        let limiter = Limiter::create(Rule::new(10, 0, Some((1, 1)), 1.0).unwrap(), 3, 1, 0, 0).unwrap();
        poke(&limiter, word, value >> shift);
        if let Ok(attached) = Limiter::attach(limiter.as_fd()) {
            prop_assert_eq!(attached.lane_steps().unwrap().len(), 3);
        }
    }
}
