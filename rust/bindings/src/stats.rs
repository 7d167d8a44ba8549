//! `rlz._native.StatsBoard`.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use rlz_core::stats as core;

use crate::descriptor::borrow;
use crate::doorway::Handle;
use crate::failure::{Failure, Result};
use crate::whole;

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct StatsBoard {
    board: Handle<core::StatsBoard>,
}

impl StatsBoard {
    fn new(board: core::StatsBoard) -> Self {
        Self { board: Handle::new("stats board", Arc::new(board)) }
    }

    pub(crate) fn board(&self) -> Result<Arc<core::StatsBoard>> {
        self.board.get()
    }
}

#[pymethods]
impl StatsBoard {
    #[staticmethod]
    #[pyo3(signature = (*, slots, names, event_width=1, event_capacity=1, run_id=0))]
    fn create(
        #[pyo3(from_py_with = whole::slots)] slots: usize,
        names: Vec<String>,
        #[pyo3(from_py_with = whole::event_width)] event_width: usize,
        #[pyo3(from_py_with = whole::event_capacity)] event_capacity: usize,
        #[pyo3(from_py_with = whole::run_id)] run_id: u64,
    ) -> Result<Self> {
        Ok(Self::new(core::StatsBoard::create(slots, &names, event_width, event_capacity, run_id)?))
    }

    #[staticmethod]
    fn attach(#[pyo3(from_py_with = whole::fd)] fd: i32) -> Result<Self> {
        Ok(Self::new(core::StatsBoard::attach(borrow(&fd)?)?))
    }

    #[getter]
    fn fd(&self) -> Result<i32> {
        Ok(self.board.get()?.segment().as_fd().as_raw_fd())
    }

    #[getter]
    fn nbytes(&self) -> Result<usize> {
        Ok(self.board.get()?.segment().len())
    }

    #[getter]
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.board.get()?.names().to_vec())
    }

    #[getter]
    fn slots(&self) -> Result<usize> {
        Ok(self.board.get()?.slots())
    }

    fn set(
        &self,
        #[pyo3(from_py_with = whole::slot)] slot: usize,
        #[pyo3(from_py_with = whole::index)] index: usize,
        value: f64,
    ) -> Result<()> {
        Ok(self.board.get()?.set(slot, index, value)?)
    }

    fn add(
        &self,
        #[pyo3(from_py_with = whole::slot)] slot: usize,
        #[pyo3(from_py_with = whole::index)] index: usize,
        value: f64,
    ) -> Result<()> {
        Ok(self.board.get()?.add(slot, index, value)?)
    }

    fn read<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray2<f64>>> {
        let board = self.board.get()?;
        let mut values = vec![0.0; board.slots() * board.names().len()];
        board.read(&mut values)?;
        table(py, values, board.names().len())
    }

    fn push_event(&self, #[pyo3(from_py_with = whole::slot)] slot: usize, values: Vec<f64>) -> Result<()> {
        Ok(self.board.get()?.push_event(slot, &values)?)
    }

    fn events<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole::slot)] slot: usize,
        #[pyo3(from_py_with = whole::since)] since: u64,
    ) -> Result<(u64, Bound<'py, PyArray2<f64>>)> {
        let board = self.board.get()?;
        let mut values = Vec::new();
        let next = board.events(slot, since, &mut values)?;
        Ok((next, table(py, values, board.event_width())?))
    }

    fn close(&self) -> Result<()> {
        self.board.close()
    }
}

fn table<'py>(py: Python<'py>, values: Vec<f64>, width: usize) -> Result<Bound<'py, PyArray2<f64>>> {
    let rows = values.len() / width;
    PyArray1::from_vec(py, values).reshape([rows, width]).map_err(Failure::from)
}
