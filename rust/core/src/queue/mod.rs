//! Trajectory queue: a bounded number of slots, many producers, many consumers, zero copy.
//!
//! [`slots`] is the protocol on state words, [`Producer`] and [`Consumer`] are its two ends. A slot's payload is plain memory:
//! the protocol gives it to one owner at a time, so the owner may look at it as ordinary bytes and arrays. (A ring of
//! sequence numbers would be cheaper still, but a producer that is killed after its claim would stall it for good.)
//!
//! After the header page, in words:
//!
//! | what | words | content |
//! |---|---|---|
//! | tickets | own line | tickets given out |
//! | closed | own line | 1 once closed |
//! | counters | own line | see [`Counter`] |
//! | not empty, not full | 2 x [`EventCount::WORDS`] | who waits |
//! | states | 1 per slot | [`slots::Word`] |
//! | notes | 2 per slot | commit time (ns, monotonic clock), the producer's own word |
//!
//! and then, page aligned, the payloads, `stride` bytes each.

mod consumer;
mod producer;
pub mod slots;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Access, Header, PAGE, Segment, Stream, round_up};
use crate::owner::WorkerId;
use crate::schema::{Field, Schema};
use crate::sync::{AtomicU64, Ordering};
use crate::wait::EventCount;

pub use consumer::{Consumer, ReadSlot};
pub use producer::{Producer, WriteSlot};
pub use slots::{Counter, Reaped, Redelivery};
use slots::{FULL, MAX_DELIVERIES, READING, Slots, WRITING};

const NAME: &str = "trajectory queue";

/// Words of a pair of cache lines.
const LINE: usize = 16;
const CLOSED: usize = LINE;
const COUNTERS: usize = 2 * LINE;
const NOT_EMPTY: usize = 3 * LINE;
const NOT_FULL: usize = NOT_EMPTY + EventCount::WORDS;
const STATES: usize = NOT_FULL + EventCount::WORDS;
/// Commit time and the producer's own word.
const NOTES: usize = 2;

/// Most slots: a look goes over the words of all of them, which takes half a microsecond for so many.
pub const MAX_SLOTS: usize = 1_024;

/// What a producer does when no slot is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum WhenFull {
    /// Wait for a consumer.
    Block = 0,
    /// Drop the new segment; counted.
    DropNew = 1,
    /// Drop the oldest committed segment; counted. Waits only while every slot is being written or read.
    DropOldest = 2,
}

/// How a queue behaves; part of its layout, so both ends agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Number of slots: committed segments waiting plus those being written and read.
    pub slots: usize,
    /// When no slot is free.
    pub when_full: WhenFull,
    /// When a consumer dies while it holds a segment.
    pub redelivery: Redelivery,
    /// Deliveries of one segment before it is dropped, 1 to 15: one that kills its consumers must not do so for ever.
    pub max_deliveries: u64,
}

impl Options {
    /// Block when full, deliver at least once and at most three times.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { slots, when_full: WhenFull::Block, redelivery: Redelivery::AtLeastOnce, max_deliveries: 3 }
    }

    fn params(self, stride: usize) -> [u64; 5] {
        let Self { slots, when_full, redelivery, max_deliveries } = self;
        [slots as u64, stride as u64, when_full as u64, redelivery as u64, max_deliveries]
    }

    /// From a header: hostile input.
    fn parse(params: &[u64]) -> Result<(Self, usize), String> {
        let &[slots, stride, when_full, redelivery, max_deliveries] = params else {
            unreachable!("checked by the header")
        };
        let when_full = match when_full {
            0 => WhenFull::Block,
            1 => WhenFull::DropNew,
            2 => WhenFull::DropOldest,
            other => return Err(format!("unknown way {other} of being full")),
        };
        let redelivery = match redelivery {
            0 => Redelivery::AtLeastOnce,
            1 => Redelivery::AtMostOnce,
            other => return Err(format!("unknown redelivery {other}")),
        };
        let slots = usize::try_from(slots).map_err(|e| e.to_string())?;
        let stride = usize::try_from(stride).map_err(|e| e.to_string())?;
        let options = Self { slots, when_full, redelivery, max_deliveries };
        options.check().map_err(|e| e.to_string())?;
        Ok((options, stride))
    }

    fn check(self) -> Result<()> {
        if !(1..=MAX_SLOTS).contains(&self.slots) {
            return Err(Error::invalid("slots", self.slots, format!("1 to {MAX_SLOTS}")));
        }
        if !(1..=MAX_DELIVERIES).contains(&self.max_deliveries) {
            return Err(Error::invalid("max_deliveries", self.max_deliveries, format!("1 to {MAX_DELIVERIES}")));
        }
        Ok(())
    }
}

