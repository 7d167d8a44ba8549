//! The writing end of a trajectory queue.

#![allow(unsafe_code)] // the bytes of a slot that is owned

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::kill;
use crate::memory::Window;
use crate::queue::seat::Seat;
use crate::queue::slots::Word;
use crate::queue::{Counter, NAME, Queue, WhenFull, now, timeout};
use crate::sync::Ordering;
use crate::wait::Between;

/// Fills slots and commits them.
#[derive(Debug)]
pub struct Producer {
    seat: Arc<Seat>,
}

impl Producer {
    pub(super) fn new(seat: Seat) -> Self {
        Self { seat: Arc::new(seat) }
    }

    /// The queue it writes to.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        self.seat.queue()
    }

    /// Take a slot to fill. Its content is whatever was there before.
    ///
    /// None: the queue is full and drops new segments (counted). Otherwise waits, [`Error::Timeout`] when `timeout` is
    /// over, [`Error::Closed`] when the queue is or gets closed, [`Error::LeaseLost`] when this end was reaped.
    pub fn acquire(&mut self, limit: Option<Duration>, between: Between<'_>) -> Result<Option<WriteSlot>> {
        let queue = self.seat.queue();
        let view = queue.view()?;
        let (worker, me, when_full) = (self.seat.worker, self.seat.holder, queue.options().when_full);
        // Producers begin at different slots, and each at the same one again: a slot that was in use just now is still
        // in the caches.
        #[allow(clippy::cast_possible_truncation)] // ids are below 1024
        let hint = worker.get() as usize;
        let claimed = view.not_full.wait(worker, limit, between, || {
            self.seat.check()?;
            if view.slots.is_closed() {
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
                Ok(Some(WriteSlot { seat: Arc::clone(&self.seat), slot, open: true, window: None }))
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
        let stride = self.queue().schema().stride();
        if bytes.len() != stride {
            return Err(Error::invalid("segment", format!("{} bytes", bytes.len()), format!("{stride} bytes")));
        }
        let Some(mut slot) = self.acquire(limit, between)? else { return Ok(None) };
        slot.bytes_mut().copy_from_slice(bytes);
        slot.set_note(note)?;
        slot.commit().map(Some)
    }
}

/// A slot being filled. Dropping it without [`WriteSlot::commit`] gives it back.
#[derive(Debug)]
pub struct WriteSlot {
    seat: Arc<Seat>,
    slot: usize,
    open: bool,
    window: Option<Arc<Window>>,
}

impl WriteSlot {
    /// The queue it belongs to.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        self.seat.queue()
    }

    /// First of `stride` bytes that this worker alone may access until it commits or drops the slot.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.queue().payload(self.slot)
    }

    /// The packed fields.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let stride = self.queue().schema().stride();
        // SAFETY: `stride` bytes inside the mapping, which the queue keeps alive. The slot is in state WRITING of this
        // worker: by the protocol nobody else reads or writes it, and `&mut self` makes this view the only one here.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), stride) }
    }

    /// The same bytes at another address, which stays valid for as long as what comes with it lives.
    ///
    /// When that is longer than the slot is owned, the memory there becomes private: what is written then is seen by
    /// nobody.
    pub fn view(&mut self) -> Result<(*mut u8, Arc<dyn Any + Send + Sync>)> {
        let window = match &self.window {
            Some(window) => window,
            None => self.window.insert(Arc::new(self.seat.window(self.slot)?)),
        };
        Ok((window.show(), Arc::clone(window) as _))
    }

    /// A word of the producer's own beside the segment, for instance a parameter version (0 unless set).
    pub fn set_note(&self, note: u64) -> Result<()> {
        self.queue().view()?.note(self.slot)[1].store(note, Ordering::Relaxed); // published by the commit
        Ok(())
    }

    /// The word that was set.
    pub fn note(&self) -> Result<u64> {
        Ok(self.queue().view()?.note(self.slot)[1].load(Ordering::Relaxed)) // this worker's own
    }

    /// Hand the segment to the consumers; returns its ticket. Never waits.
    pub fn commit(mut self) -> Result<u64> {
        let view = self.seat.queue().view()?;
        self.open = false;
        if let Some(window) = self.window.take() {
            // After an error somebody can still write through it: the slot stays taken until the worker is reaped.
            self.seat.close_window(self.slot, window)?;
        }
        view.note(self.slot)[0].store(now(), Ordering::Relaxed); // published by the commit
        let ticket = view.slots.commit(self.seat.holder, self.slot).map_err(|word| self.lost(word))?;
        view.not_empty.notify();
        Ok(ticket)
    }

    fn lost(&self, word: Word) -> Error {
        let what = format!("slot {} of the {NAME}", self.slot);
        Error::LeaseLost { what, worker: self.seat.worker.get(), owner: word.owner() }
    }
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        // In a forked child the slot is the parent's. A slot that was reaped is not ours to give back: no effect.
        let Ok(view) = self.seat.queue().view() else { return };
        if !self.open || kill::killed() {
            return;
        }
        if let Some(window) = self.window.take()
            && self.seat.close_window(self.slot, window).is_err()
        {
            return; // arrays look at it that cannot have memory of their own: taken until the worker is reaped
        }
        if view.slots.abort(self.seat.holder, self.slot).is_ok() {
            view.given_back();
        }
    }
}
