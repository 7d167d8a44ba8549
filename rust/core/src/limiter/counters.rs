//! Step indices that survive a kill at any instruction.
//!
//! Every env step of a run has an index, 0 to total - 1, handed out to a lane. An index belongs to its lane, not to the
//! process that drives it, so the lane's next owner gets an index that was handed out and not completed once more.
//!
//! - *Global word*: `count << 17 | parity << 16 | lane + 1`: how many indices are out, and which lane got the last one
//!   (0: none did). It moves on by CAS only, one count at a time.
//! - *Lane words*: `granted = count << 1 | parity` for the last index of the lane (the index is `count - 1`), and
//!   `done`, how many steps the lane completed. A lane has at most one index open, so its number of grants is `done` or
//!   `done + 1`, and the parity of that number says which: **open iff the parities of `granted` and `done` differ**.
//!   `granted` is raised by `fetch_max`, which ignores late helpers because counts only grow; `done` is one store by
//!   the lane's owner.
//!
//! A claimer first *helps*: it raises the `granted` word of the lane that the global word names. Only then may the
//! global word move on, so the two words together always tell what is out:
//!
//! | killed | found by the lane's successor |
//! |---|---|
//! | before the CAS | nothing happened: the index is still to be had by anyone |
//! | after the CAS, before the own lane's word is raised | the global word names the lane: the successor, or whoever claims before it, raises it |
//! | after raising, or anywhere up to `done` | parities differ: the successor gets the same index again |
//! | after `done` | parities are equal: the step is counted, once |
//! | a helper, anywhere | its `fetch_max` happened or did not; the next claimer repeats it |
//!
//! A step whose row was appended but which was not completed is stepped again: one more row than steps, never one less.

use crate::kill::kill_point;
use crate::memory::ReadWord;
use crate::sync::{AtomicU64, Ordering};

const LANE_MASK: u64 = (1 << 16) - 1;
const COUNT_SHIFT: u32 = 17;

/// Words of the global part, and of each lane: `granted` (also written by helpers) and `done` on a cache line each.
const LANE_WORDS: usize = 16;
const GRANTED: usize = 0;
const DONE: usize = 8;

/// Answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The lane's step index: a new one, or the open one again.
    Index(u64),
    /// The next index is not to be had now.
    Refused {
        /// That index.
        index: u64,
    },
}

/// A shared word that can be loaded.
pub trait Load {
    /// Atomic load.
    #[cfg_attr(loom, track_caller)] // the ordering stands at the caller
    fn load(&self, order: Ordering) -> u64;
}

impl Load for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }
}

impl Load for ReadWord {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }
}

/// Counters of all lanes, in words of any storage; those of a read-only mapping can be read.
#[derive(Debug)]
pub struct Counters<'a, W = AtomicU64> {
    global: &'a W,
    lanes: &'a [W],
}

// Not derived: that would ask for words that can be copied.
impl<W> Clone for Counters<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Counters<'_, W> {}

impl Counters<'_> {
    /// Words that the counters of `lanes` lanes take.
    #[must_use]
    pub fn words(lanes: usize) -> usize {
        LANE_WORDS * (lanes + 1)
    }
}

impl<'a, W: Load> Counters<'a, W> {
    /// View words as counters. Panics when their number fits no number of lanes.
    #[must_use]
    pub fn new(words: &'a [W]) -> Self {
        assert!(words.len() >= 2 * LANE_WORDS && words.len().is_multiple_of(LANE_WORDS), "words of step counters");
        Self { global: &words[0], lanes: &words[LANE_WORDS..] }
    }

