//! Composing a packed row from numpy arrays and Python numbers.

use half::{bf16, f16};
use numpy::PyUntypedArray;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use rlz_core::memory::words::bytes_of_mut;
use rlz_core::schema::{Dtype, Field, PlacedField, Schema};

use crate::array::{ArrayView, describe, numpy_name, shape_text};
use crate::columns::in_order;
use crate::failure::{Failure, Result};

/// One row under composition. Its padding is zero and stays so.
#[derive(Debug)]
pub(crate) struct Row {
    fields: Vec<PlacedField>,
    words: Vec<u64>,
}

impl Row {
    pub(crate) fn new(schema: &Schema) -> Self {
        Self { fields: schema.fields().to_vec(), words: vec![0; schema.words()] }
    }

    /// Pack one value per field, in field order.
    pub(crate) fn compose(&mut self, values: &Bound<'_, PyAny>) -> Result<&[u64]> {
        if let Ok(tuple) = values.cast::<PyTuple>() {
            self.check_count(tuple.len())?;
            for (i, value) in tuple.iter_borrowed().enumerate() {
                self.put(i, &value)?;
            }
        } else if let Ok(list) = values.cast::<PyList>() {
            self.check_count(list.len())?;
            for (i, value) in list.iter().enumerate() {
                self.put(i, &value)?;
            }
        } else if let Ok(dict) = values.cast::<PyDict>() {
            for (i, value) in in_order(&self.fields, dict)?.iter().enumerate() {
                self.put(i, value)?;
            }
        } else {
            let names: Vec<_> = self.fields.iter().map(|placed| placed.field.name.as_str()).collect();
            let got = describe(values);
            return Err(Failure::kind(format!(
                "row: expected a dict, tuple or list of ({}), got {got}",
                names.join(", ")
            )));
        }
        Ok(&self.words)
    }

    /// Take a row that is packed already.
    pub(crate) fn copy(&mut self, packed: &[u8]) -> Result<&[u64]> {
        let bytes = bytes_of_mut(&mut self.words);
        if packed.len() != bytes.len() {
            let expected = bytes.len();
            return Err(Failure::value(format!("row: given {} bytes, expected {expected} (stride)", packed.len())));
        }
        bytes.copy_from_slice(packed);
        Ok(&self.words)
    }

    /// The fields, in order.
    pub(crate) fn fields(&self) -> &[PlacedField] {
        &self.fields
    }

