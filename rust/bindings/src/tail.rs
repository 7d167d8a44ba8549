//! `rlz._native.ReplayTail`.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rlz_core::replay::{Replay, Tail};

use crate::array::words_mut;
use crate::borrow::{Dim, filling};
use crate::doorway::Handle;
use crate::failure::Result;
use crate::replay::rows_of;
use crate::whole;

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct ReplayTail {
    // Locked without the GIL only.
    tail: Handle<Mutex<Tail>>,
}

impl ReplayTail {
    pub(crate) fn new(replay: &Replay) -> Self {
        Self { tail: Handle::new("replay tail", Arc::new(Mutex::new(replay.tail()))) }
    }

    fn with<T: Send>(&self, py: Python<'_>, f: impl FnOnce(&mut Tail) -> rlz_core::Result<T> + Send) -> Result<T> {
        let tail = self.tail.get()?;
        Ok(py.detach(|| f(&mut tail.lock().unwrap_or_else(PoisonError::into_inner)))?)
    }
}

#[pymethods]
impl ReplayTail {
    fn read(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
        rows: &Bound<'_, PyAny>,
        meta: &Bound<'_, PyAny>,
        tickets: &Bound<'_, PyAny>,
    ) -> Result<usize> {
        let replay = self.with(py, |tail| Ok(tail.replay().clone()))?;
        let mut rows = filling::<u8>("rows", rows, &rows_of(&replay))?;
        let mut meta = filling::<u64>("meta", meta, &[Dim::Any("n")])?;
        let mut tickets = filling::<u64>("tickets", tickets, &[Dim::Any("n")])?;
        let (rows, meta, tickets) = (words_mut("rows", &mut rows)?, &mut *meta, &mut *tickets);
        self.with(py, |tail| tail.read(lane, rows, meta, tickets))
    }

    fn seek(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
        #[pyo3(from_py_with = whole::ticket)] ticket: u64,
    ) -> Result<()> {
        self.with(py, |tail| tail.seek(lane, ticket))
    }

    #[getter]
    fn cursors(&self, py: Python<'_>) -> Result<Vec<u64>> {
        self.with(py, |tail| Ok(tail.cursors().to_vec()))
    }

    #[getter]
    fn lapped(&self, py: Python<'_>) -> Result<u64> {
        self.with(py, |tail| Ok(tail.lapped()))
    }

    #[getter]
    fn lost(&self, py: Python<'_>) -> Result<u64> {
        self.with(py, |tail| Ok(tail.lost()))
    }

    fn close(&self) -> Result<()> {
        self.tail.close()
    }
}
