//! Parameter store: one publisher, many subscribers, the newest version wins.
//!
//! Two segments. *Control* is read and written by every worker; *payload* holds the tensors of a few versions and is
//! given to subscribers through a descriptor that can only be read. A process that looks in from outside gets both
//! read-only: it copies. Control, in words:
//!
//! | what | words | content |
//! |---|---|---|
//! | latest | own line | `version << 8 | slot` of the newest version, 0 = none yet; beside it the version before the first |
//! | publisher | own line | worker id of the publisher, 0 = none |
//! | event count | [`EventCount::WORDS`] | who waits for a newer version |
//! | slots | own line each | stamp, env steps, updates of the version in this slot |
//! | leases | own line each | `worker << 8 | slot + 1`: what this subscriber reads right now; 0 = cell is free |
//!
//! A stamp is `version << 11 | worker << 1 | writing`. There are two slots more than leases, so the publisher always
//! finds one that is neither the newest nor leased: it never waits. One pass is nearly always enough: a subscriber
//! leases only the slot that it has just seen in `latest`, which does not change while the publisher looks for a slot;
//! so within one publication a cell stands in the way at one slot. On a machine with weak ordering a cell may also come
//! to name an older slot, by a load of `latest` that is behind; that lease fails its check, and the publisher looks
//! again.
//!
//! A publisher that is killed leaves an odd stamp, or an even stamp that `latest` does not name. Both are free to
//! the next publisher, which goes on at the version after `latest`. A killed subscriber leaves its lease, which is
//! reaped; until then it costs one slot of the spare ones.

mod payload;
mod publisher;
mod subscriber;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use payload::{pack, packed_bytes};
pub use publisher::Publisher;
use subscriber::Member;
pub use subscriber::{Lease, Subscriber};

use crate::error::{Error, Result};
use crate::memory::{Access, Header, ReadWord, Segment, Stream, round_up};
use crate::owner::WorkerId;
use crate::schema::{Field, PlacedField};
use crate::sync::{AtomicU64, MODEL, Ordering, fence, spin_loop};
use crate::wait::{Between, EventCount, poll};

/// Words of a pair of cache lines.
const LINE: usize = if MODEL { 3 } else { 16 };
const LATEST: usize = 0;
/// Version after which the first publication counts on; written by the creator only.
const BEFORE: usize = LATEST + 1;
const PUBLISHER: usize = LINE;
const EVENT: usize = 2 * LINE;
const SLOTS: usize = EVENT + EventCount::WORDS;

const SLOT_BITS: u32 = 8;
const WRITING: u64 = 1;
const WORKER_SHIFT: u32 = 1;
const WORKER_MASK: u64 = (1 << (VERSION_SHIFT - WORKER_SHIFT)) - 1;
const VERSION_SHIFT: u32 = 11;

/// A version has this many bits beside a stamp's other parts.
const MAX_VERSION: u64 = (1 << 52) - 1;

/// A slot number and "none" fit into the eight bits of `latest` and of a lease.
const MAX_SLOTS: usize = 255;

const STREAM: &str = "parameter store";

/// When and as what a set of parameters was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publication {
    /// 1, 2, 3, ..., or on from the version that the store was created after.
    pub version: u64,
    /// Completed env steps when it was published.
    pub env_steps: u64,
    /// Completed updates when it was published.
    pub updates: u64,
}

/// The store, mapped.
#[derive(Debug)]
pub struct ParameterStore {
    control: Segment,
    payload: Segment,
    manifest: Vec<PlacedField>,
    nbytes: usize,
    slots: usize,
    leases: usize,
    control_data: usize,
    payload_data: usize,
}

impl ParameterStore {
    /// Create a store for these tensors, with `leases` subscribers that cannot starve.
    ///
    /// Tensors are packed back to back in the given order.
    pub fn create(manifest: &[Field], leases: usize, run_id: u64) -> Result<Arc<Self>> {
        Self::create_after(0, manifest, leases, run_id)
    }

