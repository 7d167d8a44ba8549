//! `rlz._native.Replay` and its uniform sampler.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1, PyReadwriteArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rlz_core::replay::{self as core, Batch};

use crate::array::{shape_text, words, words_mut};
use crate::descriptor::{borrow, fields_from};
use crate::doorway::{Handle, seed as seed_words, wait, worker as worker_id};
use crate::failure::{Failure, Result};
use crate::parameters::contiguous;
use crate::prioritized::PrioritizedSampler;
use crate::sampler::Shared;
use crate::tail::ReplayTail;
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
    #[pyo3(signature = (fields, *, buffer_size, lanes, run_id))]
    fn create(
        py: Python<'_>,
        fields: Vec<(String, String, Vec<usize>)>,
        buffer_size: usize,
        lanes: usize,
        run_id: u64,
    ) -> Result<Self> {
        let fields = fields_from(&fields)?;
        // Touches every page of the buffer.
        Ok(Self::new(py.detach(|| core::Replay::create(&fields, buffer_size, lanes, run_id))?))
    }

    #[staticmethod]
    fn attach(fd: i32) -> Result<Self> {
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

    fn committed(&self) -> Result<Vec<u64>> {
        Ok(self.replay.get()?.committed()?)
    }

    fn owners(&self) -> Result<Vec<u64>> {
        Ok(self.replay.get()?.owners()?)
    }

    #[pyo3(signature = (lanes, *, worker, n_step=1))]
    fn writer(&self, lanes: Vec<usize>, worker: u64, n_step: usize) -> Result<ReplayWriter> {
        ReplayWriter::new(&*self.replay.get()?, &lanes, worker_id(worker)?, n_step)
    }

    #[pyo3(signature = (*, seed))]
    fn sampler(&self, seed: &Bound<'_, PyAny>) -> Result<ReplaySampler> {
        let replay = self.replay.get()?;
        Ok(ReplaySampler { shared: Shared::new("replay sampler", replay.sampler(seed_words(seed)?), replay) })
    }

    #[pyo3(signature = (*, seed, alpha=0.6, beta=0.4, epsilon=1e-6))]
    fn prioritized_sampler(
        &self,
        seed: &Bound<'_, PyAny>,
        alpha: f64,
        beta: f64,
        epsilon: f64,
    ) -> Result<PrioritizedSampler> {
        let options = core::Priorities { alpha, beta, eps: epsilon };
        PrioritizedSampler::new(self.replay.get()?, seed_words(seed)?, options)
    }

    fn tail(&self) -> Result<ReplayTail> {
        Ok(ReplayTail::new(&*self.replay.get()?))
    }

    fn reap(&self, worker: u64) -> Result<usize> {
        Ok(self.replay.get()?.reap(worker_id(worker)?)?)
    }

    fn read_rows(
        &self,
        py: Python<'_>,
        lane: usize,
        first_ticket: u64,
        mut rows: PyReadwriteArray2<'_, u8>,
        mut meta: PyReadwriteArray1<'_, u64>,
    ) -> Result<usize> {
        let replay = self.replay.get()?;
        check_stride("rows", rows.shape(), &replay)?;
        let rows = words_mut("rows", contiguous("rows", rows.as_slice_mut())?)?;
        let meta = contiguous("meta", meta.as_slice_mut())?;
        Ok(py.detach(|| replay.read_rows(lane, first_ticket, rows, meta))?)
    }

    #[pyo3(signature = (lane, rows, meta, *, worker))]
    fn restore_rows(
        &self,
        py: Python<'_>,
        lane: usize,
        rows: PyReadonlyArray2<'_, u8>,
        meta: PyReadonlyArray1<'_, u64>,
        worker: u64,
    ) -> Result<()> {
        let (replay, worker) = (self.replay.get()?, worker_id(worker)?);
        check_stride("rows", rows.shape(), &replay)?;
        let rows = words("rows", contiguous("rows", rows.as_slice())?)?;
        let meta = contiguous("meta", meta.as_slice())?;
        Ok(py.detach(|| replay.restore_rows(lane, rows, meta, worker))?)
    }

    #[pyo3(signature = (path, *, ranges=None))]
    fn save(&self, py: Python<'_>, path: PathBuf, ranges: Option<Vec<(usize, u64, u64)>>) -> Result<u64> {
        let replay = self.replay.get()?;
        wait(py, None, |_, between| replay.save(&path, ranges.as_deref(), between))
    }

    #[pyo3(signature = (path, *, worker, open_episodes=false))]
    fn load(&self, py: Python<'_>, path: Paths, worker: u64, open_episodes: bool) -> Result<u64> {
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

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> Result<()> {
        self.close()
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
}

#[pymethods]
impl ReplaySampler {
    #[pyo3(signature = (rows, *, meta=None, ids=None, threads=1))]
    fn sample(
        &self,
        py: Python<'_>,
        mut rows: PyReadwriteArray2<'_, u8>,
        meta: Option<PyReadwriteArray1<'_, u64>>,
        ids: Option<PyReadwriteArray2<'_, u64>>,
        threads: usize,
    ) -> Result<()> {
        let (mut meta, mut ids) = (meta, ids);
        check_stride("rows", rows.shape(), &*self.shared.replay()?)?;
        let size = rows.shape()[0];
        if ids.as_ref().is_some_and(|ids| ids.shape() != [size, 3]) {
            return Err(Failure::value(format!("ids: expected shape ({size}, 3)")));
        }
        let rows = words_mut("rows", contiguous("rows", rows.as_slice_mut())?)?;
        let meta = meta.as_mut().map(|meta| contiguous("meta", meta.as_slice_mut())).transpose()?;
        let ids = ids.as_mut().map(|ids| contiguous("ids", ids.as_slice_mut())).transpose()?;
        self.shared.with(py, |sampler| sampler.sample(Batch { rows, meta, ids }, threads))
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

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> Result<()> {
        self.close()
    }
}

pub(crate) fn check_stride(name: &str, shape: &[usize], replay: &core::Replay) -> Result<()> {
    let stride = replay.schema().stride();
    match shape {
        [_, given] if *given == stride => Ok(()),
        _ => Err(Failure::value(format!("{name}: given shape {}, expected (n, {stride})", shape_text(shape)))),
    }
}
