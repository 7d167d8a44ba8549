//! Models of the turns of samplers that wait. A lost call is a run without end here, because sleeps of a model have no
//! slices, and a call wakes nobody but the one who was called.

use std::sync::Arc;

use loom::thread;
use rlz_core::kill;
use rlz_core::limiter::turns::{Turns, place};
use rlz_core::sync::{AtomicU64, Ordering};
use rlz_core::{Error, Result};

use crate::model::{check, check_kills, fails, id, unnoticed, zeros};

/// Things that are given out one by one, in turn.
struct Counter {
    words: Vec<AtomicU64>,
    /// How many there are, and how many are taken.
    room: AtomicU64,
    taken: AtomicU64,
}

impl Counter {
    fn new() -> Arc<Self> {
        Arc::new(Self { words: zeros(Turns::WORDS), room: AtomicU64::new(0), taken: AtomicU64::new(0) })
    }

    fn turns(&self) -> Turns<'_> {
        Turns::new(&self.words)
    }

    fn has_room(&self, ahead: u64) -> bool {
        self.taken.load(Ordering::Relaxed) + ahead < self.room.load(Ordering::Relaxed)
    }

    fn take(&self, ahead: u64) -> Result<Option<()>> {
        while self.has_room(ahead) {
            let taken = self.taken.load(Ordering::Relaxed);
            if self.taken.compare_exchange(taken, taken + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Ok(Some(()));
            }
        }
        Ok(None)
    }

    fn call(&self) {
        let turns = self.turns();
        if turns.anyone() {
            turns.call(|ahead| self.has_room(ahead));
        }
    }

    /// Wait for one, as the `order`-th in turn.
    fn wait(&self, worker: u64, order: u64) -> Result<Option<()>> {
        let place = || place(order, 1);
        self.turns().wait(id(worker), None, &mut || true, place, |ahead| self.take(ahead), || self.call())
    }

    fn make_room(&self, room: u64) {
        self.room.store(room, Ordering::Relaxed);
        self.call();
    }
}

/// A waiter, and room for it; whoever makes it may be killed before the call, which the reaper then makes up for.
fn call(point: u32) -> bool {
    let counter = Counter::new();
    let waiter = thread::spawn({
        let counter = Arc::clone(&counter);
        move || counter.wait(1, 1).unwrap().unwrap()
    });
    let killed = kill::run(point, || counter.make_room(1)).is_err();
    if killed {
        counter.turns().reap(id(3));
    }
    waiter.join().unwrap();
    killed
}

/// Two waiters, and room for one, then for all. One of them, the first or the second in turn, is killed at a point,
/// reaped, and waits again: it may have taken one in vain.
fn two_wait(order: u64, point: u32) -> bool {
    let counter = Counter::new();
    let dying = thread::spawn({
        let counter = Arc::clone(&counter);
        move || {
            let killed = kill::run(point, || counter.wait(1, order).unwrap().unwrap()).is_err();
            if killed {
                counter.turns().reap(id(1));
                counter.wait(1, order).unwrap().unwrap();
            }
            killed
        }
    });
    let other = thread::spawn({
        let counter = Arc::clone(&counter);
        move || counter.wait(2, 2).unwrap().unwrap()
    });
    counter.make_room(1);
    counter.make_room(3);
    other.join().unwrap();
    let killed = dying.join().unwrap();
    assert!(!counter.turns().anyone(), "a seat is left taken");
    killed
}

/// The first in turn is called, but a signal ends its wait. The second gets what it left. `pass` is what the first does
/// behind its seat.
fn a_turn_not_taken(pass: fn(&Counter)) {
    let counter = Counter::new();
    let first = thread::spawn({
        let counter = Arc::clone(&counter);
        move || {
            let (place, take) = (|| place(1, 1), |ahead| counter.take(ahead));
            match counter.turns().wait(id(1), None, &mut || false, place, take, || pass(&counter)) {
                Ok(_) => counter.make_room(2),
                Err(error) => assert!(matches!(error, Error::Interrupted)),
            }
        }
    });
    counter.make_room(1);
    counter.wait(2, 2).unwrap().unwrap();
    counter.make_room(2);
    first.join().unwrap();
}

#[test]
fn no_call_is_lost() {
    assert_eq!(check_kills(2, call), 2);
    check(2, || a_turn_not_taken(Counter::call));
}

#[test]
fn a_waiter_killed_at_every_point() {
    assert_eq!(check_kills(1, |point| two_wait(1, point)), 4);
    assert_eq!(check_kills(1, |point| two_wait(3, point)), 4);
}

#[test]
fn every_ordering_of_the_turns_is_needed() {
    let models: &[(usize, fn())] = &[(2, || _ = call(u32::MAX)), (2, || a_turn_not_taken(Counter::call))];
    assert_eq!(unnoticed("limiter/turns.rs", &[], models), Vec::<String>::new());
}

/// Negative control: who leaves without a look at those behind leaves them asleep.
#[test]
fn leaving_in_silence_loses_calls() {
    assert!(fails(1, || a_turn_not_taken(|_| ())));
}
