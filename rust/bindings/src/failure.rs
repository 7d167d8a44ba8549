//! The one conversion from the core's errors to the classes of `rlz.errors`.

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use rlz_core::Error;

/// Result of everything that Python calls.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// An error of the core, or a Python exception.
#[derive(Debug)]
pub(crate) enum Failure {
    Core(Error),
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl Failure {
    /// A ValueError.
    pub(crate) fn value(message: impl Into<String>) -> Self {
        Self::Python(PyValueError::new_err(message.into()))
    }

    /// A TypeError.
    pub(crate) fn kind(message: impl Into<String>) -> Self {
        Self::Python(PyTypeError::new_err(message.into()))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Python(error) => return error,
            Failure::Core(error) => error,
        };
        let class = match &error {
            Error::Invalid { .. } => return PyValueError::new_err(error.to_string()),
            Error::File { path, source } => return os_error(path, source),
            Error::LayoutMismatch { .. } | Error::FileMismatch { .. } => "LayoutMismatchError",
            Error::SharedMemory { .. } => "SharedMemoryError",
            Error::LeaseLost { .. } => "LeaseLostError",
            Error::Closed { .. } => "ClosedError",
            Error::Timeout { .. } => "WaitTimeoutError",
            Error::NonFinite { .. } | Error::NoChoice { .. } => "NonFiniteError",
            _ => "TransportError",
        };
        Python::attach(|py| match error_class(py, class) {
            Ok(class) => Self::from_type(class, error.to_string()),
            Err(import_failed) => import_failed,
        })
    }
}

/// The OSError (FileNotFoundError and so on, by its number) that Python itself would raise.
fn os_error(path: &str, source: &std::io::Error) -> PyErr {
    let number = source.raw_os_error().unwrap_or(libc::EIO);
    let reason = Python::attach(|py| py.import("os")?.call_method1("strerror", (number,))?.extract::<String>());
    match reason {
        Ok(reason) => PyOSError::new_err((number, reason, path.to_owned())),
        Err(failed) => failed,
    }
}

/// A class of `rlz.errors`, imported when the first error is raised.
pub(crate) fn error_class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("rlz.errors").map(Bound::unbind))?;
    let class = module.bind(py).getattr(name)?;
    Ok(class.cast_into::<PyType>()?)
}
