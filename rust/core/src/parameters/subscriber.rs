//! The reading end of a parameter store.

use std::sync::Arc;
use std::time::Duration;

use super::payload::load_bytes;
use super::{LINE, ParameterStore, Publication, SLOT_BITS, STREAM, is_version, nothing_yet, split_latest};
use crate::error::{Error, Result};
use crate::kill::kill_point;
use crate::memory::ReadWord;
use crate::owner::WorkerId;
use crate::sync::{Ordering, fence, spin_loop};
use crate::wait::Between;

/// Optimistic copies before a subscriber takes a lease.
const OPTIMISTIC_COPIES: usize = 2;

/// A subscriber that others know of, by its id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) worker: WorkerId,
    /// Its lease cell; None when all were taken.
    pub(super) cell: Option<usize>,
}

/// A reader of the newest version.
#[derive(Debug)]
pub struct Subscriber {
    store: Arc<ParameterStore>,
    /// None: it only copies, and leaves no trace.
    member: Option<Member>,
}

impl Subscriber {
    pub(super) fn new(store: Arc<ParameterStore>, member: Option<Member>) -> Self {
        Self { store, member }
    }

    pub(super) fn worker(&self) -> Option<WorkerId> {
        self.member.map(|member| member.worker)
    }

    /// Its id and its lease cell.
    fn leaser(&self) -> Option<(WorkerId, usize)> {
        self.member.and_then(|Member { worker, cell }| Some((worker, cell?)))
    }

    /// The store it reads.
    #[must_use]
    pub fn store(&self) -> &Arc<ParameterStore> {
        &self.store
    }

    /// Copy the newest version into `into`.
    ///
    /// Copies without announcing itself; a copy during which the publisher came round is thrown away, and
    /// after two of these the version is leased, so the next copy counts.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Publication> {
        if into.len() != self.store.nbytes {
            let expected = format!("{} bytes, as in the manifest", self.store.nbytes);
            return Err(Error::invalid("buffer", format!("{} bytes", into.len()), expected));
        }
        for _ in 0..OPTIMISTIC_COPIES {
            if let Some(publication) = self.copy(into)? {
                return Ok(publication);
            }
        }
        if self.leaser().is_some() {
            let lease = self.lease()?;
            load_bytes(lease.words(), into);
            return Ok(lease.publication());
        }
        loop {
            spin_loop();
            if let Some(publication) = self.copy(into)? {
                return Ok(publication);
            }
        }
    }

    /// One optimistic copy; None when it was overtaken.
    fn copy(&self, into: &mut [u8]) -> Result<Option<Publication>> {
        let (version, slot) = split_latest(self.store.latest()).ok_or_else(nothing_yet)?;
        let words = self.store.slot_words(slot);
        let stamp = words[0].load(Ordering::Relaxed); // see `latest`
        if !is_version(stamp, version) {
            return Ok(None);
        }
        let publication = Publication {
            version,
            env_steps: words[1].load(Ordering::Relaxed),
            updates: words[2].load(Ordering::Relaxed),
        };
        load_bytes(self.store.payload_words(slot), into);
        // Pairs with the fence in `claim`: had we read one new word, we would see the new stamp below.
        fence(Ordering::Acquire);
        Ok((words[0].load(Ordering::Relaxed) == stamp).then_some(publication))
    }

    /// Keep the publisher away from the newest version while the lease lives, to read it in place.
    pub fn lease(&mut self) -> Result<Lease<'_>> {
        let (worker, cell) = self.leaser().ok_or_else(|| {
            let fix = "create the store with more, or subscribe with a worker id";
            Error::Empty(format!("this subscriber holds none of the {} lease cells: {fix}", self.store.leases))
        })?;
        let view = self.store.view();
        let cell = &view.leases[cell * LINE];
        let mine = worker.get() << SLOT_BITS;
        loop {
            let (version, slot) = split_latest(self.store.latest()).ok_or_else(nothing_yet)?;
            let now = cell.load(Ordering::Relaxed);
            if now >> SLOT_BITS != worker.get() {
                let owner = now >> SLOT_BITS;
                return Err(Error::LeaseLost { what: "its lease cell".into(), worker: worker.get(), owner });
            }
            // Release, pairs with the Acquire load in `leased`: what an earlier lease read lies before it. (A plain
            // store does not go on with the release sequence of that lease's end.)
            cell.store(mine | (slot as u64 + 1), Ordering::Release);
            kill_point("parameters: leased, not checked");
            // Pairs with the fence in `claim`.
            fence(Ordering::SeqCst);
            if is_version(view.slots[slot * LINE].load(Ordering::Relaxed), version) {
                return Ok(Lease { subscriber: self, version, slot });
            }
            cell.store(mine, Ordering::Release);
            spin_loop();
        }
    }

    /// [`ParameterStore::wait_newer`] for this worker.
    pub fn wait_newer(&self, version: u64, timeout: Option<Duration>, between: Between<'_>) -> Result<u64> {
        self.store.wait_newer(self.worker(), version, timeout, between)
    }

    /// [`ParameterStore::wait_env_steps`] for this worker.
    pub fn wait_env_steps(&self, env_steps: u64, timeout: Option<Duration>, between: Between<'_>) -> Result<u64> {
        self.store.wait_env_steps(self.worker(), env_steps, timeout, between)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let Some((worker, cell)) = self.leaser() else { return };
        if self.store.control.check_fork(STREAM).is_ok() {
            let cell = &self.store.view().leases[cell * LINE];
            let now = cell.load(Ordering::Relaxed);
            if now >> SLOT_BITS == worker.get() {
                let _ = cell.compare_exchange(now, 0, Ordering::Release, Ordering::Relaxed);
            }
        }
    }
}

/// A version that the publisher leaves alone until this is dropped.
#[derive(Debug)]
pub struct Lease<'a> {
    pub(super) subscriber: &'a mut Subscriber,
    pub(super) version: u64,
    pub(super) slot: usize,
}

impl Lease<'_> {
    /// When it was published.
    #[must_use]
    pub fn publication(&self) -> Publication {
        let words = self.subscriber.store.slot_words(self.slot);
        Publication {
            version: self.version,
            env_steps: words[1].load(Ordering::Relaxed),
            updates: words[2].load(Ordering::Relaxed),
        }
    }

    /// Its bytes, as words; the last one is padded.
    #[must_use]
    pub fn words(&self) -> &[ReadWord] {
        self.subscriber.store.payload_words(self.slot)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let (Some((worker, cell)), Ok(())) =
            (self.subscriber.leaser(), self.subscriber.store.control.check_fork(STREAM))
        {
            let mine = worker.get() << SLOT_BITS;
            let cell = &self.subscriber.store.view().leases[cell * LINE];
            // Release, pairs with the Acquire load in `leased`.
            let _ = cell.compare_exchange(mine | (self.slot as u64 + 1), mine, Ordering::Release, Ordering::Relaxed);
        }
    }
}
