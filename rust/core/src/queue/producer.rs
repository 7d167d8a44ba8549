//! The writing end of a trajectory queue.

#![allow(unsafe_code)] // the bytes of a slot that is owned

use std::time::Duration;

use crate::error::{Error, Result};
use crate::owner::WorkerId;
use crate::queue::slots::Word;
use crate::queue::{Counter, NAME, Queue, WhenFull, now, timeout};
use crate::sync::Ordering;
use crate::wait::Between;

/// Fills slots and commits them.
#[derive(Debug)]
pub struct Producer {
    queue: Queue,
    worker: WorkerId,
}

impl Producer {
    pub(super) fn new(queue: Queue, worker: WorkerId) -> Self {
        Self { queue, worker }
    }

    /// The queue it writes to.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Take a slot to fill. Its content is whatever was there before.
    ///
    /// None: the queue is full and drops new segments (counted). Otherwise waits, [`Error::Timeout`] when `timeout` is
    /// over, [`Error::Closed`] when the queue is or gets closed.
    pub fn acquire(&mut self, limit: Option<Duration>, between: Between<'_>) -> Result<Option<WriteSlot>> {
        let view = self.queue.view()?;
        let (me, when_full) = (self.worker, self.queue.options().when_full);
        // Producers begin at different slots, and each at the same one again: a slot that was in use just now is still in
        // the caches.
        #[allow(clippy::cast_possible_truncation)] // ids are below 1024
        let hint = me.get() as usize;
        let claimed = view.not_full.wait(me, limit, between, || {
            if view.is_closed() {
                return Err(Error::Closed { stream: NAME });
            }
            if let Some(slot) = view.slots.claim(me, hint) {
                return Ok(Some(Some(slot)));
            }
            Ok(match when_full {
                WhenFull::Block => None,
                WhenFull::DropNew => Some(None),
                WhenFull::DropOldest => view.slots.claim_oldest(me).map(Some),
            })
        })?;
        match claimed {
            None => Err(timeout("a free slot of the trajectory queue", limit)),
            Some(None) => {
                view.slots.count(Counter::DroppedNew, 1);
                Ok(None)
            }
            Some(Some(slot)) => {
                view.note(slot)[1].store(0, Ordering::Relaxed);
                Ok(Some(WriteSlot { queue: self.queue.clone(), worker: me, slot, open: true }))
            }
        }
    }

    /// Copy a whole segment in and commit it; its ticket, or None when it was dropped.
    pub fn put(
        &mut self,
        bytes: &[u8],
        note: u64,
        limit: Option<Duration>,
        between: Between<'_>,
    ) -> Result<Option<u64>> {
        let stride = self.queue.schema().stride();
        if bytes.len() != stride {
            return Err(Error::invalid("segment", format!("{} bytes", bytes.len()), format!("{stride} bytes")));
        }
        let Some(mut slot) = self.acquire(limit, between)? else { return Ok(None) };
        slot.bytes_mut().copy_from_slice(bytes);
        slot.set_note(note)?;
        slot.commit().map(Some)
    }

    /// Commit a copy of a slot whose own memory somebody may still look at or write to; None when it was dropped.
    ///
    /// The slot itself stays the caller's until it is dropped, which gives it back uncommitted. Needs a second free slot.
    pub fn commit_copy(
        &mut self,
        slot: &WriteSlot,
        limit: Option<Duration>,
        between: Between<'_>,
    ) -> Result<Option<u64>> {
        let Some(copy) = self.acquire(limit, between)? else { return Ok(None) };
        let view = self.queue.view()?;
        let stride = self.queue.schema().stride();
        // SAFETY: both slots belong to this worker (state WRITING), so no other process touches them, and they differ: the
        // protocol gave `copy` out while `slot` was taken. Raw, because views of `slot` may exist.
        unsafe { std::ptr::copy_nonoverlapping(slot.as_ptr(), copy.as_ptr(), stride) };
        copy.set_note(view.note(slot.slot)[1].load(Ordering::Relaxed))?;
        view.slots.count(Counter::Copied, 1);
        copy.commit().map(Some)
    }
}

/// A slot being filled. Dropping it without [`WriteSlot::commit`] gives it back.
#[derive(Debug)]
pub struct WriteSlot {
    queue: Queue,
    worker: WorkerId,
    slot: usize,
    open: bool,
}

impl WriteSlot {
    /// The queue it belongs to.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// First of `stride` bytes that this worker alone may access until it commits or drops the slot.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.queue.payload(self.slot)
    }

    /// The packed fields.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let stride = self.queue.schema().stride();
        // SAFETY: `stride` bytes inside the mapping, which `self.queue` keeps alive. The slot is in state WRITING of this
        // worker: by the protocol nobody else reads or writes it, and `&mut self` makes this view the only one here.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), stride) }
    }

    /// A word of the producer's own beside the segment, for instance a parameter version (0 unless set).
    pub fn set_note(&self, note: u64) -> Result<()> {
        self.queue.view()?.note(self.slot)[1].store(note, Ordering::Relaxed); // published by the commit
        Ok(())
    }

    /// Hand the segment to the consumers; returns its ticket.
    pub fn commit(mut self) -> Result<u64> {
        let view = self.queue.view()?;
        self.open = false;
        view.note(self.slot)[0].store(now(), Ordering::Relaxed); // published by the commit
        let ticket = view.slots.commit(self.worker, self.slot).map_err(|word| self.lost(word))?;
        view.not_empty.notify();
        Ok(ticket)
    }

    fn lost(&self, word: Word) -> Error {
        let what = format!("slot {} of the {NAME}", self.slot);
        Error::LeaseLost { what, worker: self.worker.get(), owner: word.owner() }
    }
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        // In a forked child the slot is the parent's. A slot that was reaped is not ours to give back: no effect.
        if self.open
            && let Ok(view) = self.queue.view()
            && view.slots.abort(self.worker, self.slot).is_ok()
        {
            view.not_full.notify();
        }
    }
}
