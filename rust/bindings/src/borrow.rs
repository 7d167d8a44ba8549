//! Arrays that the core reads or fills while other threads of Python run, under numpy's borrow flags.
//!
//! A call that lets go of the GIL flags its arrays (the flags that all extensions made with rust-numpy share), so that
//! another call of ours refuses an array that is being written, or that is to be written while it is read, instead of
//! mixing rows. Errors name the argument, what was expected and what was given.

use std::ops::{Deref, DerefMut};

use numpy::{BorrowError, Element, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyString;
use rlz_core::schema::Dtype;
use rlz_core::sync::{Ordering, StaticU64};

use crate::array::{describe, numpy_name};
use crate::failure::{Failure, Result};

/// A size of an expected shape.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Dim {
    /// Any, under this name.
    Any(&'static str),
    /// This one.
    Exactly(usize),
}

/// Arrays that are flagged by calls of ours: while there are none, calls that keep the GIL need not look at flags.
static FLAGGED: StaticU64 = StaticU64::new(0);

/// Counts one array as flagged.
#[derive(Debug)]
struct Flagged;

impl Flagged {
    fn new() -> Self {
        FLAGGED.fetch_add(1, Ordering::Relaxed); // changed and read under the GIL
        Self
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        FLAGGED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An array that is being read.
#[derive(Debug)]
pub(crate) struct Reading<'py, T: Element> {
    array: PyReadonlyArrayDyn<'py, T>,
    _flagged: Flagged,
}

impl<T: Element> Deref for Reading<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.array.as_slice().unwrap_or_default() // contiguous: checked
    }
}

/// An array that is being filled.
#[derive(Debug)]
pub(crate) struct Filling<'py, T: Element> {
    array: PyReadwriteArrayDyn<'py, T>,
    _flagged: Flagged,
}

impl<T: Element> Deref for Filling<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.array.as_slice().unwrap_or_default() // contiguous: checked
    }
}

impl<T: Element> DerefMut for Filling<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.array.as_slice_mut().unwrap_or_default() // contiguous: checked
    }
}

/// An argument to read.
pub(crate) fn reading<'py, T: Kind>(name: &str, given: &Bound<'py, PyAny>, shape: &[Dim]) -> Result<Reading<'py, T>> {
    let array = check::<T>(name, given, shape, "")?;
    let array = array.try_readonly().map_err(|_| busy(name))?;
    Ok(Reading { array, _flagged: Flagged::new() })
}

/// An argument to fill.
pub(crate) fn filling<'py, T: Kind>(name: &str, given: &Bound<'py, PyAny>, shape: &[Dim]) -> Result<Filling<'py, T>> {
    let array = check::<T>(name, given, shape, "writable, ")?;
    let array = array.try_readwrite().map_err(|error| match error {
        BorrowError::NotWriteable => wrong::<T>(name, given, shape, "writable, ", ", read-only"),
        _ => busy(name),
    })?;
    Ok(Filling { array, _flagged: Flagged::new() })
}

/// Rust types of arguments.
pub(crate) trait Kind: Element {
    const DTYPE: Dtype;
}

macro_rules! kinds {
    ($($kind:ty => $dtype:ident),+) => { $(impl Kind for $kind { const DTYPE: Dtype = Dtype::$dtype; })+ };
}

kinds!(u8 => U8, u64 => U64, i64 => I64, f32 => F32, f64 => F64);

fn check<'a, 'py, T: Kind>(
    name: &str,
    given: &'a Bound<'py, PyAny>,
    shape: &[Dim],
    how: &str,
) -> Result<&'a Bound<'py, PyArrayDyn<T>>> {
    let array = given.cast::<PyArrayDyn<T>>().map_err(|_| {
        let message = expected::<T>(shape, how);
        Failure::kind(format!("{name}: expected {message}, got {}", describe(given)))
    })?;
    let fits = array.shape().len() == shape.len()
        && array.shape().iter().zip(shape).all(|(size, dim)| match dim {
            Dim::Any(_) => true,
            Dim::Exactly(expected) => size == expected,
        });
    if fits && array.is_c_contiguous() && array.is_aligned() {
        return Ok(array);
    }
    Err(wrong::<T>(name, given, shape, how, ""))
}

