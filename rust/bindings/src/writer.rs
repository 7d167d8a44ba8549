//! `rlz._native.ReplayWriter`.

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rlz_core::WorkerId;
use rlz_core::replay::{FoldedFields, NStepWriter, Replay, Writer};

use crate::borrow::{Dim, reading};
use crate::columns::in_order;
use crate::doorway::Handle;
use crate::failure::{Failure, Result};
use crate::row::Row;
use crate::whole;

#[derive(Debug)]
enum Rows {
    /// Every step's row as it is.
    Single(Writer),
    /// Folded over several steps.
    Folded(NStepWriter),
}

impl Rows {
    /// A row keeps the low half of the version, so no number of publications ends a run.
    #[allow(clippy::cast_possible_truncation)]
    fn append(&mut self, lane: usize, row: &[u64], version: u64, flags: u16) -> rlz_core::Result<()> {
        let version = version as u32;
        match self {
            Self::Single(writer) => writer.append_packed(lane, row, version, flags).map(drop),
            Self::Folded(writer) => writer.append_packed(lane, row, version, flags),
        }
    }
}

#[derive(Debug)]
struct End {
    rows: Rows,
    row: Row,
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct ReplayWriter {
    end: Handle<Mutex<End>>,
}

impl ReplayWriter {
    pub(crate) fn new(replay: &Replay, lanes: &[usize], worker: WorkerId, n_step: usize) -> Result<Self> {
        let writer = replay.writer(lanes, worker)?;
        let rows = match n_step {
            1 => Rows::Single(writer),
            n => Rows::Folded(NStepWriter::new(writer, n, FoldedFields::default())?),
        };
        let end = End { rows, row: Row::new(replay.schema()) };
        Ok(Self { end: Handle::new("replay writer", Arc::new(Mutex::new(end))) })
    }

    fn with<T>(&self, f: impl FnOnce(&mut End) -> Result<T>) -> Result<T> {
        let end = self.end.get()?;
        f(&mut *lock(&end)?)
    }
}

#[pymethods]
impl ReplayWriter {
    #[pyo3(signature = (lane, row=None, *, version=0, flags=0, **fields))]
    fn append(
        &self,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
        row: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole::version)] version: u64,
        #[pyo3(from_py_with = whole::flags)] flags: u16,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> Result<()> {
        let row = either("row", row, fields)?;
        self.with(|End { rows, row: packed }| Ok(rows.append(lane, packed.compose(row)?, version, flags)?))
    }

    #[pyo3(signature = (lane, row, *, version=0, flags=0))]
    fn append_packed(
        &self,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
        row: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::version)] version: u64,
        #[pyo3(from_py_with = whole::flags)] flags: u16,
    ) -> Result<()> {
        let row = reading::<u8>("row", row, &[Dim::Any("stride")])?;
        self.with(|End { rows, row: packed }| Ok(rows.append(lane, packed.copy(&row)?, version, flags)?))
    }

    #[pyo3(signature = (lanes, columns=None, *, version=0, flags=None, **fields))]
    #[allow(clippy::needless_pass_by_value)] // as Python gives them
    fn append_batch(
        &self,
        #[pyo3(from_py_with = whole::lanes)] lanes: Vec<usize>,
        columns: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole::version)] version: u64,
        #[pyo3(from_py_with = whole::flags)] flags: Option<Vec<u16>>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> Result<()> {
        let columns = either("columns", columns, fields)?;
        if flags.as_ref().is_some_and(|flags| flags.len() != lanes.len()) {
            return Err(Failure::value(format!("flags: expected one for each of {} lanes", lanes.len())));
        }
        self.with(|End { rows, row }| {
            let columns: Vec<_> = match columns.cast::<PyDict>() {
                Ok(fields) => in_order(row.fields(), fields)?,
                Err(_) => columns.extract()?,
            };
            let columns = row.columns(&columns, lanes.len())?;
            for (number, lane) in lanes.iter().enumerate() {
                let flags = flags.as_ref().map_or(0, |flags| flags[number]);
                rows.append(*lane, row.gather(&columns, number), version, flags)?;
            }
            Ok(())
        })
    }

    #[getter]
    fn pending(&self) -> Result<usize> {
        self.with(|end| match &end.rows {
            Rows::Single(_) => Ok(0),
            Rows::Folded(writer) => Ok(writer.pending()),
        })
    }

    #[pyo3(signature = (lane=None))]
    fn flush(&self, #[pyo3(from_py_with = whole::lane)] lane: Option<usize>) -> Result<()> {
        self.with(|end| match (&mut end.rows, lane) {
            (Rows::Single(_), _) => Ok(()),
            (Rows::Folded(writer), None) => Ok(writer.flush()?),
            (Rows::Folded(writer), Some(lane)) => Ok(writer.flush_lane(lane)?),
        })
    }

    fn open_windows<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
    ) -> Result<Bound<'py, PyBytes>> {
        let words = self.with(|end| match &mut end.rows {
            Rows::Single(_) => Ok(Vec::new()),
            Rows::Folded(writer) => Ok(writer.state(lane)?),
        })?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(PyBytes::new(py, &bytes))
    }

    fn restore_open_windows(&self, #[pyo3(from_py_with = whole::lane)] lane: usize, state: &[u8]) -> Result<()> {
        let (words, rest) = state.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Failure::value(format!("state: given {} bytes, expected whole 64-bit words", state.len())));
        }
        let words: Vec<u64> = words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        self.with(|end| match &mut end.rows {
            Rows::Single(_) if words.is_empty() => Ok(()),
            Rows::Single(_) => {
                Err(Failure::value("state: given open windows, expected none: this writer folds no steps"))
            }
            Rows::Folded(writer) => Ok(writer.restore(lane, &words)?),
        })
    }

    fn close(&self) -> Result<()> {
        if let Ok(end) = self.end.get() {
            match &mut lock(&end)?.rows {
                Rows::Single(writer) => writer.close(),
                Rows::Folded(writer) => writer.close()?,
            }
        }
        self.end.close()
    }
}

/// `try_lock`: composing a row can run Python code (a number's `__float__`), which must not wait for itself.
fn lock(end: &Mutex<End>) -> Result<MutexGuard<'_, End>> {
    end.try_lock().map_err(|_| {
        Failure::value(
            "this writer is in use by another thread: each lane has one writer, used by one thread at a time",
        )
    })
}

/// What is given in one way or the other.
fn either<'a, 'py>(
    name: &str,
    given: Option<&'a Bound<'py, PyAny>>,
    fields: Option<&'a Bound<'py, PyDict>>,
) -> Result<&'a Bound<'py, PyAny>> {
    match (given, fields) {
        (Some(given), None) => Ok(given),
        (None, Some(fields)) => Ok(fields.as_any()),
        (given, _) => {
            let given = if given.is_some() { "both" } else { "neither" };
            Err(Failure::kind(format!("{name}: given {given}, expected {name}, or the fields by name")))
        }
    }
}
