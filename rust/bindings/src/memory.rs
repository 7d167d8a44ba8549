//! `rlz._native.check_shared_memory` and `memory_limits`.

use std::path::PathBuf;

use pyo3::prelude::*;
use rlz_core::memory::{Segment, available};

use crate::failure::Result;
use crate::whole;

/// See `_native.pyi`.
#[pyfunction]
pub(crate) fn check_shared_memory(py: Python<'_>, #[pyo3(from_py_with = whole::nbytes)] nbytes: usize) -> Result<()> {
    py.detach(|| Segment::create("check", nbytes))?;
    Ok(())
}

/// See `_native.pyi`.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as Python gives it
pub(crate) fn memory_limits(root: PathBuf) -> Vec<available::Left> {
    available::limits(&root)
}
