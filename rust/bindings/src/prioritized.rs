//! `rlz._native.PrioritizedSampler`.

use std::sync::Arc;

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rlz_core::replay::{self as core, Priorities, PrioritizedBatch};

use crate::array::words_mut;
use crate::borrow::{Dim, filling, reading};
use crate::columns::Batches;
use crate::failure::{Failure, Result};
use crate::replay::rows_of;
use crate::sampler::Shared;
use crate::whole;

/// Fields by name, ids, weights.
type Drawn<'py> = (Bound<'py, PyDict>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// First ticket, its position, and a weight per row from there on.
type LaneWeights<'py> = (u64, usize, Bound<'py, PyArray1<f64>>);

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct PrioritizedSampler {
    shared: Shared<core::PrioritizedSampler>,
    batches: Batches,
}

impl PrioritizedSampler {
    pub(crate) fn new(replay: Arc<core::Replay>, seed: [u64; 4], options: Priorities) -> Result<Self> {
        let shared = Shared::new("prioritized sampler", replay.prioritized_sampler(seed, options)?, replay);
        Ok(Self { shared, batches: Batches::new() })
    }
}

#[pymethods]
impl PrioritizedSampler {
    #[pyo3(signature = (rows, *, ids=None, weights=None, meta=None, threads=1))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        ids: Option<&Bound<'py, PyAny>>,
        weights: Option<&Bound<'py, PyAny>>,
        meta: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = whole::threads)] threads: usize,
    ) -> Result<Option<Drawn<'py>>> {
        let replay = self.shared.replay()?;
        let made = Batches::size(rows)?;
        let (rows, fields, ids, weights) = match (made, ids, weights) {
            (Some(size), ids, weights) => {
                let (rows, fields) = self.batches.make(py, replay.schema(), size)?;
                let new_ids = || PyArray2::<u64>::zeros(py, [size, 3], false).into_any();
                let new_weights = || PyArray1::<f32>::zeros(py, size, false).into_any();
                let ids = ids.map_or_else(new_ids, Bound::clone);
                (rows, Some(fields), ids, weights.map_or_else(new_weights, Bound::clone))
            }
            (None, Some(ids), Some(weights)) => (rows.clone(), None, ids.clone(), weights.clone()),
            _ => {
                let message = "ids, weights: expected arrays to fill, unless rows is a number of rows to make";
                return Err(Failure::kind(message));
            }
        };
        let mut packed = filling::<u8>("rows", &rows, &rows_of(&replay))?;
        let size = Dim::Exactly(packed.len() / replay.schema().stride());
        let mut new_ids = filling::<u64>("ids", &ids, &[size, Dim::Exactly(3)])?;
        let mut new_weights = filling::<f32>("weights", &weights, &[size])?;
        let mut meta = meta.map(|meta| filling::<u64>("meta", meta, &[size])).transpose()?;
        let batch = PrioritizedBatch {
            rows: words_mut("rows", &mut packed)?,
            meta: meta.as_deref_mut(),
            ids: &mut new_ids,
            weights: &mut new_weights,
        };
        self.shared.with(py, |sampler| sampler.sample(batch, threads))?;
        Ok(fields.map(|fields| (fields, ids, weights)))
    }

    fn update_priorities(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, errors: &Bound<'_, PyAny>) -> Result<usize> {
        let ids = reading::<u64>("ids", ids, &[Dim::Any("n"), Dim::Exactly(3)])?;
        let errors = reading::<f32>("errors", errors, &[Dim::Exactly(ids.len() / 3)])?;
        let (ids, errors) = (&*ids, &*errors);
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

    fn weights<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
    ) -> Result<LaneWeights<'py>> {
        let core::LaneWeights { first, position, weights } = self.shared.with(py, |sampler| sampler.weights(lane))?;
        Ok((first, position, PyArray1::from_vec(py, weights)))
    }

    fn restore_weights(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::lane)] lane: usize,
        #[pyo3(from_py_with = whole::first)] first: u64,
        #[pyo3(from_py_with = whole::position)] position: usize,
        weights: &Bound<'_, PyAny>,
        largest: f64,
    ) -> Result<usize> {
        let weights = reading::<f64>("weights", weights, &[Dim::Any("n")])?.to_vec();
        let saved = core::LaneWeights { first, position, weights };
        self.shared.with(py, |sampler| sampler.restore_weights(lane, &saved, largest))
    }

    fn close(&self) -> Result<()> {
        self.shared.close()
    }
}
