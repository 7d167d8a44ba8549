//! The reading end of a trajectory queue.

#![allow(unsafe_code)] // the bytes of a slot that is owned

use std::time::Duration;

use crate::error::{Error, Result};
use crate::owner::WorkerId;
use crate::queue::slots::Delivery;
use crate::queue::{NAME, Queue, age, timeout};
use crate::sync::Ordering;
use crate::wait::Between;

/// Takes committed segments, oldest first.
#[derive(Debug)]
pub struct Consumer {
    queue: Queue,
    worker: WorkerId,
}

impl Consumer {
    pub(super) fn new(queue: Queue, worker: WorkerId) -> Self {
        Self { queue, worker }
    }

    /// The queue it reads from.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Take the oldest segment. [`Error::Timeout`] when there is none in time, [`Error::Closed`] when there will be none.
    ///
    /// Segments of one producer come in the order of their commits, except those delivered again.
    pub fn pop(&mut self, limit: Option<Duration>, between: Between<'_>) -> Result<ReadSlot> {
        let view = self.queue.view()?;
        let popped = view.not_empty.wait(self.worker, limit, between, || {
            // In this order: what was committed before the closing is still delivered.
            let closed = view.is_closed();
            match view.slots.pop(self.worker) {
                None if closed => Err(Error::Closed { stream: NAME }),
                popped => Ok(popped),
            }
        })?;
        let delivery = popped.ok_or_else(|| timeout("a segment in the trajectory queue", limit))?;
        Ok(ReadSlot { queue: self.queue.clone(), delivery, open: true })
    }

    /// Give up to `count` segments to `visit` (with their number in the batch); how many it was.
    ///
    /// Waits until all are there, but returns fewer when `limit` is over or the queue closed and at least one came.
    /// Whatever is ready is taken together and released together after the last of it was visited: no slot is held
    /// while waiting, so several consumers cannot starve each other.
    pub fn pop_each(
        &mut self,
        count: usize,
        limit: Option<Duration>,
        between: Between<'_>,
        mut visit: impl FnMut(usize, &ReadSlot),
    ) -> Result<usize> {
        let start = std::time::Instant::now();
        let mut done = 0;
        let mut held = Vec::new();
        while done < count {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            match self.pop(left, between) {
                Ok(slot) => held.push(slot),
                Err(Error::Timeout { .. } | Error::Closed { .. }) if done > 0 => break,
                Err(error) => return Err(error),
            }
            while done + held.len() < count {
                match self.pop(Some(Duration::ZERO), between) {
                    Ok(slot) => held.push(slot),
                    Err(Error::Timeout { .. } | Error::Closed { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
            for slot in &held {
                visit(done, slot);
                done += 1;
            }
            held.clear();
        }
        Ok(done)
    }

    /// Gather segments into `into`, `stride` bytes each; how many (see [`Consumer::pop_each`]).
    pub fn pop_batch(&mut self, into: &mut [u8], limit: Option<Duration>, between: Between<'_>) -> Result<usize> {
        let stride = self.queue.schema().stride();
        if into.is_empty() || !into.len().is_multiple_of(stride) {
            let expected = format!("one or more times {stride} bytes");
            return Err(Error::invalid("batch", format!("{} bytes", into.len()), expected));
        }
        self.pop_each(into.len() / stride, limit, between, |number, slot| {
            into[number * stride..(number + 1) * stride].copy_from_slice(slot.bytes());
        })
    }
}

/// A segment being read. Dropping it gives the slot back to the producers.
#[derive(Debug)]
pub struct ReadSlot {
    queue: Queue,
    delivery: Delivery,
    open: bool,
}

impl ReadSlot {
    /// The queue it belongs to.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// First of `stride` bytes that stay as they are until the slot is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.queue.payload(self.delivery.slot)
    }

    /// The packed fields.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let stride = self.queue.schema().stride();
        // SAFETY: `stride` bytes inside the mapping, which `self.queue` keeps alive. The slot is in state READING of this
        // worker until `self` is dropped: by the protocol nobody writes it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), stride) }
    }

    /// Number of its commit, from 1.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.delivery.word.ticket()
    }

    /// Earlier deliveries, each ended by the death of the consumer.
    #[must_use]
    pub fn redeliveries(&self) -> u64 {
        self.delivery.word.deliveries()
    }

    /// The producer's own word.
    pub fn note(&self) -> Result<u64> {
        Ok(self.queue.view()?.note(self.delivery.slot)[1].load(Ordering::Relaxed)) // taken over by the pop
    }

    /// Time since its commit.
    pub fn age(&self) -> Result<Duration> {
        Ok(age(self.queue.view()?.note(self.delivery.slot)[0].load(Ordering::Relaxed)))
    }

    /// Give the slot back; as dropping, but says when it was not ours any more.
    pub fn release(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        let view = self.queue.view()?; // fails in a forked child, whose slot is the parent's
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        let (slot, worker) = (self.delivery.slot, self.delivery.word.owner());
        view.slots.release(self.delivery).map_err(|word| Error::LeaseLost {
            what: format!("slot {slot} of the {NAME}"),
            worker,
            owner: word.owner(),
        })?;
        view.not_full.notify();
        Ok(())
    }
}

impl Drop for ReadSlot {
    fn drop(&mut self) {
        let _ = self.give_back(); // a reaped slot is not ours to give back
    }
}