    /// [`ParameterStore::create`], with versions that go on after `version` (that of a run that is resumed).
    pub fn create_after(version: u64, manifest: &[Field], leases: usize, run_id: u64) -> Result<Arc<Self>> {
        if version > MAX_VERSION {
            return Err(Error::invalid("version", version, format!("at most {MAX_VERSION}")));
        }
        let manifest = pack(manifest)?;
        let nbytes = packed_bytes(&manifest);
        let slots = slots_for(leases)?;
        let params = [leases, slots, nbytes].map(|value| value as u64);
        let control_header = Header::new(Stream::ParameterControl, run_id, &params, manifest.clone());
        let payload_header = Header::new(Stream::ParameterPayload, run_id, &params[1..], Vec::new());
        let control_data = control_header.data_offset()?;
        let payload_data = payload_header.data_offset()?;
        let control = Segment::create("parameters-control", control_data + control_words(slots, leases) * 8)?;
        let payload_bytes = payload_stride(nbytes).checked_mul(slots).and_then(|bytes| bytes.checked_add(payload_data));
        let payload = Segment::create("parameters-payload", payload_bytes.unwrap_or(usize::MAX))?;
        // Relaxed: before `publish`, whose Release everyone who attaches pairs with.
        control.words(control_data, SLOTS)?[BEFORE].store(version, Ordering::Relaxed);
        for (header, segment) in [(control_header, &control), (payload_header, &payload)] {
            header.write(segment)?;
            Header::publish(segment)?;
        }
        Ok(Arc::new(Self { control, payload, manifest, nbytes, slots, leases, control_data, payload_data }))
    }

    /// Map the store behind two descriptors. A publisher needs a payload descriptor that is `writable`.
    ///
    /// A control descriptor that was opened read-only gives a store whose subscribers only copy.
    pub fn attach(control: BorrowedFd<'_>, payload: BorrowedFd<'_>, writable: bool) -> Result<Arc<Self>> {
        let control = Segment::attach(control, Access::of(control)?)?;
        let access = if writable { Access::ReadWrite } else { Access::ReadOnly };
        let payload = Segment::attach(payload, access)?;
        let control_header = Header::read(&control, Stream::ParameterControl)?;
        let payload_header = Header::read(&payload, Stream::ParameterPayload)?;
        let bad = |reason: String| Error::BadSegment { stream: STREAM, reason };
        if control_header.run_id != payload_header.run_id || control_header.params[1..] != payload_header.params {
            return Err(bad("control and payload belong to different stores".to_owned()));
        }
        let number = |value: u64| usize::try_from(value).map_err(|_| bad(format!("size {value}")));
        let (leases, slots) = (number(control_header.params[0])?, number(control_header.params[1])?);
        let nbytes = number(control_header.params[2])?;
        let fields: Vec<Field> = control_header.fields.iter().map(|placed| placed.field.clone()).collect();
        let manifest = pack(&fields)?;
        if slots_for(leases)? != slots || manifest != control_header.fields || packed_bytes(&manifest) != nbytes {
            return Err(bad(format!("sizes {:?} do not fit together", control_header.params)));
        }
        let (control_data, payload_data) = (control_header.data_offset()?, payload_header.data_offset()?);
        let payload_bytes = payload_stride(nbytes).checked_mul(slots).and_then(|bytes| bytes.checked_add(payload_data));
        if control_data + control_words(slots, leases) * 8 > control.len()
            || payload_bytes.is_none_or(|bytes| bytes > payload.len())
        {
            return Err(bad(format!("{slots} slots of {nbytes} bytes exceed its segments")));
        }
        Ok(Arc::new(Self { control, payload, manifest, nbytes, slots, leases, control_data, payload_data }))
    }

    /// The control segment.
    #[must_use]
    pub fn control(&self) -> &Segment {
        &self.control
    }

    /// The payload segment.
    #[must_use]
    pub fn payload(&self) -> &Segment {
        &self.payload
    }

    /// A payload descriptor for subscribers: it can be mapped for reading only.
    pub fn read_only_payload(&self) -> Result<OwnedFd> {
        self.payload.read_only_fd()
    }

    /// The tensors and their byte offsets.
    #[must_use]
    pub fn manifest(&self) -> &[PlacedField] {
        &self.manifest
    }