    /// Indices handed out.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.global.load(Ordering::Relaxed) >> COUNT_SHIFT
    }

    /// Steps completed by a lane.
    #[must_use]
    pub fn lane_done(&self, lane: usize) -> u64 {
        // Acquire, pairs with the Release in `complete`: the completed steps' rows are visible.
        self.word(lane, DONE).load(Ordering::Acquire)
    }

    /// Number of the last index that the lane got, from 1; 0 before the first. May be one behind while it is handed
    /// out.
    #[must_use]
    pub fn last(&self, lane: usize) -> u64 {
        self.word(lane, GRANTED).load(Ordering::Relaxed) >> 1 // an order of lanes, not of memory
    }

    /// Steps completed by all lanes: at least what it was when the call began, at most what it is at its end.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.lanes.chunks_exact(LANE_WORDS).map(|lane| lane[DONE].load(Ordering::Acquire)).sum() // as in `lane_done`
    }

    fn word(&self, lane: usize, word: usize) -> &'a W {
        &self.lanes[lane * LANE_WORDS + word]
    }

    /// The lane's open index. Exact for the lane's owner once `help` has run on a current global word.
    fn open(&self, lane: usize) -> Option<u64> {
        let granted = self.word(lane, GRANTED).load(Ordering::Relaxed);
        let done = self.word(lane, DONE).load(Ordering::Relaxed);
        ((granted ^ done) & 1 == 1).then(|| (granted >> 1) - 1)
    }

    /// Whether `count` steps are completed, `first` of them before these counters began. For who has just completed the
    /// step of `lane`, behind a fence: of those whose steps make up the count, at least the last one finds it.
    ///
    /// Looks at the lanes behind `lane` first, and ends as soon as so many of them are open that it cannot be: lanes of
    /// a worker are mostly completed in order, so it mostly ends at the next one. (All that was completed or is open
    /// has an index below what is out, so with `open` lanes open `count + open` must be out. Whoever sees all steps
    /// that make up the count, and lanes open besides, sees that many out, by the global word or by the lanes' own.)
    #[must_use]
    pub fn reached(&self, count: u64, first: u64, lane: usize) -> bool {
        let mut out = self.granted();
        if out < count {
            return false;
        }
        let (mut done, mut open) = (first, 0);
        for other in (lane + 1..self.lanes.len() / LANE_WORDS).chain(0..=lane) {
            done += self.lane_done(other);
            if let Some(index) = self.open(other) {
                open += 1;
                out = out.max(index + 1);
                if out < count + open {
                    out = out.max(self.granted());
                    if out < count + open {
                        return false;
                    }
                }
            }
        }
        done >= count
    }
}

