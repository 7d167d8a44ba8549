//! `rlz._native.PrioritizedSampler`.

use std::sync::Arc;

use numpy::{
    PyArray1, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1, PyReadwriteArray2, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rlz_core::replay::{self as core, Priorities, PrioritizedBatch};

use crate::array::words_mut;
use crate::failure::{Failure, Result};
use crate::parameters::contiguous;
use crate::replay::check_stride;
use crate::sampler::Shared;

/// First ticket, its position, and a weight per row from there on.
type LaneWeights<'py> = (u64, usize, Bound<'py, PyArray1<f64>>);

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct PrioritizedSampler {
    shared: Shared<core::PrioritizedSampler>,
}

impl PrioritizedSampler {
    pub(crate) fn new(replay: Arc<core::Replay>, seed: [u64; 4], options: Priorities) -> Result<Self> {
        Ok(Self { shared: Shared::new("prioritized sampler", replay.prioritized_sampler(seed, options)?, replay) })
    }
}

#[pymethods]
impl PrioritizedSampler {
    #[pyo3(signature = (rows, *, ids, weights, meta=None, threads=1))]
    fn sample(
        &self,
        py: Python<'_>,
        mut rows: PyReadwriteArray2<'_, u8>,
        mut ids: PyReadwriteArray2<'_, u64>,
        mut weights: PyReadwriteArray1<'_, f32>,
        meta: Option<PyReadwriteArray1<'_, u64>>,
        threads: usize,
    ) -> Result<()> {
        let mut meta = meta;
        check_stride("rows", rows.shape(), &*self.shared.replay()?)?;
        let size = rows.shape()[0];
        check_ids(ids.shape(), size)?;
        let rows = words_mut("rows", contiguous("rows", rows.as_slice_mut())?)?;
        let ids = contiguous("ids", ids.as_slice_mut())?;
        let weights = contiguous("weights", weights.as_slice_mut())?;
        let meta = meta.as_mut().map(|meta| contiguous("meta", meta.as_slice_mut())).transpose()?;
        self.shared.with(py, |sampler| sampler.sample(PrioritizedBatch { rows, meta, ids, weights }, threads))
    }

    fn update_priorities(
        &self,
        py: Python<'_>,
        ids: PyReadonlyArray2<'_, u64>,
        errors: PyReadonlyArray1<'_, f32>,
    ) -> Result<usize> {
        let errors = contiguous("errors", errors.as_slice())?;
        check_ids(ids.shape(), errors.len())?;
        let ids = contiguous("ids", ids.as_slice())?;
        self.shared.with(py, |sampler| sampler.update_priorities(ids, errors))
    }

    #[getter]
    fn beta(&self, py: Python<'_>) -> Result<f64> {
        self.shared.with(py, |sampler| Ok(sampler.options().beta))
    }

    #[setter]
    fn set_beta(&self, py: Python<'_>, value: f64) -> Result<()> {
        self.shared.with(py, |sampler| sampler.set_beta(value))
    }

    #[getter]
    fn largest(&self, py: Python<'_>) -> Result<f64> {
        self.shared.with(py, |sampler| Ok(sampler.largest()))
    }

    #[getter]
    fn stale(&self, py: Python<'_>) -> Result<u64> {
        self.shared.with(py, |sampler| Ok(sampler.stale()))
    }

    #[getter]
    fn available(&self, py: Python<'_>) -> Result<u64> {
        self.shared.with(py, core::PrioritizedSampler::available)
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

    fn weights<'py>(&self, py: Python<'py>, lane: usize) -> Result<LaneWeights<'py>> {
        let core::LaneWeights { first, position, weights } = self.shared.with(py, |sampler| sampler.weights(lane))?;
        Ok((first, position, PyArray1::from_vec(py, weights)))
    }

    fn restore_weights(
        &self,
        py: Python<'_>,
        lane: usize,
        first: u64,
        position: usize,
        weights: PyReadonlyArray1<'_, f64>,
        largest: f64,
    ) -> Result<usize> {
        let weights = contiguous("weights", weights.as_slice())?.to_vec();
        let saved = core::LaneWeights { first, position, weights };
        self.shared.with(py, |sampler| sampler.restore_weights(lane, &saved, largest))
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

fn check_ids(shape: &[usize], size: usize) -> Result<()> {
    if shape == [size, 3] { Ok(()) } else { Err(Failure::value(format!("ids: expected shape ({size}, 3)"))) }
}
