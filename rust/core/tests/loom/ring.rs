//! Models of a replay lane: writer, reader, kill, reaper, successor.

use std::sync::Arc;

use crate::model::{check_kills, check_thoroughly, fails, id, unnoticed, zeros};
use loom::thread;
use rlz_core::kill;
use rlz_core::replay::ring::HEAD_WORDS;
use rlz_core::replay::{Meta, Ring};
use rlz_core::sync::{AtomicU64, Ordering, fence};

const SLOTS: usize = 2;
const WORDS: usize = 2;
/// Last ticket that a model writes.
const LAST: u64 = 4;

struct Lane {
    head: Vec<AtomicU64>,
    marks: Vec<AtomicU64>,
    rows: Vec<AtomicU64>,
}

impl Lane {
    fn new() -> Arc<Self> {
        Arc::new(Self { head: zeros(HEAD_WORDS), marks: zeros(SLOTS * 2), rows: zeros(SLOTS * WORDS) })
    }

    fn ring(&self) -> Ring<'_> {
        Ring::new(&self.head, &self.marks, &self.rows, SLOTS)
    }

    fn append(&self, worker: u64, ticket: u64) {
        let meta = Meta { version: ticket as u32, env: 0, flags: 0 };
        assert_eq!(self.ring().append(0, id(worker), meta, &[ticket; WORDS]).unwrap(), ticket);
    }

    /// Read the slot of the newest row: whole, and not older than the count says.
    fn read_newest(&self) {
        let ring = self.ring();
        let committed = ring.committed(0);
        let mut row = [0; WORDS];
        let found = ring.read(ring.slot(0, committed), &mut row);
        assert!(found.is_some() || committed + SLOTS as u64 <= LAST, "counted, not overwritten, and not there");
        if let Some(mark) = found {
            assert_eq!(row, [mark.ticket(); WORDS], "torn");
            assert_eq!(Meta::from_word(mark.meta).version as u64, mark.ticket(), "torn");
            assert!(mark.ticket() >= committed, "counted before it was there");
        }
    }
}

/// A reader beside a writer that laps it, and is killed at a point; then reaper and successor.
fn append_and_reap(point: u32) -> bool {
    let lane = Lane::new();
    lane.ring().acquire(0, id(1)).unwrap();
    lane.append(1, 1);
    let writer = thread::spawn({
        let lane = Arc::clone(&lane);
        move || kill::run(point, || (2..=3).for_each(|ticket| lane.append(1, ticket))).err()
    });
    let reader = thread::spawn({
        let lane = Arc::clone(&lane);
        move || lane.read_newest()
    });
    let killed = writer.join().unwrap();
    let ring = lane.ring();
    if killed.is_some() {
        assert!(ring.reap(0, id(1)));
    } else {
        ring.release(0, id(1));
    }
    ring.acquire(0, id(2)).unwrap();
    let committed = ring.committed(0);
    let due = if killed.is_none() { 3..=3 } else { 1..=3 };
    assert!(due.contains(&committed));
    lane.append(2, committed + 1);
    lane.read_newest();
    reader.join().unwrap();
    killed.is_some()
}

/// A lane that changes hands while both live.
fn hand_over() {
    let lane = Lane::new();
    lane.ring().acquire(0, id(1)).unwrap();
    let old = thread::spawn({
        let lane = Arc::clone(&lane);
        move || {
            lane.append(1, 1);
            lane.ring().release(0, id(1));
        }
    });
    if lane.ring().acquire(0, id(2)).is_ok() {
        lane.append(2, 2); // sees the count of the owner before
    }
    old.join().unwrap();
}

#[test]
fn kills_at_every_point() {
    assert_eq!(check_kills(2, append_and_reap), 12);
}

#[test]
fn hand_over_keeps_the_count() {
    check_thoroughly(3, hand_over);
}

#[test]
fn every_ordering_is_needed() {
    let plain = || _ = append_and_reap(u32::MAX);
    let reaped = || _ = append_and_reap(10); // committed, not counted: the reaper counts

    let left = unnoticed("replay/ring.rs", &[], &[(2, plain), (2, reaped), (3, hand_over)]);
    // The claim's Acquire is not needed: `acquire` has seen what the slot held, and the fence behind the claim keeps
    // the row's stores behind it. Nor the reaper's: the proof of a death orders what the dead one did before it.
    let spare = [
        ".compare_exchange(old, stamp(ticket, worker, WRITING), Ordering::Acquire, Ordering::Relaxed)",
        "let found = mark.load(Ordering::Acquire);",
    ];
    assert_eq!(left, spare);
}

/// Negative control: a reader without the second look at the stamp returns torn rows.
#[test]
fn without_the_second_look_rows_are_torn() {
    fn model(second_look: bool) {
        let lane = Lane::new();
        lane.ring().acquire(0, id(1)).unwrap();
        lane.append(1, 1);
        lane.append(1, 2);
        let writer = thread::spawn({
            let lane = Arc::clone(&lane);
            move || lane.append(1, 3)
        });
        let stamp = lane.marks[0].load(Ordering::Acquire);
        let row = [0, 1].map(|word: usize| lane.rows[word].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let same = lane.marks[0].load(Ordering::Relaxed) == stamp;
        if stamp & 1 == 0 && (same || !second_look) {
            assert_eq!(row, [stamp >> 11; 2], "torn");
        }
        writer.join().unwrap();
    }
    check_thoroughly(3, || model(true));
    assert!(fails(3, || model(false)));
}
