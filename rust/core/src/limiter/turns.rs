//! Whose turn it is: samplers that wait for the learner, in order, each woken by itself.
//!
//! Who waits has a *seat*: a word that says its place in the order and for how many lanes it waits, and a word to sleep
//! on. Whoever makes room calls the first seats, as many as there is room for; nobody takes what a seat before its own
//! waits for. So a step wakes one sampler and not all of them, and each gets its turn.
//!
//! The place is the last step index of the lane that has waited longest ([`place`]): lanes take turns, whatever worker
//! drives them. A lane that was away takes one step before the others, and is last again.
//!
//! A seat is no permit. Nothing is set aside for it, so nothing is lost with its owner:
//!
//! | killed | what happens |
//! |---|---|
//! | while it waits, or called and not come | those behind wait for it until it is reaped, or for one [`SLICE`]: who has slept for as long as that takes the places of those that were called and did not come |
//! | having left its seat, before it calls the next; between making room and calling | reaping calls everyone |
//! | between the word to sleep on and the wake | the same; a slice ends the sleep |
//!
//! As in [`wait`](crate::wait), `fence(SeqCst)` stands between a store and a look on every side: of one who sits down
//! and one who makes room, calls, or leaves, one sees the other.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::kill::{kill_point, killed};
use crate::memory::futex;
use crate::owner::WorkerId;
use crate::sync::{AtomicU64, MODEL, Ordering, fence, spin_loop};
use crate::wait::{Between, SLICE, SPINS};

/// Words of a pair of cache lines (few in models, whose workers have small ids).
const LINE: usize = if MODEL { 1 } else { 16 };
const BITS: usize = LINE;
const SEATS: usize = BITS + WORKERS.div_ceil(64);
const WORKERS: usize = if MODEL { 16 } else { 1024 };

/// Words of a seat: the place, and the call.
const SEAT: usize = 2;
const CALLED: u64 = 1;

const LANES_BITS: u32 = 16;

/// Place of a worker that waits for `lanes` lanes, the longest waiting of which got step number `last` (0: none so
/// far).
#[must_use]
pub fn place(last: u64, lanes: usize) -> u64 {
    last << LANES_BITS | (lanes as u64).min((1 << LANES_BITS) - 1)
}

/// Seats of all workers, in words of any storage. One waiting thread per worker id.
#[derive(Debug, Clone, Copy)]
pub struct Turns<'a> {
    missed: &'a AtomicU64,
    bits: &'a [AtomicU64],
    seats: &'a [AtomicU64],
}

impl<'a> Turns<'a> {
    /// Words that the seats take (zero at first).
    pub const WORDS: usize = SEATS + SEAT * WORKERS;

    /// View words as seats. Panics when `words` is not [`Turns::WORDS`] long.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        assert_eq!(words.len(), Self::WORDS, "words of seats");
        Self { missed: &words[0], bits: &words[BITS..SEATS], seats: &words[SEATS..] }
    }

    /// Lanes that wait before `place` of `me`.
    #[must_use]
    pub fn ahead(&self, me: WorkerId, place: u64) -> u64 {
        let before = |(worker, other): &(usize, u64)| *worker != index(me) && (*other, *worker) < (place, index(me));
        self.waiting().filter(before).map(|(_, other)| lanes(other)).sum()
    }

    /// Whether anyone waits. Call it after the stores that make room, and before the look at what there is.
    #[must_use]
    pub fn anyone(&self) -> bool {
        kill_point("turns: before the call");
        // Pairs with the fence in `Seat::take`: either this side sees the seat, or its owner's look after that fence
        // sees what was stored before this one.
        fence(Ordering::SeqCst);
        self.bits.iter().any(|bits| bits.load(Ordering::Relaxed) != 0)
    }

    /// Call those who wait, in order, as long as `room` says that there is something behind so many lanes. After
    /// [`Turns::anyone`].
    pub fn call(&self, room: impl Fn(u64) -> bool) {
        let mut waiting: Vec<_> = self.waiting().filter(|(_, place)| *place != 0).collect();
        waiting.sort_unstable_by_key(|(worker, place)| (*place, *worker));
        let mut ahead = 0;
        for (worker, place) in waiting {
            if !room(ahead) {
                break;
            }
            self.call_worker(worker);
            ahead += lanes(place);
        }
    }

    /// Call everyone, those that were overtaken too. After [`Turns::anyone`].
    pub fn call_all(&self) {
        self.waiting().for_each(|(worker, _)| self.call_worker(worker));
    }

    fn call_worker(&self, worker: usize) {
        let call = self.seat(worker, 1);
        // Called and not come yet: it has its look, which sees what there is now, before it.
        if call.load(Ordering::Relaxed) != CALLED {
            // Relaxed: the fence in `anyone` is before it, that in `Seat::take` behind the look at it. The kernel
            // compares the word under its own lock, so the worker either sleeps before this wake or does not sleep at
            // all.
            call.store(CALLED, Ordering::Relaxed);
            kill_point("turns: called, not woken");
            futex::wake_all(call);
        }
    }

    /// Wait for one's turn, until `ready` (which gets the number of lanes ahead) gives a value or an error; None when
    /// `timeout` is over first. `place` is asked anew for each look, and never 0: that is the place of who was
    /// overtaken and has not sat down again. `pass` runs after the seat was left, to call the next ones.
    ///
    /// `timeout` None waits without limit, zero looks once. `between` runs at least every [`SLICE`] while waiting.
    pub fn wait<T>(
        &self,
        me: WorkerId,
        timeout: Option<Duration>,
        between: Between<'_>,
        place: impl Fn() -> u64,
        mut ready: impl FnMut(u64) -> Result<Option<T>>,
        pass: impl Fn(),
    ) -> Result<Option<T>> {
        // Where nobody waits there is no need for the place.
        let mut look = |turns: &Self| {
            let alone = turns.bits.iter().all(|bits| bits.load(Ordering::Relaxed) == 0);
            ready(if alone { 0 } else { turns.ahead(me, place()) })
        };
        for spin in 0..=SPINS {
            if let Some(value) = look(self)? {
                return Ok(Some(value));
            }
            if timeout == Some(Duration::ZERO) {
                return Ok(None);
            }
            if spin < SPINS {
                spin_loop();
            }
        }
        let seat = Seat { turns: self, me };
        let result = seat.sleep(timeout, between, &place, &mut ready, &pass);
        drop(seat);
        kill_point("turns: left");
        pass();
        result
    }

    /// Forget a worker that is proven dead, and wake everyone else: it may have been about to call them.
    pub fn reap(&self, dead: WorkerId) {
        self.leave(dead);
        // As in `anyone`, for what the dead one stored: the proof of its death orders that before this.
        fence(Ordering::SeqCst);
        for (worker, _) in self.waiting() {
            // Whatever the word says: the dead one may have stored it and not woken.
            let call = self.seat(worker, 1);
            call.store(CALLED, Ordering::Relaxed);
            futex::wake_all(call);
        }
    }

    /// Waits that the end of a slice helped on, where a call should have come; 0 unless somebody was killed.
    #[must_use]
    pub fn missed_wakeups(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Take the places of those before `place` that were called and did not come: killed, stopped or slow. Who lives
    /// sits down again, at its old place. Whether there were any.
    fn overtake(&self, me: WorkerId, place: u64) -> bool {
        let mut any = false;
        for (worker, other) in self.waiting() {
            let called = self.seat(worker, 1).load(Ordering::Relaxed) == CALLED;
            if called && other != 0 && (other, worker) < (place, index(me)) {
                any |= self.seat(worker, 0).compare_exchange(other, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            }
        }
        any
    }

    /// Workers that have sat down, and their places.
    fn waiting(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.bits.iter().enumerate().flat_map(move |(word, bits)| {
            let mut left = bits.load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                let worker = word * 64 + bit;
                Some((worker, self.seat(worker, 0).load(Ordering::Relaxed)))
            })
        })
    }

    fn leave(&self, worker: WorkerId) {
        let worker = index(worker);
        self.bits[worker / 64].fetch_and(!(1 << (worker % 64)), Ordering::Relaxed);
        self.seat(worker, 0).store(0, Ordering::Relaxed);
    }

    fn seat(&self, worker: usize, word: usize) -> &'a AtomicU64 {
        &self.seats[worker * SEAT + word]
    }
}

