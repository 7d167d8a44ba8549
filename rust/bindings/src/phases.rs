//! `rlz._native.PhaseClock`.

use pyo3::prelude::*;
use rlz_core::phases as core;

use crate::failure::Result;
use crate::stats::StatsBoard;
use crate::whole;

#[pyclass(module = "rlz._native")]
pub(crate) struct PhaseClock {
    stats: Py<StatsBoard>,
    trace: Option<Py<StatsBoard>>,
    clock: core::PhaseClock,
}

#[pymethods]
impl PhaseClock {
    #[new]
    #[pyo3(signature = (stats, slot, trace=None))]
    fn new(
        stats: Py<StatsBoard>,
        #[pyo3(from_py_with = whole::slot)] slot: usize,
        trace: Option<Py<StatsBoard>>,
    ) -> Self {
        Self { stats, trace, clock: core::PhaseClock::new(slot) }
    }

    fn enter(&mut self, #[pyo3(from_py_with = whole::phase)] phase: usize) -> Result<()> {
        self.go_to(Some(phase))
    }

    fn leave(&mut self) -> Result<()> {
        self.go_to(None)
    }
}

impl PhaseClock {
    fn go_to(&mut self, phase: Option<usize>) -> Result<()> {
        let stats = self.stats.get().board()?;
        let trace = self.trace.as_ref().map(|board| board.get().board()).transpose()?;
        Ok(self.clock.enter(phase, &stats, trace.as_ref())?)
    }
}
