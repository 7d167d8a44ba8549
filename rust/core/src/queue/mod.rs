//! Trajectory queue: a bounded number of slots, many producers, many consumers, zero copy.
//!
//! [`slots`] is the protocol on state words, [`Producer`] and [`Consumer`] are its two ends. A slot's payload is plain
//! memory: the protocol gives it to one owner at a time, so the owner may look at it as ordinary bytes and arrays. (A
//! ring of sequence numbers would be cheaper still, but a producer that is killed after its claim would stall it for
//! good.)
//!
//! After the header page, in words:
//!
//! | what | words | content |
//! |---|---|---|
//! | tickets | own line | tickets given out |
//! | closed | own line | 1 once closed: see [`slots`] |
//! | counters | own line | see [`Counter`] |
//! | not empty, not full | 2 x [`EventCount::WORDS`] | who waits |
//! | seats | 2 per worker id | who is its producer and its consumer ([`seat`]) |
//! | states | 1 per slot | [`slots::Word`] |
//! | notes | 2 per slot | commit time (ns, monotonic clock), the producer's own word |
//!
//! and then, page aligned, the payloads, `stride` bytes each.

mod consumer;
mod options;
mod producer;
mod seat;
pub mod slots;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Access, Header, PAGE, Segment, Stream, Window, round_up};
use crate::owner::WorkerId;
use crate::schema::{Field, Schema};
use crate::sync::{AtomicU64, Ordering};
use crate::wait::EventCount;

pub use consumer::{Consumer, ReadSlot, Watch};
pub use options::{MAX_SLOTS, Options, WhenFull};
pub use producer::{Producer, WriteSlot};
use seat::{Seat, Side};
pub use slots::{Counter, Reaped, Redelivery};
use slots::{FULL, READING, Slots, WRITING};

const NAME: &str = "trajectory queue";

/// Words of a pair of cache lines.
const LINE: usize = 16;
const CLOSED: usize = LINE;
const COUNTERS: usize = 2 * LINE;
const NOT_EMPTY: usize = 3 * LINE;
const NOT_FULL: usize = NOT_EMPTY + EventCount::WORDS;
const PLACES: usize = NOT_FULL + EventCount::WORDS;
const STATES: usize = PLACES + seat::SEATS;
/// Commit time and the producer's own word.
const NOTES: usize = 2;

/// Windows that are kept for the next time: each is a mapping, of which a process may have some 65,000.
const MOST_WINDOWS: usize = 1024;

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
    /// By slot and whether one can write through them.
    windows: Mutex<HashMap<(usize, bool), Window>>,
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
        Ok(Self {
            inner: Arc::new(Inner { segment, schema, options, header, data, payload, windows: Mutex::default() }),
        })
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
        Ok(Self {
            inner: Arc::new(Inner { segment, schema, options, header, data, payload, windows: Mutex::default() }),
        })
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

    /// A writing end, for one thread at a time. [`Error::Owned`] while the id has one, or has a consumer in another
    /// process.
    pub fn producer(&self, worker: WorkerId) -> Result<Producer> {
        Ok(Producer::new(Seat::take(self, worker, Side::Producer)?))
    }

    /// A reading end, for one thread at a time. [`Error::Owned`] while the id has one, or has a producer in another
    /// process.
    pub fn consumer(&self, worker: WorkerId) -> Result<Consumer> {
        Ok(Consumer::new(Seat::take(self, worker, Side::Consumer)?))
    }

    /// Take back what a worker, proven dead, was writing or reading, and wake everyone.
    pub fn reap(&self, dead: WorkerId) -> Result<Reaped> {
        let view = self.view()?;
        let Options { redelivery, max_deliveries, .. } = self.inner.options;
        let reaped = view.slots.reap(dead, redelivery, max_deliveries);
        view.not_full.reap(dead);
        view.not_empty.reap(dead);
        // Last, for then the id may be taken again. Release, pairs with the Acquire exchange in `Seat::take`.
        seat::of(view.seats, dead).iter().for_each(|seat| seat.store(0, Ordering::Release));
        Ok(reaped)
    }

    /// No more segments: producers get [`Error::Closed`] when they ask for a slot from now on, consumers once nothing
    /// can come any more. A segment that is being written is still delivered, and so is one whose consumer dies.
    pub fn close(&self) -> Result<()> {
        let view = self.view()?;
        view.slots.close();
        view.not_full.notify();
        view.not_empty.notify();
        Ok(())
    }

    /// Whether [`Queue::close`] was called.
    pub fn is_closed(&self) -> Result<bool> {
        Ok(self.view()?.slots.is_closed())
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
            slots: Slots::new(&words[0], &words[CLOSED], &words[COUNTERS..COUNTERS + Counter::COUNT], states),
            seats: &words[PLACES..STATES],
            not_empty: EventCount::new(&words[NOT_EMPTY..NOT_FULL]),
            not_full: EventCount::new(&words[NOT_FULL..PLACES]),
            notes,
        })
    }

    fn offset(&self, slot: usize) -> usize {
        self.inner.payload + slot * self.inner.schema.stride()
    }

    /// A window onto a slot's payload, one that was kept or a new one.
    fn window(&self, slot: usize, writable: bool) -> Result<Window> {
        if let Some(window) = self.windows().remove(&(slot, writable)) {
            return Ok(window);
        }
        let Inner { segment, schema, .. } = &*self.inner;
        Window::new(segment.as_fd(), self.offset(slot), schema.stride(), writable)
            .map_err(|error| Error::system("mapping a slot of a queue for arrays", error))
    }

    /// Keep a window that nobody looks through for the next time.
    fn keep_window(&self, slot: usize, writable: bool, window: Window) {
        window.hide();
        let mut windows = self.windows();
        if windows.len() < MOST_WINDOWS {
            windows.insert((slot, writable), window);
        }
    }

    fn windows(&self) -> MutexGuard<'_, HashMap<(usize, bool), Window>> {
        self.inner.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// First byte of a slot's payload. Whoever owns the slot may access `stride` bytes from there.
    fn payload(&self, slot: usize) -> *mut u8 {
        let Inner { segment, schema, .. } = &*self.inner;
        let offset = self.offset(slot);
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
    seats: &'a [AtomicU64],
    not_empty: EventCount<'a>,
    not_full: EventCount<'a>,
    notes: &'a [AtomicU64],
}

impl<'a> View<'a> {
    /// Wake who may be waiting for a slot that was given back: a producer, or consumers for the end.
    fn given_back(&self) {
        self.not_full.notify();
        // Behind the fence of that: either the closing is seen here, or who closes (and wakes the consumers) comes
        // after.
        if self.slots.is_closed() {
            self.not_empty.notify();
        }
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
