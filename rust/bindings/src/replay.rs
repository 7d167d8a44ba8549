//! `rlz._native.Replay` and its uniform sampler.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use rlz_core::replay::{self as core, Batch};

use crate::array::{words, words_mut};
use crate::borrow::{Dim, filling, reading};
use crate::columns::{Batches, row_dtype};
use crate::descriptor::{borrow, fields_from};
use crate::doorway::{Handle, seed as seed_words, wait, worker as worker_id};
use crate::failure::Result;
use crate::prioritized::PrioritizedSampler;
use crate::sampler::Shared;
use crate::tail::ReplayTail;
use crate::whole;
use crate::writer::ReplayWriter;

const STREAM: &str = "replay buffer";

/// (name, dtype, shape, byte offset in the row).
pub(crate) type Placed<'py> = (String, &'static str, Bound<'py, PyTuple>, usize);

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct Replay {
    replay: Handle<core::Replay>,
}

impl Replay {
    fn new(replay: core::Replay) -> Self {
        Self { replay: Handle::new(STREAM, Arc::new(replay)) }
    }
}

#[pymethods]
impl Replay {
    #[staticmethod]
    #[pyo3(signature = (fields, *, buffer_size, lanes=1, run_id=0))]
    fn create(
        py: Python<'_>,
        fields: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::buffer_size)] buffer_size: usize,
        #[pyo3(from_py_with = whole::lanes)] lanes: usize,
        #[pyo3(from_py_with = whole::run_id)] run_id: u64,
    ) -> Result<Self> {
        let fields = fields_from(fields)?;
        // Touches every page of the buffer.
        Ok(Self::new(py.detach(|| core::Replay::create(&fields, buffer_size, lanes, run_id))?))
    }

    #[staticmethod]
    fn attach(#[pyo3(from_py_with = whole::fd)] fd: i32) -> Result<Self> {
        Ok(Self::new(core::Replay::attach(borrow(&fd)?)?))
    }

    #[getter]
    fn fd(&self) -> Result<i32> {
        Ok(self.replay.get()?.as_fd().as_raw_fd())
    }

    #[getter]
    fn lanes(&self) -> Result<usize> {
        Ok(self.replay.get()?.lanes())
    }

    #[getter]
    fn lane_capacity(&self) -> Result<usize> {
        Ok(self.replay.get()?.lane_capacity())
    }

    #[getter]
    fn buffer_size(&self) -> Result<usize> {
        Ok(self.replay.get()?.buffer_size())
    }

    #[getter]
    fn stride(&self) -> Result<usize> {
        Ok(self.replay.get()?.schema().stride())
    }

    #[getter]
    fn nbytes(&self) -> Result<usize> {
        Ok(self.replay.get()?.nbytes())
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> Result<Vec<Placed<'py>>> {
        let replay = self.replay.get()?;
        let fields = replay.schema().fields().iter().map(|placed| {
            let field = &placed.field;
            Ok((field.name.clone(), field.dtype.name(), PyTuple::new(py, &field.shape)?, placed.offset))
        });
        fields.collect()
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        Ok(row_dtype(py, self.replay.get()?.schema())?)
    }

    fn committed(&self) -> Result<Vec<u64>> {
        Ok(self.replay.get()?.committed()?)
    }

    fn owners(&self) -> Result<Vec<u64>> {
        Ok(self.replay.get()?.owners()?)
    }

    #[pyo3(signature = (lanes, *, worker, n_step=1))]
    fn writer(
        &self,
        #[pyo3(from_py_with = whole::lanes)] lanes: Vec<usize>,
        #[pyo3(from_py_with = whole::worker)] worker: u64,
        #[pyo3(from_py_with = whole::n_step)] n_step: usize,
    ) -> Result<ReplayWriter> {
        ReplayWriter::new(&*self.replay.get()?, &lanes, worker_id(worker)?, n_step)
    }

    #[pyo3(signature = (*, seed=None))]
    fn sampler(&self, py: Python<'_>, seed: Option<&Bound<'_, PyAny>>) -> Result<ReplaySampler> {
        let replay = self.replay.get()?;
        let shared = Shared::new("replay sampler", replay.sampler(seed_words(seed, py)?), replay);
        Ok(ReplaySampler { shared, batches: Batches::new() })
    }

    #[pyo3(signature = (*, seed=None, alpha=0.6, beta=0.4, epsilon=1e-6))]
    fn prioritized_sampler(
        &self,
        py: Python<'_>,
        seed: Option<&Bound<'_, PyAny>>,
        alpha: f64,
        beta: f64,
        epsilon: f64,
    ) -> Result<PrioritizedSampler> {
        let options = core::Priorities { alpha, beta, eps: epsilon };
        PrioritizedSampler::new(self.replay.get()?, seed_words(seed, py)?, options)
    }

    fn tail(&self) -> Result<ReplayTail> {
        Ok(ReplayTail::new(&*self.replay.get()?))
    }

    fn reap(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<usize> {
        Ok(self.replay.get()?.reap(worker_id(worker)?)?)
    }

    fn read_rows(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
        #[pyo3(from_py_with = whole::first_ticket)] first_ticket: u64,
        rows: &Bound<'_, PyAny>,
        meta: &Bound<'_, PyAny>,
    ) -> Result<usize> {
        let replay = self.replay.get()?;
        let mut rows = filling::<u8>("rows", rows, &rows_of(&replay))?;
        let mut meta = filling::<u64>("meta", meta, &[Dim::Any("n")])?;
        let (rows, meta) = (words_mut("rows", &mut rows)?, &mut *meta);
        Ok(py.detach(|| replay.read_rows(lane, first_ticket, rows, meta))?)
    }

    #[pyo3(signature = (lane, rows, meta, *, worker))]
    fn restore_rows(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
        rows: &Bound<'_, PyAny>,
        meta: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::worker)] worker: u64,
    ) -> Result<()> {
        let (replay, worker) = (self.replay.get()?, worker_id(worker)?);
        let rows = reading::<u8>("rows", rows, &rows_of(&replay))?;
        let meta = reading::<u64>("meta", meta, &[Dim::Any("n")])?;
        let (rows, meta) = (words("rows", &rows)?, &*meta);
        Ok(py.detach(|| replay.restore_rows(lane, rows, meta, worker))?)
    }

    #[pyo3(signature = (path, *, ranges=None))]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = whole::ranges)] ranges: Option<Vec<(usize, u64, u64)>>,
    ) -> Result<u64> {
        let replay = self.replay.get()?;
        wait(py, None, |_, between| replay.save(&path, ranges.as_deref(), between))
    }

    #[pyo3(signature = (path, *, worker, open_episodes=false))]
    fn load(
        &self,
        py: Python<'_>,
        path: Paths,
        #[pyo3(from_py_with = whole::worker)] worker: u64,
        open_episodes: bool,
    ) -> Result<u64> {
        let (replay, worker) = (self.replay.get()?, worker_id(worker)?);
        let paths = match path {
            Paths::One(path) => vec![path],
            Paths::Many(paths) => paths,
        };
        wait(py, None, |_, between| replay.load(&paths, worker, open_episodes, between))
    }

    fn close(&self) -> Result<()> {
        self.replay.close()
    }
}

