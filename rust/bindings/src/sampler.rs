//! What the samplers of a replay buffer have in common.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rlz_core::replay::Replay;

use crate::doorway::Handle;
use crate::failure::Result;

/// A sampler of the core, for one thread at a time.
pub(crate) struct Shared<S> {
    // Locked without the GIL only: the thread that gathers a batch holds it for long.
    sampler: Handle<Mutex<S>>,
    replay: Handle<Replay>,
}

impl<S: Send> Shared<S> {
    pub(crate) fn new(stream: &'static str, sampler: S, replay: Arc<Replay>) -> Self {
        let sampler = Arc::new(Mutex::new(sampler));
        Self { sampler: Handle::new(stream, sampler), replay: Handle::new(stream, replay) }
    }

    /// The buffer drawn from.
    pub(crate) fn replay(&self) -> Result<Arc<Replay>> {
        self.replay.get()
    }

    /// Use the sampler, without the GIL.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut S) -> rlz_core::Result<T> + Send,
    ) -> Result<T> {
        let sampler = self.sampler.get()?;
        Ok(py.detach(|| f(&mut sampler.lock().unwrap_or_else(PoisonError::into_inner)))?)
    }

    pub(crate) fn close(&self) -> Result<()> {
        self.sampler.close()?;
        self.replay.close()
    }
}