impl Counters<'_> {
    /// Start at `count` (on zeroed words, before anyone else sees them).
    pub fn initialise(&self, count: u64) {
        self.global.store(count << COUNT_SHIFT, Ordering::Relaxed);
    }

    /// The open index of `lane`, or the next index if `may` allows it. Only for the lane's owner.
    pub fn claim(&self, lane: usize, may: impl Fn(u64) -> bool) -> Claim {
        // Acquire, pairs with the Release half of the CAS below: whoever moved the word on had helped the lane that it
        // named before, so after this load `granted` of every lane is either raised or named by `global`.
        let mut global = self.global.load(Ordering::Acquire);
        loop {
            kill_point("limiter: loaded");
            self.help(global);
            kill_point("limiter: helped");
            if let Some(index) = self.open(lane) {
                return Claim::Index(index);
            }
            let index = global >> COUNT_SHIFT;
            if !may(index) {
                return Claim::Refused { index };
            }
            // This grant's number in the lane is done + 1; only the owner, who is here, stores `done`.
            let parity = (self.word(lane, DONE).load(Ordering::Relaxed) + 1) & 1;
            let next = (index + 1) << COUNT_SHIFT | parity << 16 | (lane as u64 + 1);
            // AcqRel: Release publishes the help above, Acquire for the next round of a failed try.
            match self.global.compare_exchange(global, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    kill_point("limiter: claimed");
                    self.help(next);
                    kill_point("limiter: raised");
                    return Claim::Index(index);
                }
                Err(found) => global = found,
            }
        }
    }

    /// Count the lane's open step; false when there is none. Only for the lane's owner.
    #[must_use]
    pub fn complete(&self, lane: usize) -> bool {
        let open = self.open(lane).is_some();
        if open {
            kill_point("limiter: completing");
            // Release, pairs with the Acquire in `done`. No read-modify-write: only the owner stores here.
            let done = self.word(lane, DONE);
            done.store(done.load(Ordering::Relaxed) + 1, Ordering::Release);
            kill_point("limiter: completed");
        }
        open
    }

    /// Tell the lane that `global` names about its grant.
    fn help(&self, global: u64) {
        let lane = global & LANE_MASK;
        if lane != 0 {
            let granted = global >> 16; // count << 1 | parity
            #[allow(clippy::cast_possible_truncation)] // 16 bits
            let lane = lane as usize - 1;
            // Relaxed: ordered for others by the Release of the CAS that follows, and by `help` being repeated by each
            // claimer before it relies on it.
            let word = self.word(lane, GRANTED);
            if word.load(Ordering::Relaxed) < granted {
                word.fetch_max(granted, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::kill;
    use crate::limiter::rule::Rule;

    fn heap(lanes: usize) -> Vec<AtomicU64> {
        (0..Counters::words(lanes)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn an_open_index_is_given_again() {
        let words = heap(2);
        let counters = Counters::new(&words);
        counters.initialise(5);
        assert_eq!(counters.claim(1, |_| true), Claim::Index(5));
        assert_eq!(counters.claim(1, |_| true), Claim::Index(5));
        assert_eq!(counters.claim(0, |_| true), Claim::Index(6));
        assert_eq!(counters.claim(1, |_| false), Claim::Index(5), "an open index needs no leave");
        assert!(counters.complete(1));
        assert!(!counters.complete(1));
        assert_eq!(counters.claim(1, |_| false), Claim::Refused { index: 7 });
        assert_eq!(counters.claim(1, |_| true), Claim::Index(7));
        assert_eq!((counters.granted(), counters.done(), counters.lane_done(1)), (8, 1, 1));
    }

    proptest! {
        /// Whoever completes the step that makes up the count finds it, and nobody else does.
        #[test]
        fn the_last_of_a_count_finds_it(
            lanes in 1usize..6, first in 0u64..9, claims in prop::collection::vec((0usize..6, any::<bool>()), 1..80),
            count in 1u64..40,
        ) {
            let words = heap(lanes);
            let counters = Counters::new(&words);
            counters.initialise(first);
            for (lane, complete) in claims {
                let lane = lane % lanes;
                if !complete {
                    counters.claim(lane, |_| true);
                } else if counters.complete(lane) {
                    prop_assert_eq!(counters.reached(count, first, lane), first + counters.done() >= count);
                }
            }
        }
    }

    #[test]
    fn a_look_ends_at_the_next_lane_of_a_vector() {
        let words = heap(40);
        let counters = Counters::new(&words);
        (0..40).for_each(|lane| _ = counters.claim(lane, |_| true));
        for lane in 0..39 {
            assert!(counters.complete(lane));
            // What lies behind the next lane is not looked at: it would tell.
            words[LANE_WORDS * (1 + (lane + 2) % 40) + DONE].fetch_add(1 << 20, Ordering::Relaxed);
            assert!(!counters.reached(40, 0, lane), "{lane}");
            words[LANE_WORDS * (1 + (lane + 2) % 40) + DONE].fetch_sub(1 << 20, Ordering::Relaxed);
        }
        assert!(counters.complete(39) && counters.reached(40, 0, 39));
    }

    #[test]
    fn killed_at_every_point() {
        // Lane 0 is killed at each point of a claim and completion; then lane 1 claims before or after the successor.
        // Whatever happens, the indices completed in the end are 0, 1, 2, ... without a gap or a double.
        let mut seen = BTreeSet::new();
        for point in 0..10 {
            for other_first in [false, true] {
                let words = heap(2);
                let counters = Counters::new(&words);
                let mut completed = Vec::new();
                let step = |lane: usize, completed: &mut Vec<u64>| {
                    let Claim::Index(index) = counters.claim(lane, |_| true) else { panic!("refused") };
                    completed.push(index);
                    assert!(counters.complete(lane));
                };
                step(0, &mut completed);
                step(1, &mut completed);
                let mut index = None;
                let killed = kill::run(point, || {
                    index = Some(counters.claim(0, |_| true));
                    assert!(counters.complete(0));
                });
                let Err(name) = killed else { break };
                seen.insert(name);
                if name == "limiter: completed" {
                    let Some(Claim::Index(index)) = index else { panic!("completed without an index") };
                    completed.push(index);
                }
                for lane in if other_first { [1, 1, 0] } else { [0, 1, 0] } {
                    step(lane, &mut completed);
                }
                completed.sort_unstable();
                assert!(completed.iter().copied().eq(0..completed.len() as u64), "{name}: {completed:?}");
                assert_eq!(counters.done(), completed.len() as u64);
            }
        }
        assert_eq!(seen.len(), 6, "{seen:?}");
    }

    /// A kill point that is never reached.
    const NEVER: u32 = u32::MAX;

    proptest! {
        /// Any interleaving of lanes, a learner and kills at any point: the distance from the line keeps its bound,
        /// every index is completed exactly once, and the run ends exactly.
        #[test]
        fn storms_keep_the_count(
            lanes in 1usize..5, total in 0u64..60, learning_starts in 0u64..20, ratio in (1u64..6, 1u64..6),
            extra in 0.0f64..5.0,
            events in prop::collection::vec((0usize..8, any::<bool>(), 0u32..14), 1..400),
        ) {
            let line = ratio.0 as f64 / ratio.1 as f64;
            let slack = line.max(1.0) + extra;
            let rule = Rule::new(total, learning_starts, Some(ratio), slack).unwrap();
            let words = heap(lanes);
            let counters = Counters::new(&words);
            let mut updates = 0u64;
            let mut held: Vec<Option<u64>> = vec![None; lanes]; // what each lane's live owner knows
            let mut completed = BTreeSet::new();
            let check = |updates: u64, completed: &BTreeSet<u64>| {
                assert_eq!(counters.done(), completed.len() as u64);
                let target = line * counters.done().saturating_sub(learning_starts) as f64;
                assert!((updates as f64 - target).abs() <= slack + 1e-6, "{updates} {target}");
            };
            // Random events first, then rounds over everyone until nothing moves.
            let rounds = (0..).flat_map(|_| (0..8).map(|who| (who, true, NEVER)));
            let mut idle = 0;
            for (who, complete, kill) in events.into_iter().chain(rounds) {
                idle = if kill == NEVER { idle + 1 } else { 0 };
                if idle > 40 {
                    break;
                }
                if who >= lanes {
                    if rule.updates_allowed(updates, counters.done()) > 0 {
                        updates += 1;
                        idle = 0;
                    }
                } else if let (Some(index), true) = (held[who], complete) {
                    let result = kill::run(kill, || assert!(counters.complete(who)));
                    held[who] = None;
                    if result.is_ok() || result == Err("limiter: completed") {
                        prop_assert!(completed.insert(index), "index {} twice", index);
                        idle = 0;
                    }
                } else {
                    let claim = kill::run(kill, || counters.claim(who, |index| rule.may_step(index, updates)));
                    // A killed owner forgets; its successor asks again.
                    held[who] = match claim {
                        Ok(Claim::Index(index)) => { idle = 0; Some(index) }
                        _ => None,
                    };
                }
                check(updates, &completed);
            }
            prop_assert!(completed.iter().copied().eq(0..total), "{:?}", completed);
            prop_assert_eq!(Some(updates), rule.target_updates());
        }
    }

    #[test]
    fn threads_get_each_index_once() {
        const LANES: usize = 4;
        const TOTAL: u64 = 40_000;
        let words = heap(LANES);
        let counters = Counters::new(&words);
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..LANES)
                .map(|lane| {
                    scope.spawn(move || {
                        let mut mine = Vec::new();
                        while let Claim::Index(index) = counters.claim(lane, |index| index < TOTAL) {
                            mine.push(index);
                            assert!(counters.complete(lane));
                        }
                        mine
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert!(all.into_iter().eq(0..TOTAL));
        assert_eq!(counters.done(), TOTAL);
    }
}