fn wrong<T: Kind>(name: &str, given: &Bound<'_, PyAny>, shape: &[Dim], how: &str, but: &str) -> Failure {
    Failure::value(format!("{name}: expected {}, got {}{but}", expected::<T>(shape, how), describe(given)))
}

fn expected<T: Kind>(shape: &[Dim], how: &str) -> String {
    let sizes: Vec<_> = shape
        .iter()
        .map(|dim| match dim {
            Dim::Any(name) => (*name).to_owned(),
            Dim::Exactly(size) => size.to_string(),
        })
        .collect();
    let comma = if sizes.len() == 1 { "," } else { "" };
    format!("a {how}C-contiguous {} array of shape ({}{comma})", numpy_name(T::DTYPE), sizes.join(", "))
}

pub(crate) fn busy(name: &str) -> Failure {
    Failure::value(format!(
        "{name}: the array is in use by another call (of another thread, or given twice): use an array for each"
    ))
}

/// A flag of an array of any dtype, for as long as it lives.
pub(crate) struct Flag<'py> {
    _borrow: Box<dyn Held + 'py>,
    _flagged: Flagged,
}

trait Held {}

impl<T> Held for T {}

/// Flag an array of any dtype as being filled. None when it is in use, or cannot be written.
pub(crate) fn flag_filling<'py>(given: &Bound<'py, PyAny>, dtype: Dtype) -> Option<Flag<'py>> {
    Some(Flag { _borrow: borrow(given, dtype, true)?, _flagged: Flagged::new() })
}

/// Whether a call that keeps the GIL may read an array now, or write to it.
#[inline]
pub(crate) fn free(given: &Bound<'_, PyAny>, dtype: Dtype, to_write: bool) -> bool {
    FLAGGED.load(Ordering::Relaxed) == 0 || borrow(given, dtype, to_write).is_some()
}

/// Whether some call has flagged it so that nobody may read it.
pub(crate) fn is_being_filled(given: &Bound<'_, PyAny>, dtype: Dtype) -> bool {
    !free(given, dtype, false)
}

#[cold]
fn borrow<'py>(given: &Bound<'py, PyAny>, dtype: Dtype, exclusive: bool) -> Option<Box<dyn Held + 'py>> {
    // Flags are by range, and that of an array without dimensions is empty.
    let reshaped = match given.cast::<PyUntypedArray>().ok()?.ndim() {
        0 => Some(given.call_method1("reshape", (1,)).ok()?),
        _ => None,
    };
    let given = reshaped.as_ref().unwrap_or(given);
    macro_rules! typed {
        ($array:expr, $kind:ty) => {{
            let array = $array.cast::<PyArrayDyn<$kind>>().ok()?;
            if exclusive {
                Box::new(array.try_readwrite().ok()?) as Box<dyn Held + 'py>
            } else {
                Box::new(array.try_readonly().ok()?)
            }
        }};
    }
    Some(match dtype {
        Dtype::Bool => typed!(given, bool),
        Dtype::I8 => typed!(given, i8),
        Dtype::U8 => typed!(given, u8),
        Dtype::I16 => typed!(given, i16),
        Dtype::U16 | Dtype::Bf16 => typed!(given, u16),
        Dtype::I32 => typed!(given, i32),
        Dtype::U32 => typed!(given, u32),
        Dtype::I64 => typed!(given, i64),
        Dtype::U64 => typed!(given, u64),
        Dtype::F32 => typed!(given, f32),
        Dtype::F64 => typed!(given, f64),
        // Flags are by memory, so those of the same memory as uint16 do.
        Dtype::F16 => {
            let bits = given.call_method1("view", (PyString::new(given.py(), "u2"),)).ok()?;
            typed!(bits, u16)
        }
    })
}