    /// Bytes of one version.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Newest version, 0 before the first.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.latest() >> SLOT_BITS
    }

    fn latest(&self) -> u64 {
        // Acquire, pairs with the Release exchange in `publish`: who sees a version named sees its stamp and its
        // content, and what the publisher did before it.
        self.control_words(LATEST, 1)[0].load(Ordering::Acquire)
    }

    /// When the newest version was published; None before the first.
    #[must_use]
    pub fn publication(&self) -> Option<Publication> {
        loop {
            let (version, slot) = split_latest(self.latest())?;
            let slot = self.slot_words(slot);
            let stamp = slot[0].load(Ordering::Relaxed); // see `latest`
            let publication = Publication {
                version,
                env_steps: slot[1].load(Ordering::Relaxed),
                updates: slot[2].load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire); // pairs with the fence in `claim`
            // A mismatch says that newer versions came meanwhile: `latest` itself is never overwritten.
            if is_version(stamp, version) && slot[0].load(Ordering::Relaxed) == stamp {
                return Some(publication);
            }
            spin_loop();
        }
    }

    /// Become the publisher. One at a time: the one before must be gone (dropped or reaped).
    pub fn publisher(self: &Arc<Self>, worker: WorkerId) -> Result<Publisher> {
        if self.payload.access() == Access::ReadOnly {
            return Err(Error::ReadOnly { what: STREAM });
        }
        self.check_writable()?;
        // Acquire, pairs with the Release stores in `Publisher::drop` and `reap`.
        self.view()
            .publisher
            .compare_exchange(0, worker.get(), Ordering::Acquire, Ordering::Relaxed)
            .map_err(|owner| Error::Owned { what: "the publisher's place".into(), worker: worker.get(), owner })?;
        Ok(Publisher::new(Arc::clone(self), worker))
    }

    /// A reader. It holds a lease cell until it is dropped; where all are taken it reads without (and might, in theory,
    /// have to copy many times while a publisher is very fast).
    ///
    /// Without a worker id (a process whose death nobody proves), and on a store attached read-only, it leaves no
    /// trace: it copies, and its waits look every few milliseconds.
    pub fn subscriber(self: &Arc<Self>, worker: impl Into<Option<WorkerId>>) -> Subscriber {
        let member = worker.into().filter(|_| self.writable()).map(|worker| {
            // Acquire, pairs with the Release stores to the cell: what its owners before read lies before what this one
            // tells the publisher.
            let free = |cell: &AtomicU64| {
                cell.compare_exchange(0, worker.get() << SLOT_BITS, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            Member { worker, cell: self.view().leases.chunks_exact(LINE).position(|cell| free(&cell[0])) }
        });
        Subscriber::new(Arc::clone(self), member)
    }

    /// Wait for a version above `version` and return the newest; [`Error::Timeout`] when `timeout` is over.
    ///
    /// One waiting thread per worker id. Without an id it looks every few milliseconds.
    pub fn wait_newer(
        &self,
        worker: impl Into<Option<WorkerId>>,
        version: u64,
        timeout: Option<Duration>,
        between: Between<'_>,
    ) -> Result<u64> {
        self.wait("newer parameters", worker, timeout, between, |newest| newest.version > version)
    }

    /// Wait for a version that was published at or after `env_steps`; returns that version.
    pub fn wait_env_steps(
        &self,
        worker: impl Into<Option<WorkerId>>,
        env_steps: u64,
        timeout: Option<Duration>,
        between: Between<'_>,
    ) -> Result<u64> {
        let enough = |newest: &Publication| newest.env_steps >= env_steps;
        self.wait("parameters of a later env step", worker, timeout, between, enough)
    }

    fn wait(
        &self,
        what: &'static str,
        worker: impl Into<Option<WorkerId>>,
        timeout: Option<Duration>,
        between: Between<'_>,
        enough: impl Fn(&Publication) -> bool,
    ) -> Result<u64> {
        let ready = || Ok(self.publication().filter(&enough).map(|newest| newest.version));
        let found = match worker.into().filter(|_| self.writable()) {
            Some(worker) => self.view().event.wait(worker, timeout, between, ready)?,
            None => poll(timeout, between, ready)?,
        };
        found.ok_or_else(|| Error::Timeout { what, seconds: timeout.unwrap_or_default().as_secs_f64() })
    }

    /// Take back everything that a worker, proven dead, held. Panics on a store attached read-only.
    pub fn reap(&self, worker: WorkerId) {
        let view = self.view();
        for cell in view.leases.chunks_exact(LINE) {
            if cell[0].load(Ordering::Relaxed) >> SLOT_BITS == worker.get() {
                // The owner is dead: nobody else changes it. Release, pairs with the Acquire load in `leased`: what the
                // dead one read lies before the overwriting.
                cell[0].store(0, Ordering::Release);
            }
        }
        // Its odd stamp stays: the next publisher may claim any slot that `latest` does not name.
        let _ = view.publisher.compare_exchange(worker.get(), 0, Ordering::Release, Ordering::Relaxed);
        view.event.reap(worker);
    }

    /// [`Error::ReadOnly`] when the store was attached read-only.
    pub fn check_writable(&self) -> Result<()> {
        if self.writable() { Ok(()) } else { Err(Error::ReadOnly { what: STREAM }) }
    }

    fn writable(&self) -> bool {
        self.control.access() == Access::ReadWrite
    }

    /// Workers that hold a lease cell, for tests and diagnostics.
    #[must_use]
    pub fn lease_holders(&self) -> Vec<u64> {
        let cells = self.view().leases.chunks_exact(LINE);
        cells.map(|cell| cell[0].load(Ordering::Relaxed) >> SLOT_BITS).filter(|worker| *worker != 0).collect()
    }

    /// Waits that ended by a time-out of a slice although there was something (0 unless a publisher was killed).
    #[must_use]
    pub fn missed_wakeups(&self) -> u64 {
        self.view().event.missed_wakeups()
    }

    fn view(&self) -> View<'_> {
        let words = self
            .control
            .words(self.control_data, control_words(self.slots, self.leases))
            .expect("callers know that the control segment is writable, and its size was checked");
        let (slots, leases) = words[SLOTS..].split_at(self.slots * LINE);
        View {
            latest: &words[LATEST],
            before: &words[BEFORE],
            publisher: &words[PUBLISHER],
            event: EventCount::new(&words[EVENT..SLOTS]),
            slots,
            leases,
        }
    }

    /// Words of the control segment, for loads.
    fn control_words(&self, at: usize, count: usize) -> &[ReadWord] {
        self.control.read_words(self.control_data + at * 8, count).expect("its size was checked")
    }

    /// Stamp, env steps and updates of a slot, for loads. Panics when there is no such slot.
    fn slot_words(&self, slot: usize) -> &[ReadWord] {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        self.control_words(SLOTS + slot * LINE, LINE)
    }

    fn payload_offset(&self, slot: usize) -> usize {
        self.payload_data + slot * payload_stride(self.nbytes)
    }

    fn payload_words(&self, slot: usize) -> &[ReadWord] {
        self.payload.read_words(self.payload_offset(slot), self.nbytes.div_ceil(8)).expect("its size was checked")
    }
}

