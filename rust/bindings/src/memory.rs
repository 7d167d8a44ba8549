//! `rlz._native.check_shared_memory`.

use pyo3::prelude::*;
use rlz_core::memory::Segment;

use crate::failure::Result;

/// See `_native.pyi`.
#[pyfunction]
pub(crate) fn check_shared_memory(py: Python<'_>, nbytes: usize) -> Result<()> {
    py.detach(|| Segment::create("check", nbytes))?;
    Ok(())
}