/// One path, or several.
#[derive(FromPyObject)]
enum Paths {
    One(PathBuf),
    Many(Vec<PathBuf>),
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct ReplaySampler {
    shared: Shared<core::Sampler>,
    batches: Batches,
}

#[pymethods]
impl ReplaySampler {
    #[pyo3(signature = (rows, *, meta=None, ids=None, threads=1))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        meta: Option<&Bound<'_, PyAny>>,
        ids: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole::threads)] threads: usize,
    ) -> Result<Option<Bound<'py, PyDict>>> {
        let replay = self.shared.replay()?;
        let made = Batches::size(rows)?.map(|size| self.batches.make(py, replay.schema(), size)).transpose()?;
        let (rows, fields) = made.map_or((rows.clone(), None), |(rows, fields)| (rows, Some(fields)));
        let mut rows = filling::<u8>("rows", &rows, &rows_of(&replay))?;
        let size = Dim::Exactly(rows.len() / replay.schema().stride());
        let mut meta = meta.map(|meta| filling::<u64>("meta", meta, &[size])).transpose()?;
        let mut ids = ids.map(|ids| filling::<u64>("ids", ids, &[size, Dim::Exactly(3)])).transpose()?;
        let rows = words_mut("rows", &mut rows)?;
        let (meta, ids) = (meta.as_deref_mut(), ids.as_deref_mut());
        self.shared.with(py, |sampler| sampler.sample(Batch { rows, meta, ids }, threads))?;
        Ok(fields)
    }

    #[getter]
    fn available(&self, py: Python<'_>) -> Result<u64> {
        self.shared.with(py, core::Sampler::available)
    }

    #[getter]
    fn redraws(&self, py: Python<'_>) -> Result<u64> {
        self.shared.with(py, |sampler| Ok(sampler.redraws()))
    }

    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.shared.with(py, |sampler| Ok(sampler.state()))?))
    }

    #[setter]
    fn set_state(&self, py: Python<'_>, value: &[u8]) -> Result<()> {
        self.shared.with(py, |sampler| sampler.set_state(value))
    }

    fn close(&self) -> Result<()> {
        self.shared.close()
    }
}

/// Shape of packed rows.
pub(crate) fn rows_of(replay: &core::Replay) -> [Dim; 2] {
    [Dim::Any("n"), Dim::Exactly(replay.schema().stride())]
}
