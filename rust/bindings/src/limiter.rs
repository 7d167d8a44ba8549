//! `rlz._native.Limiter`.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use pyo3::prelude::*;
use rlz_core::limiter as core;
use rlz_core::limiter::rule::Rule;

use crate::borrow::{Dim, filling};
use crate::descriptor::borrow;
use crate::doorway::{Handle, wait, worker as worker_id};
use crate::failure::Result;
use crate::whole;

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct Limiter {
    limiter: Handle<core::Limiter>,
}

impl Limiter {
    fn new(limiter: core::Limiter) -> Self {
        Self { limiter: Handle::new("limiter", Arc::new(limiter)) }
    }
}

#[pymethods]
impl Limiter {
    #[staticmethod]
    #[pyo3(signature = (*, lanes, total_timesteps, learning_starts, ratio, slack, run_id=0, env_steps=0, updates=0))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn create(
        #[pyo3(from_py_with = whole::lanes)] lanes: usize,
        #[pyo3(from_py_with = whole::total_timesteps)] total_timesteps: u64,
        #[pyo3(from_py_with = whole::learning_starts)] learning_starts: u64,
        #[pyo3(from_py_with = whole::ratio)] ratio: Option<(u64, u64)>,
        slack: f64,
        #[pyo3(from_py_with = whole::run_id)] run_id: u64,
        #[pyo3(from_py_with = whole::env_steps)] env_steps: u64,
        #[pyo3(from_py_with = whole::updates)] updates: u64,
    ) -> Result<Self> {
        let rule = Rule::new(total_timesteps, learning_starts, ratio, slack)?;
        Ok(Self::new(core::Limiter::create(rule, lanes, run_id, env_steps, updates)?))
    }

    #[staticmethod]
    fn attach(#[pyo3(from_py_with = whole::fd)] fd: i32) -> Result<Self> {
        Ok(Self::new(core::Limiter::attach(borrow(&fd)?)?))
    }

    #[getter]
    fn fd(&self) -> Result<i32> {
        Ok(self.limiter.get()?.as_fd().as_raw_fd())
    }

    #[getter]
    fn nbytes(&self) -> Result<usize> {
        Ok(self.limiter.get()?.nbytes())
    }

    #[getter]
    fn state(&self) -> Result<u64> {
        Ok(self.limiter.get()?.state()? as u64)
    }

    #[getter]
    fn total_timesteps(&self) -> Result<u64> {
        Ok(self.limiter.get()?.rule().total_timesteps())
    }

    #[getter]
    fn learning_starts(&self) -> Result<u64> {
        Ok(self.limiter.get()?.rule().learning_starts())
    }

    #[getter]
    fn env_steps(&self) -> Result<u64> {
        Ok(self.limiter.get()?.env_steps()?)
    }

    #[getter]
    fn granted(&self) -> Result<u64> {
        Ok(self.limiter.get()?.granted()?)
    }

    #[getter]
    fn updates(&self) -> Result<u64> {
        Ok(self.limiter.get()?.updates()?)
    }

    #[getter]
    fn target_updates(&self) -> Result<Option<u64>> {
        Ok(self.limiter.get()?.rule().target_updates())
    }

    #[getter]
    fn missed_wakeups(&self) -> Result<u64> {
        Ok(self.limiter.get()?.missed_wakeups()?)
    }

    #[getter]
    fn step_limit(&self) -> Result<u64> {
        Ok(self.limiter.get()?.step_limit()?)
    }

    fn set_step_limit(&self, #[pyo3(from_py_with = whole::index)] index: u64) -> Result<()> {
        Ok(self.limiter.get()?.set_step_limit(index)?)
    }

    fn lane_steps(&self) -> Result<Vec<u64>> {
        Ok(self.limiter.get()?.lane_steps()?)
    }

    #[pyo3(signature = (lanes, tickets, *, worker, timeout=None))]
    fn acquire_steps(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::lanes)] lanes: Vec<usize>,
        tickets: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::worker)] worker: u64,
        timeout: Option<f64>,
    ) -> Result<usize> {
        let (limiter, worker) = (self.limiter.get()?, worker_id(worker)?);
        let mut tickets = filling::<i64>("tickets", tickets, &[Dim::Exactly(lanes.len())])?;
        let tickets = &mut *tickets;
        wait(py, timeout, |timeout, between| limiter.acquire_steps(&lanes, tickets, worker, timeout, between))
    }

    fn complete_step(&self, #[pyo3(from_py_with = whole::lane)] lane: usize) -> Result<()> {
        Ok(self.limiter.get()?.complete_step(lane)?)
    }

    #[pyo3(signature = (most, *, worker, timeout=None))]
    fn acquire_updates(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::most)] most: u64,
        #[pyo3(from_py_with = whole::worker)] worker: u64,
        timeout: Option<f64>,
    ) -> Result<u64> {
        let (limiter, worker) = (self.limiter.get()?, worker_id(worker)?);
        wait(py, timeout, |timeout, between| limiter.acquire_updates(most, worker, timeout, between))
    }

    fn complete_updates(&self, #[pyo3(from_py_with = whole::count)] count: u64) -> Result<()> {
        Ok(self.limiter.get()?.complete_updates(count)?)
    }

    fn stop(&self) -> Result<()> {
        Ok(self.limiter.get()?.stop()?)
    }

    fn finish(&self) -> Result<()> {
        Ok(self.limiter.get()?.finish()?)
    }

    fn cancel(&self) -> Result<()> {
        Ok(self.limiter.get()?.close()?)
    }

    fn reap(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<()> {
        Ok(self.limiter.get()?.reap(worker_id(worker)?)?)
    }

    fn close(&self) -> Result<()> {
        self.limiter.close()
    }
}