    /// Check one array [rows, *shape] per field, in field order.
    pub(crate) fn columns<'a>(&self, arrays: &'a [Bound<'_, PyAny>], rows: usize) -> Result<Vec<ArrayView<'a>>> {
        self.check_count(arrays.len())?;
        let columns = self.fields.iter().zip(arrays).map(|(PlacedField { field, .. }, array)| {
            ArrayView::new(array)
                .filter(|view| same_kind(view.dtype(), field.dtype))
                .filter(|view| view.shape().split_first() == Some((&rows, &field.shape[..])))
                .ok_or_else(|| {
                    let shape = shape_text(&[&[rows], &field.shape[..]].concat());
                    let (name, kind, got) = (&field.name, numpy_name(field.dtype), describe(array));
                    Failure::value(format!(
                        "{name:?}: expected a C-contiguous {kind} array of shape {shape}, got {got}"
                    ))
                })
        });
        columns.collect()
    }

    /// Pack row number `row` of checked columns.
    pub(crate) fn gather(&mut self, columns: &[ArrayView<'_>], row: usize) -> &[u64] {
        let bytes = bytes_of_mut(&mut self.words);
        for (placed, column) in self.fields.iter().zip(columns) {
            let size = placed.field.bytes();
            bytes[placed.offset..placed.offset + size].copy_from_slice(&column.bytes()[row * size..(row + 1) * size]);
        }
        &self.words
    }

    fn check_count(&self, given: usize) -> Result<()> {
        if given == self.fields.len() {
            return Ok(());
        }
        let names: Vec<_> = self.fields.iter().map(|placed| placed.field.name.as_str()).collect();
        Err(Failure::value(format!(
            "row: given {given} values, expected {}, one per field: {}",
            names.len(),
            names.join(", ")
        )))
    }

    #[inline]
    fn put(&mut self, index: usize, value: &Bound<'_, PyAny>) -> Result<()> {
        let placed = &self.fields[index];
        let bytes = bytes_of_mut(&mut self.words);
        put_value(&mut bytes[placed.offset..placed.offset + placed.field.bytes()], index, placed, value)
    }
}

/// Write the value of field number `index` into its bytes: an array of the exact dtype and shape, or a number.
#[inline]
pub(crate) fn put_value(target: &mut [u8], index: usize, placed: &PlacedField, value: &Bound<'_, PyAny>) -> Result<()> {
    let field = &placed.field;
    if let Some(array) = ArrayView::new(value) {
        if same_kind(array.dtype(), field.dtype) && array.shape() == field.shape {
            target.copy_from_slice(array.bytes());
            return Ok(());
        }
    } else if field.shape.is_empty() && !value.is_instance_of::<PyUntypedArray>() {
        return match put_number(target, field.dtype, value) {
            Ok(true) => Ok(()),
            Ok(false) => Err(out_of_range(index, placed, value)),
            Err(_) => Err(mismatch(index, placed, value)),
        };
    }
    Err(mismatch(index, placed, value))
}

/// Whether an array of `given` may stand for a field: the bits of bfloat16, which numpy does not have, come as uint16.
pub(crate) fn same_kind(given: Dtype, field: Dtype) -> bool {
    given == field || (field == Dtype::Bf16 && given == Dtype::U16)
}

/// Write a Python or numpy number; false when it does not fit the dtype.
fn put_number(target: &mut [u8], dtype: Dtype, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    /// The value as `T`: None when it is an integer out of T's range.
    fn integer<T: TryFrom<i128>>(value: &Bound<'_, PyAny>) -> PyResult<Option<T>> {
        // Refuses floats (`__index__`). No dtype needs more than i64 and u64 together.
        let number = match value.extract::<i64>() {
            Ok(number) => i128::from(number),
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => match value.extract::<u64>() {
                Ok(number) => i128::from(number),
                Err(_) => return Ok(None),
            },
            Err(error) => return Err(error),
        };
        Ok(T::try_from(number).ok())
    }
    macro_rules! put_integer {
        ($kind:ty) => {
            match integer::<$kind>(value)? {
                Some(number) => target.copy_from_slice(&number.to_le_bytes()),
                None => return Ok(false),
            }
        };
    }
    match dtype {
        Dtype::F32 => {
            let exact = value.extract::<f64>()?;
            let number = exact as f32;
            target.copy_from_slice(&number.to_le_bytes());
            return Ok(number.is_finite() || !exact.is_finite());
        }
        Dtype::F64 => target.copy_from_slice(&value.extract::<f64>()?.to_le_bytes()),
        Dtype::F16 => {
            let exact = value.extract::<f64>()?;
            let number = f16::from_f64(exact);
            target.copy_from_slice(&number.to_le_bytes());
            return Ok(number.is_finite() || !exact.is_finite());
        }
        Dtype::Bf16 => {
            let exact = value.extract::<f64>()?;
            let number = bf16::from_f64(exact);
            target.copy_from_slice(&number.to_le_bytes());
            return Ok(number.is_finite() || !exact.is_finite());
        }
        Dtype::U8 => put_integer!(u8),
        Dtype::I8 => put_integer!(i8),
        Dtype::U16 => put_integer!(u16),
        Dtype::I16 => put_integer!(i16),
        Dtype::U32 => put_integer!(u32),
        Dtype::I32 => put_integer!(i32),
        Dtype::U64 => put_integer!(u64),
        Dtype::I64 => put_integer!(i64),
        Dtype::Bool => target[0] = u8::from(value.extract::<bool>()?),
    }
    Ok(true)
}

#[cold]
fn out_of_range(index: usize, placed: &PlacedField, value: &Bound<'_, PyAny>) -> Failure {
    let shown = value.repr().map_or_else(|_| "the value".to_owned(), |text| text.to_string());
    let Field { name, dtype, .. } = &placed.field;
    Failure::value(format!("field {name:?} (number {index}): {shown} does not fit into {}", numpy_name(*dtype)))
}

/// TypeError for another kind of value or dtype, ValueError for another shape.
#[cold]
pub(crate) fn mismatch(index: usize, placed: &PlacedField, value: &Bound<'_, PyAny>) -> Failure {
    let Field { name, dtype, shape } = &placed.field;
    let kind = numpy_name(*dtype);
    let expected = if shape.is_empty() {
        format!("a number for {kind}, or an array of that dtype and shape ()")
    } else {
        format!("a C-contiguous {kind} array of shape {}", shape_text(shape))
    };
    let message = format!("field {name:?} (number {index}): expected {expected}, got {}", describe(value));
    match ArrayView::new(value) {
        Some(array) if array.dtype() == *dtype => Failure::value(message),
        _ => Failure::kind(message),
    }
}
