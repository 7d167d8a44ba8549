//! File descriptors and fields on their way between Python and the core.

#![allow(unsafe_code)] // borrows a descriptor that Python gave as a number

use std::os::fd::BorrowedFd;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use rlz_core::schema::{Dtype, Field};

use crate::array::describe;
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

/// Fields from (name, dtype, shape) tuples, (name, dtype) for scalars, a dict of name to dtype or (dtype, shape), or a
/// structured dtype of numpy.
pub(crate) fn fields_from(given: &Bound<'_, PyAny>) -> Result<Vec<Field>> {
    let wrong = |given: &Bound<'_, PyAny>| {
        let shown = given.repr().map_or_else(|_| describe(given), |text| text.to_string());
        Failure::kind(format!("fields: given {shown}, expected (name, dtype, shape) of each"))
    };
    // Of a structured dtype: name -> (dtype, offset), where a dtype with a shape is one with `subdtype`.
    let names = given.getattr("names").ok().filter(|names| !names.is_none());
    if let (Some(names), Ok(fields)) = (names, given.getattr("fields")) {
        let field = |name: PyResult<Bound<'_, PyAny>>| -> Result<Field> {
            let name = name?;
            let dtype = fields.get_item(&name)?.get_item(0)?;
            let (base, shape) = (dtype.getattr("base")?, dtype.getattr("shape")?);
            field_from(&name, &base, Some(&shape))
        };
        return names.try_iter()?.map(field).collect();
    }
    if let Ok(dict) = given.cast::<PyDict>() {
        return dict
            .iter()
            .map(|(name, kind)| match kind.cast::<PyTuple>().map(|pair| (pair.len(), pair)) {
                Ok((2, pair)) => field_from(&name, &pair.get_item(0)?, Some(&pair.get_item(1)?)),
                Ok(_) => Err(wrong(&kind)),
                Err(_) => field_from(&name, &kind, None),
            })
            .collect();
    }
    given
        .try_iter()
        .map_err(|_| wrong(given))?
        .map(|item| {
            let item = item?;
            // A text has items, too.
            match item.len() {
                _ if item.is_instance_of::<PyString>() => Err(wrong(&item)),
                Ok(2) => field_from(&item.get_item(0)?, &item.get_item(1)?, None),
                Ok(3) => field_from(&item.get_item(0)?, &item.get_item(1)?, Some(&item.get_item(2)?)),
                _ => Err(wrong(&item)),
            }
        })
        .collect()
}

fn field_from(name: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>, shape: Option<&Bound<'_, PyAny>>) -> Result<Field> {
    let Ok(name) = name.extract::<String>() else {
        return Err(Failure::kind(format!("field name: given {}, expected text", describe(name))));
    };
    let shape = match shape {
        None => Vec::new(),
        Some(shape) => match (shape.extract::<usize>(), shape.extract::<Vec<usize>>()) {
            (Ok(size), _) => vec![size],
            (_, Ok(shape)) => shape,
            _ => {
                let message = format!("shape of {name:?}: given {}, expected a tuple of sizes", shape.repr()?);
                return Err(Failure::kind(message));
            }
        },
    };
    let dtype = dtype_from(&name, dtype)?;
    Ok(Field::new(name, dtype, &shape)?)
}

/// A dtype by its short name (`f32`), or as numpy takes it: `float32`, `"<f4"`, `np.float32`, `np.dtype(...)`, `float`.
fn dtype_from(field: &str, given: &Bound<'_, PyAny>) -> Result<Dtype> {
    let text = given.extract::<String>().ok();
    if let Some(dtype) = text.as_ref().and_then(|name| name.parse().ok()) {
        return Ok(dtype);
    }
    if text.as_deref() == Some("bfloat16") {
        return Ok(Dtype::Bf16); // numpy knows it only when ml_dtypes was imported
    }
    let known = || -> PyResult<Option<Dtype>> {
        let dtype = given.py().import("numpy")?.getattr("dtype")?.call1((given,))?;
        let name: String = dtype.getattr("name")?.extract()?;
        // Little endian, as everything here.
        if dtype.getattr("byteorder")?.extract::<String>()? == ">" {
            return Ok(None);
        }
        Ok(match name.as_str() {
            "float16" => Some(Dtype::F16),
            "bfloat16" => Some(Dtype::Bf16),
            "float32" => Some(Dtype::F32),
            "float64" => Some(Dtype::F64),
            "uint8" => Some(Dtype::U8),
            "int8" => Some(Dtype::I8),
            "uint16" => Some(Dtype::U16),
            "int16" => Some(Dtype::I16),
            "uint32" => Some(Dtype::U32),
            "int32" => Some(Dtype::I32),
            "uint64" => Some(Dtype::U64),
            "int64" => Some(Dtype::I64),
            "bool" => Some(Dtype::Bool),
            _ => None,
        })
    };
    // `np.dtype(None)` is float64, which nobody means.
    let found = if given.is_none() { Ok(None) } else { known() };
    found.ok().flatten().ok_or_else(|| {
        let names: Vec<_> = Dtype::ALL.iter().map(|dtype| dtype.name()).collect();
        let shown = given.repr().map_or_else(|_| describe(given), |text| text.to_string());
        let names = names.join(" ");
        Failure::value(format!(
            "dtype of field {field:?}: given {shown}, expected one of {names}, or numpy's for one of these"
        ))
    })
}

/// (name, dtype, shape) of a field.
pub(crate) fn field_tuple<'py>(py: Python<'py>, field: &Field) -> Result<Tensor<'py>> {
    Ok((field.name.clone(), field.dtype.name(), PyTuple::new(py, &field.shape)?))
}
