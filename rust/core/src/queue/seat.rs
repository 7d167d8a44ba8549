//! An end's place in the queue: one producer and one consumer for each worker id, both in one process.
//!
//! Reaping takes everything that an id holds. If two ends shared an id, the death of one would free slots under the
//! hands of the other, and two would write one segment. So an end takes its seat (one CAS) and keeps it until it and
//! its last slot are gone; a dead one's seat is cleared by its reaping.

use crate::error::{Error, Result};
use crate::kill;
use crate::memory::Window;
use crate::owner::{Holder, WorkerId};
use crate::queue::{NAME, Queue};
use crate::sync::{AtomicU64, MODEL, Ordering};

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Producer = 0,
    Consumer = 1,
}

/// Ids that have seats; few in models.
const IDS: usize = if MODEL { 12 } else { 1023 };

/// Words of all seats: two for each id, of its producer and of its consumer; 0 = free.
pub(super) const SEATS: usize = 2 * IDS;

/// The seats of one id.
#[allow(clippy::cast_possible_truncation)] // ids are below 1024
pub(super) fn of(seats: &[AtomicU64], worker: WorkerId) -> &[AtomicU64] {
    let first = 2 * worker.get() as usize;
    &seats[first..first + 2]
}

/// A seat that is taken; free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    queue: Queue,
    side: Side,
    pub(super) worker: WorkerId,
    pub(super) holder: Holder,
}

impl Seat {
    pub(super) fn take(queue: &Queue, worker: WorkerId, side: Side) -> Result<Self> {
        let view = queue.view()?;
        let seats = of(view.seats, worker);
        let holder = Holder::new(worker);
        let owned = |what: &str, word: u64| Error::Owned {
            what: format!("the {what} of worker id {worker} at the {NAME} (give each process an id of its own)"),
            worker: worker.get(),
            owner: Holder::from_word(word).worker(),
        };
        let sides = ["producer", "consumer"];
        // Acquire, pairs with the Release exchange in `drop` and the Release store in `reap`: what the last end of this
        // id held has been given back.
        let mine = &seats[side as usize];
        mine.compare_exchange(0, holder.word(), Ordering::Acquire, Ordering::Relaxed)
            .map_err(|word| owned(sides[side as usize], word))?;
        let seat = Self { queue: queue.clone(), side, worker, holder };
        // Two processes that come at once may refuse each other.
        let other = seats[1 - side as usize].load(Ordering::Relaxed);
        if other != 0 && !Holder::from_word(other).same_process(holder) {
            return Err(owned(sides[1 - side as usize], other)); // and gives back what was taken
        }
        Ok(seat)
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// An error when this end was taken for dead, and its id may be another's.
    pub(super) fn check(&self) -> Result<()> {
        let found = of(self.queue.view()?.seats, self.worker)[self.side as usize].load(Ordering::Relaxed);
        if found == self.holder.word() {
            return Ok(());
        }
        let what = format!("its end of the {NAME}");
        Err(Error::LeaseLost { what, worker: self.worker.get(), owner: Holder::from_word(found).worker() })
    }

    /// Where the payload of a slot can be looked at for longer than the slot is owned.
    pub(super) fn window(&self, slot: usize) -> Result<Window> {
        self.queue.window(slot, self.side == Side::Producer)
    }

    /// Give a window back: for the next time, if nobody has addresses of it, else to them.
    pub(super) fn close_window(&self, slot: usize, window: std::sync::Arc<Window>) -> Result<()> {
        match std::sync::Arc::try_unwrap(window) {
            Ok(window) => self.queue.keep_window(slot, self.side == Side::Producer, window),
            Err(window) => {
                window
                    .detach()
                    .map_err(|error| Error::system("giving arrays of a queue's slot memory of their own", error))?;
                self.queue.view()?.slots.count(super::Counter::Copied, 1);
            }
        }
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if kill::killed() {
            return; // the reaper clears it
        }
        // In a forked child the seat is the parent's.
        if let Ok(view) = self.queue.view() {
            let seat = &of(view.seats, self.worker)[self.side as usize];
            // Release, pairs with the Acquire exchange in `take`. It fails when this end was taken for dead.
            let _ = seat.compare_exchange(self.holder.word(), 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}
