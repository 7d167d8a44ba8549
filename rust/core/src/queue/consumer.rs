//! The reading end of a trajectory queue.

#![allow(unsafe_code)] // the bytes of a slot that is owned

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::kill;
use crate::memory::Window;
use crate::memory::words::{bytes_of, bytes_of_mut};
use crate::queue::seat::Seat;
use crate::queue::slots::{Delivery, Slots};
use crate::queue::{NAME, Options, Queue, age, timeout};
use crate::sync::Ordering;
use crate::wait::Between;

/// Takes committed segments, oldest first.
#[derive(Debug)]
pub struct Consumer {
    seat: Arc<Seat>,
    /// Segments that a batch took before it had to wait, and that nobody has got yet.
    taken: VecDeque<ReadSlot>,
    /// Memory for the next such segments.
    spare: Vec<Vec<u64>>,
}

/// Looks for a consumer, from another thread, whether it would get something.
#[derive(Debug)]
pub struct Watch {
    seat: Arc<Seat>,
}

impl Watch {
    /// Wait until the consumer's [`Consumer::pop`] would not: true; false when `limit` is over first.
    pub fn ready(&self, limit: Option<Duration>, between: Between<'_>) -> Result<bool> {
        let found = wait(&self.seat, limit, between, |slots| slots.oldest().map(drop));
        match found {
            Err(Error::Closed { .. }) => Ok(true),
            found => Ok(found?.is_some()),
        }
    }

    /// Have the wait look at its `between` now.
    pub fn wake(&self) -> Result<()> {
        self.seat.queue().view()?.not_empty.notify_always();
        Ok(())
    }
}