fn lanes(place: u64) -> u64 {
    place & ((1 << LANES_BITS) - 1)
}

#[allow(clippy::cast_possible_truncation)] // ids are below 1024
fn index(worker: WorkerId) -> usize {
    worker.get() as usize
}

/// A seat that is taken; left on every way out, unwinding included.
struct Seat<'a, 'b> {
    turns: &'b Turns<'a>,
    me: WorkerId,
}

impl Seat<'_, '_> {
    /// Sit down at a place (again: who was overtaken has none). Whether there was a call since the last time.
    fn take(&self, place: u64) -> bool {
        let (turns, worker) = (self.turns, index(self.me));
        turns.seat(worker, 0).store(place, Ordering::Relaxed);
        let called = turns.seat(worker, 1).swap(0, Ordering::Relaxed) == CALLED;
        turns.bits[worker / 64].fetch_or(1 << (worker % 64), Ordering::Relaxed);
        // Pairs with the fence in `anyone` (of those who make room and those who leave), and that in `reap`.
        fence(Ordering::SeqCst);
        called
    }

    fn sleep<T>(
        &self,
        timeout: Option<Duration>,
        between: Between<'_>,
        place: impl Fn() -> u64,
        mut ready: impl FnMut(u64) -> Result<Option<T>>,
        pass: impl Fn(),
    ) -> Result<Option<T>> {
        let (turns, start) = (self.turns, Instant::now());
        let call = turns.seat(index(self.me), 1);
        let mut slept_out = false;
        loop {
            let now = place();
            debug_assert_ne!(now, 0, "who waits for a lane has a place");
            let called = self.take(now);
            kill_point("turns: seated");
            let overtook = slept_out && !called && turns.overtake(self.me, now);
            if let Some(value) = ready(turns.ahead(self.me, now))? {
                // A slice ran out, nobody has called, yet it is this one's turn: counted, because without kills it must
                // not happen.
                if slept_out && !called && !overtook && call.load(Ordering::Relaxed) != CALLED {
                    turns.missed.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(Some(value));
            }
            if overtook {
                pass(); // those between may have room now
            }
            let left = match timeout {
                None => SLICE,
                Some(timeout) => match timeout.checked_sub(start.elapsed()) {
                    None | Some(Duration::ZERO) => return Ok(None),
                    Some(left) => left.min(SLICE),
                },
            };
            let slept = Instant::now();
            futex::wait(call, 0, left);
            slept_out = slept.elapsed() >= left && !MODEL; // a model has no slices
            if !between() {
                return Err(Error::Interrupted);
            }
        }
    }
}

impl Drop for Seat<'_, '_> {
    fn drop(&mut self) {
        if killed() || (MODEL && std::thread::panicking()) {
            return; // a killed worker leaves its seat to the reaper; a model that failed is over
        }
        self.turns.leave(self.me);
    }
}
