//! File descriptors and fields on their way between Python and the core.

#![allow(unsafe_code)] // borrows a descriptor that Python gave as a number

use std::os::fd::BorrowedFd;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rlz_core::schema::Field;

use crate::failure::{Failure, Result};
use crate::policy::Tensor;

/// A descriptor for the length of a call.
pub(crate) fn borrow(fd: &i32) -> Result<BorrowedFd<'_>> {
    if *fd < 0 {
        return Err(Failure::value(format!("fd: given {fd}, expected an open file descriptor")));
    }
    // SAFETY: not -1. The core duplicates it at once, and a number that is not open is an error of that call; a
    // descriptor that another thread closes meanwhile is the caller's mistake and gives an error or another file,
    // whose header then does not match.
    Ok(unsafe { BorrowedFd::borrow_raw(*fd) })
}

/// Fields from (name, dtype, shape) tuples.
pub(crate) fn fields_from(given: &[(String, String, Vec<usize>)]) -> Result<Vec<Field>> {
    given.iter().map(|(name, dtype, shape)| Ok(Field::new(name.as_str(), dtype.parse()?, shape)?)).collect()
}

/// (name, dtype, shape) of a field.
pub(crate) fn field_tuple<'py>(py: Python<'py>, field: &Field) -> Result<Tensor<'py>> {
    Ok((field.name.clone(), field.dtype.name(), PyTuple::new(py, &field.shape)?))
}
