//! Helper threads that take items of a phase. The caller takes items too, and waits for none that nobody has begun.
//!
//! Beside a busy neighbour a helper may not run for milliseconds. So items are claimed one by one by whoever is free: a
//! helper that sleeps or is held up costs nothing, unless it holds an item. Waiting is bounded: a helper that finds
//! nothing to do spins for [`SPIN`] turns and sleeps; a caller whose last item is with a helper does the same, which
//! gives its core to that helper if it was the one that was missing.

#![allow(unsafe_code)] // Calls the caller's closure from other threads while the caller waits for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::time::Duration;

use crate::memory::futex;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence, spin_loop};

/// Turns of a waiting thread before it sleeps: about 30 us.
const SPIN: u32 = 1500;

/// Longest sleep; a wake that was missed costs no more.
const SLEEP: Duration = Duration::from_millis(100);

/// Next item in a ticket when there is none.
const CLOSED: u64 = u32::MAX as u64;

/// What helpers see of the phase in progress. `ticket` is written first when it ends and last when the next begins: its
/// high half counts phases, its low half is the next item. A helper reads the other words between two looks at the
/// ticket, the second of which claims an item, so they belong to the phase of that item.
struct Phase {
    ticket: AtomicU64,
    call: AtomicUsize,
    work: AtomicUsize,
    items: AtomicU64,
    /// Helpers that may take part.
    helpers: AtomicUsize,
    /// Items done in this phase. Low half: what a caller sleeps on.
    done: AtomicU64,
    /// Counts phases; what helpers sleep on.
    bell: AtomicU64,
    sleepers: AtomicUsize,
    /// The caller sleeps until `done` moves.
    waiting: AtomicUsize,
    /// A helper's item panicked.
    panicked: AtomicUsize,
}

/// Threads that help one caller at a time.
pub(super) struct Pool {
    phase: Phase,
    /// Helpers that were started. Held by the caller that they help.
    started: Mutex<usize>,
}

static POOL: OnceLock<Pool> = OnceLock::new();

impl Pool {
    /// The pool of this process.
    pub(super) fn get() -> &'static Self {
        POOL.get_or_init(|| Self {
            phase: Phase {
                ticket: AtomicU64::new(CLOSED),
                call: AtomicUsize::new(0),
                work: AtomicUsize::new(0),
                items: AtomicU64::new(0),
                helpers: AtomicUsize::new(0),
                done: AtomicU64::new(0),
                bell: AtomicU64::new(0),
                sleepers: AtomicUsize::new(0),
                waiting: AtomicUsize::new(0),
                panicked: AtomicUsize::new(0),
            },
            started: Mutex::new(0),
        })
    }

    /// Call `work` once for each of `items`, on this thread and up to `threads - 1` others; returns when all are done.
    ///
    /// Another caller that finds the helpers taken, or that none can be started, does everything itself.
    ///
    /// # Panics
    /// When `work` did.
    pub(super) fn run<F: Fn(usize) + Sync>(&'static self, threads: usize, items: usize, work: F) {
        let alone = threads <= 1 || items <= 1;
        let held = match self.started.try_lock() {
            Ok(started) if !alone => Some(started),
            // A caller that panicked has left nothing unfinished.
            Err(TryLockError::Poisoned(started)) if !alone => Some(started.into_inner()),
            _ => None,
        };
        let Some(mut started) = held else {
            (0..items).for_each(work);
            return;
        };
        while *started < threads - 1 {
            let index = *started;
            let helper = std::thread::Builder::new().name("rlz-dense".into());
            if helper.spawn(move || Self::get().phase.help(index)).is_err() {
                break;
            }
            *started += 1;
        }
        self.phase.run((threads - 1).min(*started), items as u64, &work);
    }
}

/// Calls a closure through the two words of a phase.
unsafe fn call<F: Fn(usize) + Sync>(work: *const (), item: usize) {
    // SAFETY: `Phase::run` made the pointer from an `&F` that lives until every claimed item is done.
    unsafe { (*work.cast::<F>())(item) }
}

type Call = unsafe fn(*const (), usize);

impl Phase {
    fn run<F: Fn(usize) + Sync>(&self, helpers: usize, items: u64, work: &F) {
        let phase = (self.ticket.load(Ordering::Relaxed) >> 32) + 1;
        self.call.store(call::<F> as *const () as usize, Ordering::Relaxed);
        self.work.store(std::ptr::from_ref(work) as usize, Ordering::Relaxed);
        self.items.store(items, Ordering::Relaxed);
        self.helpers.store(helpers, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        // Pairs with the load in `claim`: whoever sees this ticket sees the words above.
        self.ticket.store(phase << 32, Ordering::Release);
        self.bell.store(phase, Ordering::Relaxed);
        // Pairs with the fence in `sleep`: either the helper sees the ticket, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            futex::wake_all(&self.bell);
        }
        // A panic of the caller's share must not let go of the closure while helpers use it.
        let close = Close { phase: self, items };
        while let Some((item, _, _)) = self.claim(usize::MAX) {
            let _counted = Done(self);
            work(item);
        }
        drop(close);
        assert!(self.panicked.swap(0, Ordering::Relaxed) == 0, "a helper panicked; its message is above");
    }

