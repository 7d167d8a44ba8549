//! Packed rows as arrays by field name.

use numpy::PyUntypedArray;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt, PyTuple};
use rlz_core::schema::{PlacedField, Schema};

use crate::array::numpy_kind;
use crate::failure::{Failure, Result};
use crate::whole;

/// The structured dtype of a packed row: `rows.view(dtype)` gives the fields.
pub(crate) fn row_dtype<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyAny>> {
    let fields = schema.fields();
    let names: Vec<_> = fields.iter().map(|placed| placed.field.name.as_str()).collect();
    let formats = fields
        .iter()
        .map(|placed| (numpy_kind(placed.field.dtype), PyTuple::new(py, &placed.field.shape)?).into_pyobject(py));
    let offsets: Vec<_> = fields.iter().map(|placed| placed.offset).collect();
    let parts = PyDict::new(py);
    parts.set_item("names", names)?;
    parts.set_item("formats", formats.collect::<PyResult<Vec<_>>>()?)?;
    parts.set_item("offsets", offsets)?;
    parts.set_item("itemsize", schema.stride())?;
    py.import("numpy")?.getattr("dtype")?.call1((parts,))
}

/// Makes batches of packed rows, with a view of each field.
pub(crate) struct Batches {
    dtype: PyOnceLock<Py<PyAny>>,
}

impl Batches {
    pub(crate) fn new() -> Self {
        Self { dtype: PyOnceLock::new() }
    }

    /// How many rows are asked for, when it is a number and no array.
    pub(crate) fn size(rows: &Bound<'_, PyAny>) -> Result<Option<usize>> {
        if rows.is_instance_of::<PyUntypedArray>() {
            return Ok(None);
        }
        match rows.extract::<i64>().ok().map(usize::try_from) {
            Some(Ok(size)) if size > 0 => Ok(Some(size)),
            Some(_) => Err(Failure::value(format!("rows: given {rows}, expected at least 1"))),
            None if rows.is_instance_of::<PyInt>() => Ok(Some(whole::rows(rows)?)),
            None => Ok(None),
        }
    }

    /// A packed array [size, stride], and its fields [size, *shape] by name.
    pub(crate) fn make<'py>(
        &self,
        py: Python<'py>,
        schema: &Schema,
        size: usize,
    ) -> Result<(Bound<'py, PyAny>, Bound<'py, PyDict>)> {
        let dtype = self.dtype.get_or_try_init(py, || row_dtype(py, schema).map(Bound::unbind))?;
        let rows = py.import("numpy")?.getattr("empty")?.call1((size, dtype))?;
        let fields = PyDict::new(py);
        for placed in schema.fields() {
            let name = placed.field.name.as_str();
            fields.set_item(name, rows.get_item(name)?)?;
        }
        let packed = rows.call_method1("view", ("u1",))?.call_method1("reshape", (size, schema.stride()))?;
        Ok((packed, fields))
    }
}

/// One value for each field, in order: those of a dict or of keyword arguments. KeyError when the names differ.
pub(crate) fn in_order<'py>(fields: &[PlacedField], given: &Bound<'py, PyDict>) -> Result<Vec<Bound<'py, PyAny>>> {
    let values: Vec<_> = fields
        .iter()
        .map(|placed| given.get_item(&placed.field.name))
        .collect::<PyResult<Option<_>>>()?
        .unwrap_or_default();
    if values.len() == fields.len() && given.len() == fields.len() {
        Ok(values)
    } else {
        Err(wrong_names(fields, given))
    }
}

/// A KeyError that says which names were given, expected, missing.
pub(crate) fn wrong_names(fields: &[PlacedField], given: &Bound<'_, PyDict>) -> Failure {
    let expected: Vec<_> = fields.iter().map(|placed| placed.field.name.as_str()).collect();
    let given: Vec<_> = given.keys().iter().map(|name| name.to_string()).collect();
    let given = if given.is_empty() { "nothing".to_owned() } else { given.join(", ") };
    PyKeyError::new_err(format!("given {given}, expected the fields {}", expected.join(", "))).into()
}
