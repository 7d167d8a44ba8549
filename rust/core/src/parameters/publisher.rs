//! The writing end of a parameter store.

use std::sync::Arc;

use super::payload::{check_finite, store_bytes};
use super::{
    LINE, ParameterStore, SLOT_BITS, STREAM, VERSION_SHIFT, View, WORKER_MASK, WORKER_SHIFT, WRITING, split_latest,
};
use crate::error::{Error, Result};
use crate::kill::kill_point;
use crate::owner::WorkerId;
use crate::sync::{AtomicU64, Ordering, fence, spin_loop};

/// The one that publishes.
#[derive(Debug)]
pub struct Publisher {
    store: Arc<ParameterStore>,
    pub(super) worker: WorkerId,
}

impl Publisher {
    pub(super) fn new(store: Arc<ParameterStore>, worker: WorkerId) -> Self {
        Self { store, worker }
    }

    /// The store it publishes to.
    #[must_use]
    pub fn store(&self) -> &Arc<ParameterStore> {
        &self.store
    }

    /// Publish one set of parameters; returns its version. Never waits for anybody.
    ///
    /// `parameters` are the tensors of the manifest, back to back. Nothing is written when one of their floats is
    /// not finite ([`Error::NonFinite`]).
    pub fn publish(&mut self, parameters: &[u8], env_steps: u64, updates: u64) -> Result<u64> {
        let store = &*self.store;
        if parameters.len() != store.nbytes {
            let expected = format!("{} bytes, as in the manifest", store.nbytes);
            return Err(Error::invalid("parameters", format!("{} bytes", parameters.len()), expected));
        }
        check_finite(&store.manifest, parameters)?;
        let view = store.view();
        let lost = |owner| Error::LeaseLost { what: "the publisher's place".into(), worker: self.worker.get(), owner };
        let owner = view.publisher.load(Ordering::Relaxed);
        if owner != self.worker.get() {
            return Err(lost(owner));
        }
        let latest = view.latest.load(Ordering::Relaxed); // written by ourselves, or by a predecessor that was reaped
        let before = if latest == 0 { view.before.load(Ordering::Relaxed) } else { latest >> SLOT_BITS };
        let version = before + 1;
        let writing = version << VERSION_SHIFT | self.worker.get() << WORKER_SHIFT | WRITING;
        let (slot, words) = self.claim(&view, latest, writing);
        kill_point("parameters: claimed");
        words[1].store(env_steps, Ordering::Relaxed);
        words[2].store(updates, Ordering::Relaxed);
        store_bytes(parameters, store.payload.words(store.payload_offset(slot), store.nbytes.div_ceil(8))?);
        kill_point("parameters: written");
        // Relaxed: readers look at a slot only after `latest` has named it.
        words[0]
            .compare_exchange(writing, writing & !WRITING, Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|stamp| lost(stamp >> WORKER_SHIFT & WORKER_MASK))?;
        kill_point("parameters: stamped");
        // Release, pairs with the Acquire loads of `latest`: stamp and content come before it.
        view.latest
            .compare_exchange(latest, version << SLOT_BITS | slot as u64, Ordering::Release, Ordering::Relaxed)
            .map_err(|_| lost(view.publisher.load(Ordering::Relaxed)))?;
        kill_point("parameters: published");
        view.event.notify();
        Ok(version)
    }

    /// Stamp a slot that is neither the newest nor leased as being written; its number and its words.
    pub(super) fn claim<'a>(&self, view: &View<'a>, latest: u64, writing: u64) -> (usize, &'a [AtomicU64]) {
        let slots = self.store.slots;
        let newest = split_latest(latest).map(|(_, slot)| slot);
        let start = newest.map_or(0, |slot| slot + 1);
        let others = (start..start + slots).map(|slot| slot % slots).filter(|slot| Some(*slot) != newest);
        // A second pass is for subscribers that let go of a slot behind us and took one before us: see the module.
        for slot in others.cycle() {
            let words = &view.slots[slot * LINE..(slot + 1) * LINE];
            // Any old stamp may be replaced: even, or odd of a publisher that was killed. Relaxed, like the way back
            // below: the fence orders it.
            let before = words[0].swap(writing, Ordering::Relaxed);
            // Pairs with the fence in `Subscriber::lease`: either its lease is seen here, or our stamp is seen there.
            // It also orders the stamp before the stores of the content, for the fence of optimistic readers.
            fence(Ordering::SeqCst);
            kill_point("parameters: looking for leases");
            if !view.leased(slot) {
                return (slot, words);
            }
            words[0].store(before, Ordering::Relaxed); // the content was not touched
            spin_loop();
        }
        unreachable!("there are more slots than leases")
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if self.store.control.check_fork(STREAM).is_ok() {
            let place = self.store.view().publisher;
            // Release, pairs with the Acquire exchange of the next publisher.
            let _ = place.compare_exchange(self.worker.get(), 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}
