//! The one doorway for calls that may wait, and the handles through which Python holds what the core made.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use rlz_core::owner::ForkGuard;
use rlz_core::wait::Between;
use rlz_core::{Error, WorkerId};

use crate::failure::{Failure, Result};

/// Run a wait of the core without holding the GIL.
///
/// `timeout` is in seconds: None waits without limit, 0 polls (and then keeps the GIL: it cannot sleep). Between two
/// slices of at most 100 ms pending signals are looked at; a handler that raises (Ctrl-C) ends the wait with its exception.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    wait: impl FnOnce(Option<Duration>, Between<'_>) -> rlz_core::Result<T> + Send,
) -> Result<T> {
    let timeout = seconds(timeout)?;
    if timeout == Some(Duration::ZERO) {
        return Ok(wait(timeout, &mut || true)?);
    }
    let mut raised = None;
    let mut check = || match Python::attach(|py| py.check_signals()) {
        Ok(()) => true,
        Err(error) => {
            raised = Some(error);
            false
        }
    };
    let result = py.detach(|| wait(timeout, &mut check));
    match (result, raised) {
        (Err(Error::Interrupted), Some(error)) => Err(error.into()),
        (result, _) => Ok(result?),
    }
}

fn seconds(timeout: Option<f64>) -> Result<Option<Duration>> {
    match timeout {
        None => Ok(None),
        Some(seconds) if seconds == f64::INFINITY => Ok(None),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| {
            Failure::value(format!("timeout: given {seconds}, expected seconds >= 0, or None for no limit"))
        }),
    }
}

/// A worker id from Python.
pub(crate) fn worker(id: u64) -> Result<WorkerId> {
    Ok(WorkerId::new(id)?)
}

/// Four seed words from Python.
pub(crate) fn seed(words: &Bound<'_, PyAny>) -> Result<[u64; 4]> {
    let given = words.try_iter()?.map(|word| word?.extract::<u64>()).collect::<PyResult<Vec<_>>>()?;
    <[u64; 4]>::try_from(given).map_err(|given| {
        Failure::value(format!(
            "seed: given {} words, expected 4, for instance SeedSequence(...).generate_state(4, np.uint64)",
            given.len()
        ))
    })
}

/// What Python holds: shared by the threads that are using it, gone for new calls after `close`.
#[derive(Debug)]
pub(crate) struct Handle<T> {
    stream: &'static str,
    guard: ForkGuard,
    value: Mutex<ManuallyDrop<Option<Arc<T>>>>,
}

impl<T> Handle<T> {
    pub(crate) fn new(stream: &'static str, value: Arc<T>) -> Self {
        Self { stream, guard: ForkGuard::new(), value: Mutex::new(ManuallyDrop::new(Some(value))) }
    }

    /// The value; an error after `close` and in a forked child.
    pub(crate) fn get(&self) -> Result<Arc<T>> {
        self.guard.check(self.stream)?;
        Ok(self.lock().as_ref().map(Arc::clone).ok_or(Error::Closed { stream: self.stream })?)
    }

    /// Let go. Calls that are still running finish on the mapping, which goes with the last of them.
    pub(crate) fn close(&self) -> Result<()> {
        self.guard.check(self.stream)?;
        drop(self.lock().take());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ManuallyDrop<Option<Arc<T>>>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // In a forked child the segment is not mapped, and something else may be by now at its address: leave it alone.
        if self.guard.check(self.stream).is_ok() {
            drop(self.lock().take());
        }
    }
}