    /// An item, and how to do it. `helper`: index, `usize::MAX` for the caller.
    fn claim(&self, helper: usize) -> Option<(usize, Call, *const ())> {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        loop {
            let next = ticket & CLOSED;
            let items = self.items.load(Ordering::Relaxed);
            if next >= items || (helper != usize::MAX && helper >= self.helpers.load(Ordering::Relaxed)) {
                return None;
            }
            let (call, work) = (self.call.load(Ordering::Relaxed), self.work.load(Ordering::Relaxed));
            match self.ticket.compare_exchange_weak(ticket, ticket + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // SAFETY: the ticket did not change phase since it was read, so this is the function that
                    // `run` stored for this phase.
                    let call = unsafe { std::mem::transmute::<*const (), Call>(call as *const ()) };
                    return Some((next as usize, call, work as *const ()));
                }
                Err(now) => ticket = now,
            }
        }
    }

    /// What a helper does all its life.
    fn help(&self, index: usize) {
        let mut idle = 0;
        loop {
            if let Some((item, call, work)) = self.claim(index) {
                let counted = Done(self);
                // SAFETY: the caller of this phase waits for this item before it lets go of the closure.
                if catch_unwind(AssertUnwindSafe(|| unsafe { call(work, item) })).is_err() {
                    self.panicked.store(1, Ordering::Relaxed);
                }
                drop(counted);
                idle = 0;
            } else if idle < SPIN {
                idle += 1;
                spin_loop();
            } else {
                self.sleep(index);
                idle = 0;
            }
        }
    }

    fn sleep(&self, index: usize) {
        let bell = self.bell.load(Ordering::Relaxed);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // see `run`
        let ticket = self.ticket.load(Ordering::Relaxed);
        let nothing =
            ticket & CLOSED >= self.items.load(Ordering::Relaxed) || index >= self.helpers.load(Ordering::Relaxed);
        if nothing {
            futex::wait(&self.bell, bell as u32, SLEEP);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn wait_for(&self, items: u64) {
        let mut idle = 0;
        loop {
            // Pairs with the release in `Done`: what the helper wrote is visible.
            let done = self.done.load(Ordering::Acquire);
            if done >= items {
                return;
            }
            if idle < SPIN {
                idle += 1;
                spin_loop();
                continue;
            }
            self.waiting.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst); // see `Done`
            if self.done.load(Ordering::Relaxed) == done {
                futex::wait(&self.done, done as u32, SLEEP);
            }
            self.waiting.store(0, Ordering::Relaxed);
        }
    }
}

/// Counts an item as done, also when it panics.
struct Done<'a>(&'a Phase);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.done.fetch_add(1, Ordering::Release);
        // Pairs with the fence in `wait_for`: either the caller sees this item done, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.0.waiting.load(Ordering::Relaxed) != 0 {
            futex::wake_all(&self.0.done);
        }
    }
}

/// Ends a phase: no item can be claimed any more, and all that were are done.
struct Close<'a> {
    phase: &'a Phase,
    items: u64,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let closed = self.phase.ticket.load(Ordering::Relaxed) | CLOSED;
        let claimed = self.phase.ticket.swap(closed, Ordering::AcqRel) & CLOSED;
        self.phase.wait_for(claimed.min(self.items));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_done_once_whoever_comes_and_goes() {
        let callers: Vec<_> = (0..3)
            .map(|caller| {
                std::thread::spawn(move || {
                    for round in 0..3000_usize {
                        let items = (round * 7 + caller) % 23;
                        let counts: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                        Pool::get().run(1 + round % 4, items, |item| {
                            counts[item].fetch_add(1, Ordering::Relaxed);
                        });
                        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "round {round}");
                        if round % 500 == 0 {
                            std::thread::sleep(Duration::from_millis(2)); // helpers fall asleep
                        }
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    }

    #[test]
    fn a_panic_ends_the_call_and_nothing_else() {
        let caught = catch_unwind(|| Pool::get().run(3, 64, |item| assert!(item != 40, "planted")));
        assert!(caught.is_err());
        let done = AtomicUsize::new(0);
        Pool::get().run(3, 64, |_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 64);
    }
}
