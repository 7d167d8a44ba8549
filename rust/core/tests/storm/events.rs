//! Event counts: two sides that wait for each other's turn, so that a lost wake would leave both asleep.

use std::os::fd::{AsFd, BorrowedFd};

use rlz_core::WorkerId;
use rlz_core::memory::Segment;
use rlz_core::sync::{AtomicU64, Ordering};
use rlz_core::wait::EventCount;

use crate::child::{Files, Seat};
use crate::harness::{Kills, Role, Scene, Verdict, demand};

const TURN: usize = 2 * EventCount::WORDS;

pub struct Wakes {
    words: Segment,
}

impl Scene for Wakes {
    const NAME: &'static str = "event count";
    const ROLES: &'static [Role] =
        &[Role { name: "player", seats: 2, points: &["event: announced", "event: before the wake"] }];

    fn create() -> Self {
        Self { words: Segment::create("events", (TURN + 1) * 8).unwrap() }
    }

    fn attach(_: &str, files: &Files) -> Self {
        Self { words: files.segment(0) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.words.as_fd()]
    }

    fn play(&self, _: &str, seat: &Seat) {
        let (mine, other) = (self.event(seat.index), self.event(1 - seat.index));
        let my_turn = || {
            let turn = self.turn().load(Ordering::Acquire);
            Ok((turn % 2 == seat.index as u64).then_some(turn))
        };
        loop {
            let turn = mine.wait(seat.worker, None, &mut || true, my_turn).unwrap().unwrap();
            self.turn().store(turn + 1, Ordering::Release);
            other.notify();
            seat.tick(1);
        }
    }

    fn reap(&self, dead: WorkerId) {
        (0..2).for_each(|side| self.event(side).reap(dead));
    }

    /// Its waiter's bits: ids that come back at once stay below 64, and the first two words are no bitmaps.
    fn held_by(&self, worker: WorkerId) -> usize {
        let bitmaps = (0..2).flat_map(|side| &self.side(side)[2..]);
        bitmaps.filter(|word| word.load(Ordering::Relaxed) >> worker.get() & 1 == 1).count()
    }

    fn check(&self) -> Verdict {
        Ok(())
    }

    fn settle(&self, kills: &Kills) -> Verdict<String> {
        let left: u64 = (0..2).flat_map(|side| &self.side(side)[2..]).map(|word| word.load(Ordering::Relaxed)).sum();
        demand(left == 0, || format!("waiters' bits leaked: {left:x}"))?;
        let missed: u64 = (0..2).map(|side| self.event(side).missed_wakeups()).sum();
        let most = kills.total();
        demand(missed <= most, || format!("{missed} wakes were missed with {most} kills"))?;
        let turns = self.turn().load(Ordering::Relaxed);
        demand(turns > 20, || format!("{turns} turns only"))?;
        Ok(format!("{turns} turns, {missed} waits ended by a slice"))
    }
}

impl Wakes {
    fn side(&self, side: usize) -> &[AtomicU64] {
        self.words.words(side * EventCount::WORDS * 8, EventCount::WORDS).unwrap()
    }

    fn event(&self, side: usize) -> EventCount<'_> {
        EventCount::new(self.side(side))
    }

    fn turn(&self) -> &AtomicU64 {
        &self.words.words(TURN * 8, 1).unwrap()[0]
    }
}