/// Slots by state, at one look (not a snapshot while others work).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Ready to be written.
    pub free: usize,
    /// Being written.
    pub writing: usize,
    /// Committed, waiting for a consumer.
    pub full: usize,
    /// Being read.
    pub reading: usize,
}

/// A trajectory queue in shared memory. Cheap to clone; all clones are one mapping.
#[derive(Debug, Clone)]
pub struct Queue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    segment: Segment,
    schema: Schema,
    options: Options,
    header: Header,
    data: usize,
    payload: usize,
}

/// Byte offsets of the payloads and the end; None on overflow.
fn layout(data: usize, slots: usize, stride: usize) -> Option<(usize, usize)> {
    let control = data.checked_add(control_words(slots).checked_mul(8)?)?;
    let payload = round_up(control, PAGE)?;
    let total = round_up(payload.checked_add(slots.checked_mul(stride)?)?, PAGE)?;
    Some((payload, total))
}

fn control_words(slots: usize) -> usize {
    STATES + slots * (1 + NOTES)
}

impl Queue {
    /// Create a queue of segments with these fields (shapes include the time axis).
    pub fn create(fields: &[Field], options: Options, run_id: u64) -> Result<Self> {
        options.check()?;
        let schema = Schema::new(fields)?;
        let header = Header::new(Stream::Queue, run_id, &options.params(schema.stride()), schema.fields().to_vec());
        let data = header.data_offset()?;
        let (payload, total) = layout(data, options.slots, schema.stride())
            .ok_or_else(|| Error::invalid("slots", options.slots, "a queue below 2^63 bytes"))?;
        let segment = Segment::create("queue", total)?;
        header.write(&segment)?;
        Header::publish(&segment)?; // zero words are free slots
        Ok(Self { inner: Arc::new(Inner { segment, schema, options, header, data, payload }) })
    }

    /// Attach to the queue behind a descriptor, which stays the caller's.
    pub fn attach(fd: BorrowedFd<'_>) -> Result<Self> {
        let segment = Segment::attach(fd, Access::ReadWrite)?;
        let header = Header::read(&segment, Stream::Queue)?;
        let bad = |reason: String| Error::BadSegment { stream: NAME, reason };
        let (options, stride) = Options::parse(&header.params).map_err(bad)?;
        let fields: Vec<_> = header.fields.iter().map(|placed| placed.field.clone()).collect();
        let schema = Schema::new(&fields).map_err(|e| bad(e.to_string()))?;
        if schema.fields() != header.fields || schema.stride() != stride {
            let here = schema.stride();
            return Err(bad(format!("its segments are laid out differently: {stride} bytes there, {here} here")));
        }
        let data = header.data_offset()?;
        let payload = layout(data, options.slots, stride).filter(|(_, total)| *total == segment.len());
        let (payload, _) = payload.ok_or_else(|| {
            bad(format!("{} slots of {stride} bytes do not make {} bytes", options.slots, segment.len()))
        })?;
        Ok(Self { inner: Arc::new(Inner { segment, schema, options, header, data, payload }) })
    }

    /// How it behaves.
    #[must_use]
    pub fn options(&self) -> Options {
        self.inner.options
    }

