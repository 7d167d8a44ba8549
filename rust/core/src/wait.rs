//! Sleeping until another process has done something: the event count.
//!
//! A waiter announces itself with a bit of its own before it looks a last time, a notifier looks for bits after it has
//! published. One of them sees the other, whoever is first (`fence(SeqCst)` on both sides), so no wake is lost,
//! and a notifier pays a system call only when somebody sleeps. A bit per worker instead of a count: a killed waiter
//! leaves a known bit, which reaping clears. Until then it costs the notifiers a needless wake, never a hang.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::kill;
use crate::memory::futex;
use crate::owner::WorkerId;
use crate::sync::{AtomicU64, MODEL, Ordering, fence, spin_loop};

/// Longest sleep without a look at the predicate and the caller's signals.
pub const SLICE: Duration = Duration::from_millis(100);

/// Looks before the first sleep: a few microseconds, far below the price of a sleep and a wake.
pub(crate) const SPINS: u32 = if MODEL { 0 } else { 64 };

/// Sleep of [`poll`] between two looks.
const POLL: Duration = Duration::from_millis(5);

/// First word of the waiters' bits; few words, and workers up to 63, in models.
const BITMAP: usize = if MODEL { 2 } else { 16 };

/// Check that runs between slices; `false` ends the wait with [`Error::Interrupted`].
pub type Between<'a> = &'a mut dyn FnMut() -> bool;

/// A condition to wait for, in shared words. One waiting thread per worker id.
#[derive(Debug, Clone, Copy)]
pub struct EventCount<'a> {
    seq: &'a AtomicU64,
    missed: &'a AtomicU64,
    waiters: &'a [AtomicU64],
}

impl<'a> EventCount<'a> {
    /// Words of shared memory that an event count takes (zero at first): 256 bytes, to be aligned to 128.
    pub const WORDS: usize = if MODEL { 3 } else { 32 };

