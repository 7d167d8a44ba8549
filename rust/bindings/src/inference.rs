//! `rlz._native.InferenceStream` and its two ends.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rlz_core::inference::{self as core, Inference};
use rlz_core::memory::words::bytes_of;
use rlz_core::schema::{PlacedField, Schema};

use crate::borrow::{Dim, filling, reading};
use crate::columns::{in_order, wrong_names};
use crate::consumer::{Column, disjoint, flags};
use crate::descriptor::{borrow, fields_from};
use crate::doorway::{Handle, seconds, wait, worker as worker_id};
use crate::failure::{Failure, Result};
use crate::queue::lock;
use crate::replay::Placed;
use crate::row::Row;
use crate::whole;

const STREAM: &str = "inference stream";

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct InferenceStream {
    stream: Handle<Inference>,
}

impl InferenceStream {
    fn new(stream: Inference) -> Self {
        Self { stream: Handle::new(STREAM, Arc::new(stream)) }
    }
}

fn places<'py>(py: Python<'py>, schema: &Schema) -> Result<Vec<Placed<'py>>> {
    let fields = schema.fields().iter().map(|PlacedField { field, offset }| {
        Ok((field.name.clone(), field.dtype.name(), PyTuple::new(py, &field.shape)?, *offset))
    });
    fields.collect()
}

#[pymethods]
impl InferenceStream {
    #[staticmethod]
    #[pyo3(signature = (request, answer, *, lanes, run_id=0))]
    fn create(
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
        answer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::lanes)] lanes: usize,
        #[pyo3(from_py_with = whole::run_id)] run_id: u64,
    ) -> Result<Self> {
        let (request, answer) = (fields_from(request)?, fields_from(answer)?);
        Ok(Self::new(py.detach(|| Inference::create(&request, &answer, lanes, run_id))?))
    }

    #[staticmethod]
    fn attach(#[pyo3(from_py_with = whole::fd)] fd: i32) -> Result<Self> {
        Ok(Self::new(Inference::attach(borrow(&fd)?)?))
    }

    #[getter]
    fn fd(&self) -> Result<i32> {
        Ok(self.stream.get()?.as_fd().as_raw_fd())
    }

    #[getter]
    fn lanes(&self) -> Result<usize> {
        Ok(self.stream.get()?.lanes())
    }

    #[getter]
    fn nbytes(&self) -> Result<usize> {
        Ok(self.stream.get()?.nbytes())
    }

    #[getter]
    fn request<'py>(&self, py: Python<'py>) -> Result<Vec<Placed<'py>>> {
        places(py, self.stream.get()?.request())
    }

    #[getter]
    fn answer<'py>(&self, py: Python<'py>) -> Result<Vec<Placed<'py>>> {
        places(py, self.stream.get()?.answer())
    }

    #[pyo3(signature = (groups, *, worker, timeout=None))]
    #[allow(clippy::needless_pass_by_value)] // as Python gives them
    fn client(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::groups)] groups: Vec<Vec<usize>>,
        #[pyo3(from_py_with = whole::worker)] worker: u64,
        timeout: Option<f64>,
    ) -> Result<InferenceClient> {
        let (stream, worker) = (self.stream.get()?, worker_id(worker)?);
        let client = wait(py, timeout, |limit, between| stream.client(&groups, worker, limit, between))?;
        let end = Asking { client, row: Row::new(stream.request()) };
        Ok(InferenceClient { end: Handle::new("inference client", Arc::new(Mutex::new(end))) })
    }

    #[pyo3(signature = (*, worker))]
    fn server(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<InferenceServer> {
        let stream = self.stream.get()?;
        let end = Answering { server: stream.server(worker_id(worker)?)?, row: Row::new(stream.answer()) };
        Ok(InferenceServer { end: Handle::new("inference server", Arc::new(Mutex::new(end))) })
    }

    fn reap(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<(usize, usize)> {
        let core::Reaped { lanes, returned } = self.stream.get()?.reap(worker_id(worker)?)?;
        Ok((lanes, returned))
    }

    fn occupancy(&self) -> Result<BTreeMap<&'static str, usize>> {
        let core::Occupancy { idle, asked, taken, orphaned, answered } = self.stream.get()?.occupancy()?;
        let counts =
            [("idle", idle), ("asked", asked), ("taken", taken), ("orphaned", orphaned), ("answered", answered)];
        Ok(BTreeMap::from(counts))
    }

    #[getter]
    fn missed_wakeups(&self) -> Result<u64> {
        Ok(self.stream.get()?.missed_wakeups()?)
    }

    fn close(&self) -> Result<()> {
        self.stream.close()
    }
}

/// Arrays to fill, by field; all have as many rows.
fn columns(
    arrays: &[(Bound<'_, PyAny>, Bound<'_, PyAny>)],
    schema: &Schema,
    into: &Bound<'_, PyDict>,
    size: &mut Option<usize>,
) -> Result<Vec<Column>> {
    let mut columns = Vec::with_capacity(arrays.len());
    for (name, array) in arrays {
        let name: String = name.extract()?;
        let placed = schema.fields().iter().find(|placed| placed.field.name == name);
        let placed = placed.ok_or_else(|| wrong_names(schema.fields(), into))?;
        columns.push(Column::new(&name, array, placed, size)?);
    }
    Ok(columns)
}