/// Wait until `look` finds something; [`Error::Closed`] at the end of the queue, None when `limit` is over.
fn wait<T>(
    seat: &Seat,
    limit: Option<Duration>,
    between: Between<'_>,
    look: impl Fn(&Slots<'_>) -> Option<T>,
) -> Result<Option<T>> {
    let view = seat.queue().view()?;
    let Options { redelivery, max_deliveries, .. } = seat.queue().options();
    view.not_empty.wait(seat.worker, limit, between, || {
        seat.check()?;
        // In this order: what was committed before the closing is still delivered.
        let closed = view.slots.is_closed();
        match look(&view.slots) {
            None if closed && view.slots.ended(seat.worker, redelivery, max_deliveries) => {
                Err(Error::Closed { stream: NAME })
            }
            found => Ok(found),
        }
    })
}

impl Consumer {
    pub(super) fn new(seat: Seat) -> Self {
        Self { seat: Arc::new(seat), taken: VecDeque::new(), spare: Vec::new() }
    }

    /// The queue it reads from.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        self.seat.queue()
    }

    /// Take the oldest segment. [`Error::Timeout`] when there is none in time, [`Error::Closed`] when there will be
    /// none, [`Error::LeaseLost`] when this end was reaped.
    ///
    /// Segments of one producer come in the order of their commits, except those delivered again.
    pub fn pop(&mut self, limit: Option<Duration>, between: Between<'_>) -> Result<ReadSlot> {
        if let Some(slot) = self.taken.pop_front() {
            return Ok(slot);
        }
        let worker = self.seat.worker;
        let popped = wait(&self.seat, limit, between, |slots| slots.pop(worker))?;
        let delivery = popped.ok_or_else(|| timeout("a segment in the trajectory queue", limit))?;
        Ok(ReadSlot::new(&self.seat, delivery))
    }

    /// For another thread, which waits for this one.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch { seat: Arc::clone(&self.seat) }
    }

    /// Whether `count` segments are there already, which the next batch then gets without a wait.
    pub fn has_ready(&mut self, count: usize) -> Result<bool> {
        while self.taken.len() < count {
            match wait(&self.seat, Some(Duration::ZERO), &mut || true, |slots| slots.pop(self.seat.worker)) {
                Ok(Some(delivery)) => self.taken.push_back(ReadSlot::new(&self.seat, delivery)),
                Ok(None) | Err(Error::Closed { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Give up to `count` segments to `visit` (with their number in the batch); how many it was.
    ///
    /// Waits until all are there, but returns fewer when `limit` is over or the queue closed and at least one came.
    /// Whatever is ready is taken together. No slot is held while waiting, so several consumers cannot starve each
    /// other: what was taken by then is copied. After an error that is still there, and comes with the next call.
    pub fn pop_each(
        &mut self,
        count: usize,
        limit: Option<Duration>,
        between: Between<'_>,
        mut visit: impl FnMut(usize, &ReadSlot),
    ) -> Result<usize> {
        let start = std::time::Instant::now();
        let mut held = std::mem::take(&mut self.taken);
        while held.len() < count {
            match self.pop(Some(Duration::ZERO), between) {
                Ok(slot) => {
                    held.push_back(slot);
                    continue;
                }
                // Not the end yet, perhaps: this consumer may be holding what it waits for.
                Err(Error::Timeout { .. } | Error::Closed { .. }) => {}
                Err(error) => {
                    self.taken = held;
                    return Err(error);
                }
            }
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) && !held.is_empty() {
                break;
            }
            for slot in &mut held {
                slot.copy_out(&mut self.spare)?;
            }
            match self.pop(left, between) {
                Ok(slot) => held.push_back(slot),
                Err(Error::Timeout { .. } | Error::Closed { .. }) if !held.is_empty() => break,
                Err(error) => {
                    self.taken = held;
                    return Err(error);
                }
            }
        }
        self.taken = held.split_off(count.min(held.len()));
        for (number, slot) in held.iter().enumerate() {
            visit(number, slot);
        }
        let count = held.len();
        self.spare.extend(held.into_iter().filter_map(ReadSlot::memory));
        self.spare.truncate(count);
        Ok(count)
    }

    /// Gather segments into `into`, `stride` bytes each; how many (see [`Consumer::pop_each`]).
    pub fn pop_batch(&mut self, into: &mut [u8], limit: Option<Duration>, between: Between<'_>) -> Result<usize> {
        let stride = self.queue().schema().stride();
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
    seat: Arc<Seat>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// In a slot, which is ours.
    Slot { delivery: Delivery, window: Option<Arc<Window>> },
    /// In private memory; the slot was given back.
    Copy(Arc<Copied>),
    /// Given back.
    Gone,
}

#[derive(Debug)]
struct Copied {
    words: Vec<u64>,
    delivery: Delivery,
    notes: [u64; 2],
}

impl ReadSlot {
    fn new(seat: &Arc<Seat>, delivery: Delivery) -> Self {
        Self { seat: Arc::clone(seat), content: Content::Slot { delivery, window: None } }
    }

    /// The queue it belongs to.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        self.seat.queue()
    }

    fn delivery(&self) -> Delivery {
        match &self.content {
            Content::Slot { delivery, .. } => *delivery,
            Content::Copy(copied) => copied.delivery,
            Content::Gone => unreachable!("only `give_back` leaves it so, which ends the slot"),
        }
    }

    /// The packed fields.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if let Content::Copy(copied) = &self.content {
            return bytes_of(&copied.words);
        }
        let stride = self.queue().schema().stride();
        // SAFETY: `stride` bytes inside the mapping, which the queue keeps alive. The slot is in state READING of this
        // worker until `self` is dropped: by the protocol nobody writes it.
        unsafe { std::slice::from_raw_parts(self.queue().payload(self.delivery().slot), stride) }
    }

    /// The first byte of the packed fields at an address that stays valid, and the bytes as they are, for as long as
    /// what comes with it lives. Nobody may write there.
    pub fn view(&mut self) -> Result<(*const u8, Arc<dyn Any + Send + Sync>)> {
        match &mut self.content {
            Content::Copy(copied) => Ok((copied.words.as_ptr().cast(), Arc::clone(copied) as _)),
            Content::Slot { delivery, window } => {
                let window = match window {
                    Some(window) => window,
                    None => window.insert(Arc::new(self.seat.window(delivery.slot)?)),
                };
                Ok((window.show(), Arc::clone(window) as _))
            }
            Content::Gone => unreachable!("see `delivery`"),
        }
    }

    /// Number of its commit, from 1.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.delivery().word.ticket()
    }

    /// Earlier deliveries, each ended by the death of the consumer.
    #[must_use]
    pub fn redeliveries(&self) -> u64 {
        self.delivery().word.deliveries()
    }

    fn notes(&self) -> Result<[u64; 2]> {
        if let Content::Copy(copied) = &self.content {
            return Ok(copied.notes);
        }
        let view = self.queue().view()?;
        let notes = view.note(self.delivery().slot);
        Ok([0, 1].map(|note: usize| notes[note].load(Ordering::Relaxed))) // taken over by the pop
    }

    /// The producer's own word.
    pub fn note(&self) -> Result<u64> {
        Ok(self.notes()?[1])
    }

    /// Time since its commit.
    pub fn age(&self) -> Result<Duration> {
        Ok(age(self.notes()?[0]))
    }

    /// Move the content to private memory and give the slot back.
    fn copy_out(&mut self, spare: &mut Vec<Vec<u64>>) -> Result<()> {
        let Content::Slot { delivery, .. } = self.content else { return Ok(()) };
        let mut words = spare.pop().unwrap_or_else(|| vec![0; self.queue().schema().words()]);
        bytes_of_mut(&mut words).copy_from_slice(self.bytes());
        let copied = Arc::new(Copied { words, delivery, notes: self.notes()? });
        self.give_back()?;
        self.content = Content::Copy(copied);
        Ok(())
    }

    /// The private memory, where there is some and nobody looks at it.
    fn memory(mut self) -> Option<Vec<u64>> {
        match std::mem::replace(&mut self.content, Content::Gone) {
            Content::Copy(copied) => Arc::into_inner(copied).map(|copied| copied.words),
            content => {
                self.content = content;
                None
            }
        }
    }

    /// Give the slot back; as dropping, but says when it was not ours any more.
    pub fn release(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        let view = self.seat.queue().view()?; // fails in a forked child, whose slot is the parent's
        let Content::Slot { delivery, window } = std::mem::replace(&mut self.content, Content::Gone) else {
            return Ok(());
        };
        if let Some(window) = window {
            self.seat.close_window(delivery.slot, window)?; // an error leaves the slot taken until the worker is reaped
        }
        let (slot, worker) = (delivery.slot, delivery.word.owner());
        view.slots.release(delivery).map_err(|word| Error::LeaseLost {
            what: format!("slot {slot} of the {NAME}"),
            worker,
            owner: word.owner(),
        })?;
        view.given_back();
        Ok(())
    }
}

impl Drop for ReadSlot {
    fn drop(&mut self) {
        if !kill::killed() {
            let _ = self.give_back(); // a reaped slot is not ours to give back
        }
    }
}