    /// View an event count in its words. Panics when `words` is not [`EventCount::WORDS`] long.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        assert_eq!(words.len(), Self::WORDS, "words of an event count");
        Self { seq: &words[0], missed: &words[1], waiters: &words[BITMAP..] }
    }

    /// Wake the waiters, if any. Call it after the stores that make their predicate true.
    pub fn notify(&self) {
        self.notify_if(|| true);
    }

    /// Wake the waiters, if any, when `due` says that their predicate may be true. Saves the wakes that would be in
    /// vain.
    ///
    /// `due` runs behind the fence: of several notifiers whose stores make the predicate true together, at least the
    /// last one sees them all.
    pub fn notify_if(&self, due: impl FnOnce() -> bool) {
        kill::kill_point("event: before the wake");
        // Pairs with the fence in `wait`: either this side sees the waiter's bit (and what it stored before waiting),
        // or the waiter's look after its fence sees what was stored before this one.
        fence(Ordering::SeqCst);
        if self.waiters.iter().any(|bits| bits.load(Ordering::Relaxed) != 0) && due() {
            self.notify_always();
        }
    }

    /// Wake whoever sleeps, without looking for bits.
    pub fn notify_always(&self) {
        // Release, pairs with the Acquire load of `seq` in `wait`. The kernel compares `seq` under its own lock, so a
        // waiter that read the old value either sleeps before this wake or does not sleep at all.
        self.seq.fetch_add(1, Ordering::Release);
        futex::wake_all(self.seq);
    }

    /// Wait until `ready` gives a value or an error; None when `timeout` is over first.
    ///
    /// `timeout` None waits without limit, zero looks once. `between` runs at least every [`SLICE`] while waiting.
    pub fn wait<T>(
        &self,
        worker: WorkerId,
        timeout: Option<Duration>,
        between: Between<'_>,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if let Some(value) = ready()? {
            return Ok(Some(value));
        }
        if timeout == Some(Duration::ZERO) {
            return Ok(None);
        }
        let start = Instant::now();
        for _ in 0..SPINS {
            spin_loop();
            if let Some(value) = ready()? {
                return Ok(Some(value));
            }
        }
        let announced = Announced::new(self, worker);
        kill::kill_point("event: announced");
        let mut slept_out = None;
        loop {
            // Acquire, pairs with the Release addition in `notify_always`.
            let seq = self.seq.load(Ordering::Acquire);
            if let Some(value) = ready()? {
                // A slice ran out and nobody has announced anything since, yet there is something: counted, because
                // without kills it must not happen.
                if slept_out == Some(self.seq.load(Ordering::Acquire)) {
                    self.missed.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(Some(value));
            }
            let left = match timeout {
                None => SLICE,
                Some(timeout) => match timeout.checked_sub(start.elapsed()) {
                    None | Some(Duration::ZERO) => return Ok(None),
                    Some(left) => left.min(SLICE),
                },
            };
            let slept = Instant::now();
            #[allow(clippy::cast_possible_truncation)] // the futex compares the low half
            futex::wait(self.seq, seq as u32, left);
            slept_out = (slept.elapsed() >= left && !MODEL).then_some(seq); // a model has no slices
            if !between() {
                return Err(Error::Interrupted);
            }
            announced.again();
        }
    }

    /// Forget a worker that is proven dead, and wake everyone else: the dead one may have been about to notify.
    pub fn reap(&self, worker: WorkerId) {
        let (word, bit) = place(worker);
        self.waiters[word].fetch_and(!bit, Ordering::Relaxed);
        self.notify_always();
    }

    /// Waits whose predicate was found true after a slice ran out without a wake; 0 unless a notifier was killed.
    #[must_use]
    pub fn missed_wakeups(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// [`EventCount::wait`] for a process that nobody knows of: it writes nothing, so it is not woken, and looks every few
/// milliseconds instead.
pub fn poll<T>(
    timeout: Option<Duration>,
    between: Between<'_>,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let start = Instant::now();
    loop {
        if let Some(value) = ready()? {
            return Ok(Some(value));
        }
        let left = timeout.map_or(POLL, |timeout| timeout.saturating_sub(start.elapsed()).min(POLL));
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(left);
        if !between() {
            return Err(Error::Interrupted);
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // ids are below 1024
fn place(worker: WorkerId) -> (usize, u64) {
    let id = worker.get();
    ((id / 64) as usize, 1 << (id % 64))
}

/// A waiter's bit; cleared on every way out, unwinding included.
struct Announced<'a, 'b> {
    event: &'b EventCount<'a>,
    worker: WorkerId,
}

impl<'a, 'b> Announced<'a, 'b> {
    fn new(event: &'b EventCount<'a>, worker: WorkerId) -> Self {
        let announced = Self { event, worker };
        announced.again();
        announced
    }

    /// Set the bit (again: a reaper that took the id for dead cleared it, or it is still set).
    fn again(&self) {
        let (word, bit) = place(self.worker);
        self.event.waiters[word].fetch_or(bit, Ordering::Relaxed);
        // Pairs with the fence in `notify_if`.
        fence(Ordering::SeqCst);
    }
}

impl Drop for Announced<'_, '_> {
    fn drop(&mut self) {
        if kill::killed() || (MODEL && std::thread::panicking()) {
            return; // a killed waiter leaves its bit to the reaper; a model that failed is over
        }
        let (word, bit) = place(self.worker);
        self.event.waiters[word].fetch_and(!bit, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..EventCount::WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn worker(id: u64) -> WorkerId {
        WorkerId::new(id).unwrap()
    }

    #[test]
    fn timeouts() {
        let words = words();
        let event = EventCount::new(&words);
        let never = || Ok(None::<()>);
        assert!(event.wait(worker(1), Some(Duration::ZERO), &mut || true, never).unwrap().is_none());
        let start = Instant::now();
        let limit = Duration::from_millis(30);
        assert!(event.wait(worker(1022), Some(limit), &mut || true, never).unwrap().is_none());
        assert!(start.elapsed() >= limit && start.elapsed() < Duration::from_secs(5));
        assert!(words.iter().skip(2).all(|word| word.load(Ordering::Relaxed) == 0), "a waiter's bit stayed");
    }

    #[test]
    fn the_check_between_slices_ends_a_wait() {
        let words = words();
        let event = EventCount::new(&words);
        let wait = |between: Between<'_>| event.wait(worker(5), None, between, || Ok(None::<()>));
        let poll = |between: Between<'_>| poll(None, between, || Ok(None::<()>));
        for wait in [&wait as &dyn Fn(Between<'_>) -> Result<Option<()>>, &poll] {
            let mut calls = 0;
            let mut between = || {
                calls += 1;
                calls < 2
            };
            assert!(matches!(wait(&mut between), Err(Error::Interrupted)));
            assert_eq!(calls, 2);
        }
    }

    #[test]
    fn polling_looks_until_the_time_is_over() {
        let limit = Duration::from_millis(30);
        let start = Instant::now();
        assert!(poll(Some(limit), &mut || true, || Ok(None::<()>)).unwrap().is_none());
        assert!(start.elapsed() >= limit);
        assert!(poll(Some(Duration::ZERO), &mut || panic!("a poll slept"), || Ok(None::<()>)).unwrap().is_none());
        let mut looks = 0;
        let third = || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        };
        assert_eq!(poll(None, &mut || true, third).unwrap(), Some(3));
    }

    #[test]
    fn no_wake_is_missed_in_ping_pong() {
        const ROUNDS: u64 = 3_000;
        let (ping, pong) = (words(), words());
        let turn = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (me, mine, other) in [(0, &ping, &pong), (1, &pong, &ping)] {
                let turn = &turn;
                scope.spawn(move || {
                    let (mine, other) = (EventCount::new(mine), EventCount::new(other));
                    for round in 0..ROUNDS {
                        let want = 2 * round + me;
                        mine.wait(worker(me + 1), None, &mut || true, || {
                            Ok((turn.load(Ordering::Acquire) == want).then_some(()))
                        })
                        .unwrap();
                        turn.store(want + 1, Ordering::Release);
                        other.notify();
                    }
                });
            }
        });
        assert_eq!(turn.load(Ordering::Relaxed), 2 * ROUNDS);
        assert_eq!(EventCount::new(&ping).missed_wakeups() + EventCount::new(&pong).missed_wakeups(), 0);
    }

    #[test]
    fn reaping_clears_the_bit_and_wakes() {
        let words = words();
        let event = EventCount::new(&words);
        words[BITMAP].store(1 << 7, Ordering::Relaxed);
        event.reap(worker(7));
        assert_eq!(words[BITMAP].load(Ordering::Relaxed), 0);
        assert_eq!(words[0].load(Ordering::Relaxed), 1);
    }
}