struct Asking {
    client: core::Client,
    row: Row,
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct InferenceClient {
    end: Handle<Mutex<Asking>>,
}

#[pymethods]
impl InferenceClient {
    #[pyo3(signature = (group, fields, *, notes=None, which=None))]
    fn ask(
        &self,
        #[pyo3(from_py_with = whole::group)] group: usize,
        fields: &Bound<'_, PyDict>,
        notes: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole::which)] which: Option<Vec<usize>>,
    ) -> Result<()> {
        let end = self.end.get()?;
        let Asking { client, row: packed } = &mut *lock(&end)?;
        let lanes = client.lanes(group)?;
        let arrays = in_order(packed.fields(), fields)?;
        let columns = packed.columns(&arrays, lanes)?;
        let notes = notes.map(|array| reading::<u64>("notes", array, &[Dim::Exactly(lanes)])).transpose()?;
        let which = which.unwrap_or_else(|| (0..lanes).collect());
        Ok(client.ask(group, &which, |at, row| {
            row.copy_from_slice(packed.gather(&columns, at));
            notes.as_ref().map_or(0, |notes| notes[at])
        })?)
    }

    #[pyo3(signature = (*, timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<usize> {
        let end = self.end.get()?;
        let Asking { client, .. } = &mut *lock(&end)?;
        wait(py, timeout, |limit, between| client.wait(limit, between))
    }

    #[pyo3(signature = (group, into, *, notes=None))]
    fn take(
        &self,
        #[pyo3(from_py_with = whole::group)] group: usize,
        into: &Bound<'_, PyDict>,
        notes: Option<&Bound<'_, PyAny>>,
    ) -> Result<usize> {
        let end = self.end.get()?;
        let Asking { client, .. } = &mut *lock(&end)?;
        let lanes = client.lanes(group)?;
        let stream = client.stream().clone();
        let arrays: Vec<_> = into.iter().collect();
        let columns = columns(&arrays, stream.answer(), into, &mut Some(lanes))?;
        let _flags = if disjoint(columns.iter()) { Vec::new() } else { flags(&arrays, &columns)? };
        let mut notes = notes.map(|array| filling::<u64>("notes", array, &[Dim::Exactly(lanes)])).transpose()?;
        Ok(client.take(group, |at, row, note| {
            columns.iter().for_each(|column| column.store(at, bytes_of(row)));
            if let Some(notes) = &mut notes {
                notes[at] = note;
            }
        })?)
    }

    fn close(&self) -> Result<()> {
        self.end.close()
    }
}

struct Answering {
    server: core::Server,
    row: Row,
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct InferenceServer {
    end: Handle<Mutex<Answering>>,
}

#[pymethods]
impl InferenceServer {
    #[pyo3(signature = (into, *, timeout=None, linger=0.0, notes=None, lanes=None))]
    fn take(
        &self,
        py: Python<'_>,
        into: &Bound<'_, PyDict>,
        timeout: Option<f64>,
        linger: f64,
        notes: Option<&Bound<'_, PyAny>>,
        lanes: Option<&Bound<'_, PyAny>>,
    ) -> Result<usize> {
        let end = self.end.get()?;
        let Answering { server, .. } = &mut *lock(&end)?;
        let stream = server.stream().clone();
        // Holds the arrays: the dict could be changed while the GIL is not held.
        let arrays: Vec<_> = into.iter().collect();
        let mut size = None;
        let columns = columns(&arrays, stream.request(), into, &mut size)?;
        let _flags = flags(&arrays, &columns)?;
        let size = size.ok_or_else(|| Failure::value("into: expected at least one field of a request"))?;
        let shape = [Dim::Exactly(size)];
        let mut notes = notes.map(|array| filling::<u64>("notes", array, &shape)).transpose()?;
        let mut lanes = lanes.map(|array| filling::<i64>("lanes", array, &shape)).transpose()?;
        let (mut notes, mut lanes) = (notes.as_deref_mut(), lanes.as_deref_mut());
        let linger = seconds("linger", Some(linger))?.unwrap_or(Duration::MAX);
        wait(py, timeout, |limit, between| {
            server.take(size, limit, linger, between, |number, lane, row, note| {
                columns.iter().for_each(|column| column.store(number, bytes_of(row)));
                if let Some(notes) = &mut notes {
                    notes[number] = note;
                }
                if let Some(lanes) = &mut lanes {
                    lanes[number] = i64::try_from(lane).unwrap_or(i64::MAX); // it is below 65,536
                }
            })
        })
    }

    #[pyo3(signature = (fields, *, note=0))]
    fn answer(&self, fields: &Bound<'_, PyDict>, #[pyo3(from_py_with = whole::note)] note: u64) -> Result<usize> {
        let end = self.end.get()?;
        let Answering { server, row: packed } = &mut *lock(&end)?;
        let arrays = in_order(packed.fields(), fields)?;
        let columns = packed.columns(&arrays, server.taken())?;
        Ok(server.answer(note, |number, row| row.copy_from_slice(packed.gather(&columns, number)))?)
    }

    fn close(&self) -> Result<()> {
        self.end.close()
    }
}
