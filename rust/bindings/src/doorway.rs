//! The one doorway for calls that may wait, and the handles through which Python holds what the core made.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyInt;
use rlz_core::owner::ForkGuard;
use rlz_core::wait::Between;
use rlz_core::{Error, WorkerId};

use crate::array::describe;
use crate::failure::{Failure, Result};

/// Run a wait of the core without holding the GIL.
///
/// `timeout` is in seconds: None waits without limit, 0 polls (and then keeps the GIL: it cannot sleep). Between two
/// slices of at most 100 ms pending signals are looked at; a handler that raises (Ctrl-C) ends the wait with its
/// exception.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    wait: impl FnOnce(Option<Duration>, Between<'_>) -> rlz_core::Result<T> + Send,
) -> Result<T> {
    let timeout = seconds("timeout", timeout)?;
    if timeout == Some(Duration::ZERO) {
        return Ok(wait(timeout, &mut || true)?);
    }
    let mut raised = None;
    let mut check = || match Python::try_attach(|py| py.check_signals()) {
        Some(Ok(())) => true,
        Some(Err(error)) => {
            raised = Some(error);
            false
        }
        None => rest(),
    };
    let result = py.detach(|| wait(timeout, &mut check));
    match (result, raised) {
        (Err(Error::Interrupted), Some(error)) => Err(error.into()),
        (result, _) => Ok(result?),
    }
}

/// A daemon thread at the end of the interpreter: there is no Python to go back to. The process goes on without it to
/// its exit, as it does with every other daemon thread, which the interpreter stops when it asks for the GIL.
fn rest() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// A time from Python under its name; None is none.
pub(crate) fn seconds(name: &str, given: Option<f64>) -> Result<Option<Duration>> {
    match given {
        None => Ok(None),
        Some(seconds) if seconds == f64::INFINITY => Ok(None),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| {
            Failure::value(format!("{name}: given {seconds}, expected seconds >= 0, or None for no limit"))
        }),
    }
}

/// A worker id from Python.
pub(crate) fn worker(id: u64) -> Result<WorkerId> {
    Ok(WorkerId::new(id)?)
}

/// Four seed words from Python: as they are, from a `SeedSequence`, from one number, or (None) from the system's
/// randomness.
pub(crate) fn seed(given: Option<&Bound<'_, PyAny>>, py: Python<'_>) -> Result<[u64; 4]> {
    let wrong = |what: String| {
        Failure::value(format!(
            "seed: given {what}, expected None, a number >= 0, a numpy SeedSequence, or 4 words of 64 bits"
        ))
    };
    let shown = |given: &Bound<'_, PyAny>| given.repr().map_or_else(|_| describe(given), |text| text.to_string());
    let words = match given {
        Some(given) if given.hasattr("generate_state")? => state_of(given)?,
        Some(given) if given.is_instance_of::<PyInt>() || given.hasattr("__index__")? && given.len().is_err() => {
            let sequence = py.import("numpy.random")?.getattr("SeedSequence")?;
            let sequence = sequence.call1((given.call_method0("__index__")?,)).map_err(|_| wrong(shown(given)))?;
            state_of(&sequence)?
        }
        Some(given) => {
            let words = given.try_iter().and_then(|words| words.map(|word| word?.extract::<u64>()).collect());
            words.map_err(|_| wrong(shown(given)))?
        }
        None => state_of(&py.import("numpy.random")?.getattr("SeedSequence")?.call0()?)?,
    };
    <[u64; 4]>::try_from(words).map_err(|words| wrong(format!("{} words", words.len())))
}

fn state_of(sequence: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    sequence.call_method1("generate_state", (4, "uint64"))?.try_iter()?.map(|word| word?.extract()).collect()
}

/// What Python holds: shared by the threads that are using it, gone for new calls after `close`.
#[derive(Debug)]
pub(crate) struct Handle<T> {
    stream: &'static str,
    guard: ForkGuard,
    value: Mutex<ManuallyDrop<Option<Arc<T>>>>,
}

impl<T: Send + Sync> Handle<T> {
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
        let value = self.lock().take();
        // Without the GIL: to unmap a large stream takes long, and an end may have to wait for its thread.
        Python::attach(|py| py.detach(|| drop(value)));
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
            drop(self.value.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