/// The words of the control segment.
struct View<'a> {
    latest: &'a AtomicU64,
    before: &'a AtomicU64,
    publisher: &'a AtomicU64,
    event: EventCount<'a>,
    slots: &'a [AtomicU64],
    leases: &'a [AtomicU64],
}

impl View<'_> {
    fn leased(&self, slot: usize) -> bool {
        let wanted = slot as u64 + 1;
        // Acquire, pairs with the Release stores to the cell: what the reader read before lies before our overwriting.
        // Each store to a cell is one, for it may be the only one that is seen here.
        self.leases.chunks_exact(LINE).any(|cell| cell[0].load(Ordering::Acquire) & 0xff == wanted)
    }
}

fn nothing_yet() -> Error {
    Error::Empty("nothing has been published yet: wait for version 1 first".to_owned())
}

/// (version, slot); None before the first version.
fn split_latest(latest: u64) -> Option<(u64, usize)> {
    (latest != 0).then_some((latest >> SLOT_BITS, (latest & 0xff) as usize))
}

/// Whether a stamp says: this version, complete.
fn is_version(stamp: u64, version: u64) -> bool {
    stamp & WRITING == 0 && stamp >> VERSION_SHIFT == version
}

fn slots_for(leases: usize) -> Result<usize> {
    // More than needed: it takes longer to come round to a slot that is being copied. A model wants just that.
    let least = if MODEL { 2 } else { 4 };
    let slots = leases.saturating_add(2).max(least);
    if slots > MAX_SLOTS {
        return Err(Error::invalid("leases", leases, format!("at most {}", MAX_SLOTS - 2)));
    }
    Ok(slots)
}

fn control_words(slots: usize, leases: usize) -> usize {
    SLOTS + (slots + leases) * LINE
}

/// Bytes from one slot's payload to the next: whole cache lines.
fn payload_stride(nbytes: usize) -> usize {
    round_up(nbytes, 8 * LINE).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
