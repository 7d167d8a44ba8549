//! Segments from any words, attached as everything. Used by tests and by the fuzzer.

use std::os::fd::AsFd;

use rlz_core::inference::Inference;
use rlz_core::limiter::Limiter;
use rlz_core::memory::{PAGE, Segment};
use rlz_core::parameters::ParameterStore;
use rlz_core::queue::Queue;
use rlz_core::replay::Replay;
use rlz_core::stats::StatsBoard;
use rlz_core::sync::Ordering;

/// First word of the field table.
pub(crate) const TABLE: usize = 64;

const LARGEST: usize = 16 * PAGE;

/// What the fuzzer runs, and the tests on what it found: bytes as the begin of a segment, as they are and with the hash
/// that belongs to them.
pub(crate) fn attack(bytes: &[u8]) {
    let mut words: Vec<u64> = bytes
        .chunks(8)
        .take(LARGEST / 8)
        .map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .collect();
    let claimed = words.get(4).and_then(|total| usize::try_from(*total).ok());
    let claimed = claimed.filter(|total| (PAGE..=LARGEST).contains(total)).unwrap_or(PAGE);
    words.resize(words.len().max(claimed / 8), 0);
    attach_all(&segment(&words));
    rehash(&mut words);
    attach_all(&segment(&words));
}

pub(crate) fn segment(words: &[u64]) -> Segment {
    let segment = Segment::create("corpus", words.len() * 8).unwrap();
    for (to, word) in segment.words(0, words.len()).unwrap().iter().zip(words) {
        to.store(*word, Ordering::Relaxed);
    }
    segment
}

/// Attach as everything; how many took it. What is taken is used a little, so that a wrong size would show.
pub(crate) fn attach_all(segment: &Segment) -> usize {
    let fd = segment.as_fd();
    let replay = Replay::attach(fd);
    if let Ok(replay) = &replay {
        replay.committed().unwrap();
        let (mut rows, mut meta) = (vec![0; replay.schema().words()], [0]);
        replay.read_rows(replay.lanes() - 1, 1, &mut rows, &mut meta).unwrap();
    }
    let queue = Queue::attach(fd);
    if let Ok(queue) = &queue {
        queue.occupancy().unwrap();
    }
    let limiter = Limiter::attach(fd);
    if let Ok(limiter) = &limiter {
        limiter.lane_steps().unwrap();
    }
    let inference = Inference::attach(fd);
    if let Ok(inference) = &inference {
        inference.occupancy().unwrap();
    }
    let stats = StatsBoard::attach(fd);
    let store = ParameterStore::attach(fd, fd, true);
    let messages = [
        replay.as_ref().err().map(ToString::to_string),
        queue.as_ref().err().map(ToString::to_string),
        inference.as_ref().err().map(ToString::to_string),
        limiter.as_ref().err().map(ToString::to_string),
        stats.as_ref().err().map(ToString::to_string),
        store.as_ref().err().map(ToString::to_string),
    ];
    assert!(messages.iter().flatten().all(|message| message.len() > 10));
    messages.iter().filter(|message| message.is_none()).count()
}

/// FNV-1a as in the header, so that damage gets behind the hash to the checks of each stream.
pub(crate) fn rehash(words: &mut [u64]) {
    let params = usize::try_from(words[8]).unwrap_or(usize::MAX).min(TABLE - 10);
    let table = usize::try_from(words[9]).unwrap_or(usize::MAX).min((words.len() - TABLE) * 8);
    let head = [words[1] >> 32, words[2]].into_iter().chain(words[10..10 + params].iter().copied());
    let rest = words[TABLE..].iter().flat_map(|word| word.to_le_bytes()).take(table);
    let bytes = head.flat_map(u64::to_le_bytes).chain(rest);
    words[3] = bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
}