    /// Layout of a segment.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.inner.schema
    }

    /// Header of the shared memory.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.inner.header
    }

    /// Bytes of shared memory.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.inner.segment.len()
    }

    /// A writing end. One waiting thread per worker id and end.
    #[must_use]
    pub fn producer(&self, worker: WorkerId) -> Producer {
        Producer::new(self.clone(), worker)
    }

    /// A reading end. One waiting thread per worker id and end.
    #[must_use]
    pub fn consumer(&self, worker: WorkerId) -> Consumer {
        Consumer::new(self.clone(), worker)
    }

    /// Take back what a worker, proven dead, was writing or reading, and wake everyone.
    pub fn reap(&self, dead: WorkerId) -> Result<Reaped> {
        let view = self.view()?;
        let Options { redelivery, max_deliveries, .. } = self.inner.options;
        let reaped = view.slots.reap(dead, redelivery, max_deliveries);
        view.not_full.reap(dead);
        view.not_empty.reap(dead);
        Ok(reaped)
    }

    /// No more segments: producers get [`Error::Closed`] from now on, consumers once the queue is empty.
    pub fn close(&self) -> Result<()> {
        let view = self.view()?;
        view.closed.store(1, Ordering::Release); // pairs with the Acquire load in `View::is_closed`
        view.not_full.notify();
        view.not_empty.notify();
        Ok(())
    }

    /// Whether [`Queue::close`] was called.
    pub fn is_closed(&self) -> Result<bool> {
        Ok(self.view()?.is_closed())
    }

    /// Slots by state.
    pub fn occupancy(&self) -> Result<Occupancy> {
        let mut occupancy = Occupancy::default();
        for word in self.view()?.slots.words() {
            *match word.state() {
                WRITING => &mut occupancy.writing,
                FULL => &mut occupancy.full,
                READING => &mut occupancy.reading,
                _ => &mut occupancy.free,
            } += 1;
        }
        Ok(occupancy)
    }

    /// Worker id that writes or reads each slot, 0 for none.
    pub fn owners(&self) -> Result<Vec<u64>> {
        Ok(self.view()?.slots.words().map(slots::Word::owner).collect())
    }

    /// Age of the oldest segment that waits for a consumer (advisory: it may be popped meanwhile).
    pub fn oldest_age(&self) -> Result<Option<Duration>> {
        let view = self.view()?;
        Ok(view.slots.oldest().map(|(slot, _)| age(view.note(slot)[0].load(Ordering::Relaxed))))
    }

    /// Value of a counter.
    pub fn counter(&self, counter: Counter) -> Result<u64> {
        Ok(self.view()?.slots.counter(counter))
    }

    /// Segments ever committed, plus one for each producer that was killed in the middle of a commit.
    pub fn committed(&self) -> Result<u64> {
        Ok(self.view()?.slots.tickets())
    }

    /// Waits that ended by a time-out of a slice although there was something (0 unless somebody was killed).
    pub fn missed_wakeups(&self) -> Result<u64> {
        let view = self.view()?;
        Ok(view.not_full.missed_wakeups() + view.not_empty.missed_wakeups())
    }

    /// Fails in a forked child.
    fn view(&self) -> Result<View<'_>> {
        let Inner { segment, options, data, .. } = &*self.inner;
        segment.check_fork(NAME)?;
        let words = segment.words(*data, control_words(options.slots))?;
        let (states, notes) = words[STATES..].split_at(options.slots);
        Ok(View {
            slots: Slots::new(&words[0], &words[COUNTERS..COUNTERS + Counter::COUNT], states),
            closed: &words[CLOSED],
            not_empty: EventCount::new(&words[NOT_EMPTY..NOT_FULL]),
            not_full: EventCount::new(&words[NOT_FULL..STATES]),
            notes,
        })
    }

    /// First byte of a slot's payload. Whoever owns the slot may access `stride` bytes from there.
    fn payload(&self, slot: usize) -> *mut u8 {
        let Inner { segment, schema, payload, .. } = &*self.inner;
        let offset = payload + slot * schema.stride();
        let words = segment.words(offset, schema.words()).expect("its size was checked");
        words.as_ptr().cast::<u8>().cast_mut()
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.segment.as_fd()
    }
}

/// The words of the control part.
struct View<'a> {
    slots: Slots<'a>,
    closed: &'a AtomicU64,
    not_empty: EventCount<'a>,
    not_full: EventCount<'a>,
    notes: &'a [AtomicU64],
}

impl<'a> View<'a> {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0 // pairs with the Release store in `close`
    }

    fn note(&self, slot: usize) -> &'a [AtomicU64] {
        &self.notes[slot * NOTES..(slot + 1) * NOTES]
    }
}

/// Nanoseconds on the monotonic clock, which all processes of a machine share.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is negative on this clock.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn age(committed: u64) -> Duration {
    Duration::from_nanos(now().saturating_sub(committed))
}

/// [`Error::Timeout`] for a wait that found nothing.
fn timeout(what: &'static str, timeout: Option<Duration>) -> Error {
    Error::Timeout { what, seconds: timeout.unwrap_or_default().as_secs_f64() }
}

#[cfg(test)]
mod tests;
