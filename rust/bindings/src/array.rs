//! Numpy arrays as typed bytes, for the calls where a microsecond counts.

#![allow(unsafe_code)] // reads numpy's array struct and its memory

use std::marker::PhantomData;

use half::f16;
use numpy::npyffi::{self, PY_ARRAY_API};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use rlz_core::schema::{Dtype, Field};

use crate::borrow;
use crate::failure::{Failure, Result};

/// An ndarray that is C-contiguous, aligned and of native byte order, seen while the GIL is held.
pub(crate) struct ArrayView<'a> {
    data: *mut u8,
    bytes: usize,
    writable: bool,
    dtype: Dtype,
    shape: &'a [usize],
    // Not Send: whoever lets go of the GIL must not take this along.
    attached: PhantomData<*const ()>,
}

impl<'a> ArrayView<'a> {
    /// None when `object` is no ndarray, or one of another dtype or order than described above, or one that another
    /// thread is filling without the GIL.
    pub(crate) fn new(object: &'a Bound<'_, PyAny>) -> Option<Self> {
        let array = object.cast::<PyUntypedArray>().ok()?;
        let raw = array.as_array_ptr();
        // SAFETY: `raw` points to the array object that `object` keeps alive; its descriptor is never null. Both are
        // only changed by calls that hold the GIL, as we do.
        let (data, kind, byteorder, writable) = unsafe {
            let fields = &(*raw).fields;
            let descr = &(*fields.descr).fields;
            (fields.data, descr.type_num, descr.byteorder, fields.flags & numpy::npyffi::NPY_ARRAY_WRITEABLE != 0)
        };
        let native = matches!(byteorder as u8, b'=' | b'|' | b'<'); // little endian only: see rlz-core
        if !native || !array.is_c_contiguous() || !array.is_aligned() {
            return None;
        }
        let dtype = dtype_of(kind)?;
        if !borrow::free(object, dtype, false) {
            return None;
        }
        let shape = array.shape();
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Some(Self { data: data.cast(), bytes, writable, dtype, shape, attached: PhantomData })
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.shape
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// First byte; for a call that copies while the GIL is not held.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.data
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: a C-contiguous array of this dtype has `bytes` initialised bytes at `data`. The GIL is held while the
        // view lives, and no call of ours fills them without it (`borrow::free`); `elements_mut` needs the view
        // exclusively.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }

    /// The elements, where they are of type `T`.
    pub(crate) fn elements<T: Element>(&self) -> Option<&[T]> {
        if T::DTYPE != self.dtype || self.bytes == 0 {
            return None;
        }
        // SAFETY: as in `bytes`; the array is aligned for its dtype, whose type `T` is, and any bits are a valid T.
        Some(unsafe { std::slice::from_raw_parts(self.data.cast(), self.bytes / size_of::<T>()) })
    }

    /// The elements, where they are of type `T` and may be written.
    pub(crate) fn elements_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        if T::DTYPE != self.dtype || !self.writable || self.bytes == 0 {
            return None;
        }
        // SAFETY: as in `elements`, and the array is writable. The callers hold no other slice of
        // this memory: `Policy` copies its input first and refuses outputs that overlap.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.bytes / size_of::<T>()) })
    }

    /// Whether two views share memory.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.data as usize, other.data as usize);
        a < b + other.bytes && b < a + self.bytes
    }

    /// Append every element as float32.
    pub(crate) fn to_f32(&self, into: &mut Vec<f32>) {
        fn all<T: Element>(view: &ArrayView<'_>, into: &mut Vec<f32>, convert: impl Fn(T) -> f32) {
            into.extend(view.elements::<T>().unwrap_or_default().iter().map(|&value| convert(value)));
        }
        match self.dtype {
            Dtype::F32 => into.extend_from_slice(self.elements::<f32>().unwrap_or_default()),
            Dtype::F64 => all::<f64>(self, into, |v| v as f32),
            Dtype::F16 => all::<f16>(self, into, f16::to_f32),
            Dtype::U8 | Dtype::Bool => into.extend(self.bytes().iter().map(|&v| f32::from(v))),
            Dtype::I8 => all::<i8>(self, into, f32::from),
            Dtype::U16 | Dtype::Bf16 => all::<u16>(self, into, f32::from),
            Dtype::I16 => all::<i16>(self, into, f32::from),
            Dtype::U32 => all::<u32>(self, into, |v| v as f32),
            Dtype::I32 => all::<i32>(self, into, |v| v as f32),
            Dtype::U64 => all::<u64>(self, into, |v| v as f32),
            Dtype::I64 => all::<i64>(self, into, |v| v as f32),
        }
    }
}

/// Rust types of array elements; any bit pattern is a valid value of each.
pub(crate) trait Element: Copy {
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($kind:ty => $dtype:ident),+) => { $(impl Element for $kind { const DTYPE: Dtype = Dtype::$dtype; })+ };
}

elements!(f16 => F16, f32 => F32, f64 => F64, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64);

/// Numpy's type numbers on 64-bit Linux, where long and long long are the same.
fn dtype_of(type_num: i32) -> Option<Dtype> {
    Some(match type_num {
        0 => Dtype::Bool,
        1 => Dtype::I8,
        2 => Dtype::U8,
        3 => Dtype::I16,
        4 => Dtype::U16,
        5 => Dtype::I32,
        6 => Dtype::U32,
        7 | 9 => Dtype::I64,
        8 | 10 => Dtype::U64,
        11 => Dtype::F32,
        12 => Dtype::F64,
        23 => Dtype::F16,
        _ => return None,
    })
}

fn type_num(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::Bool => 0,
        Dtype::I8 => 1,
        Dtype::U8 => 2,
        Dtype::I16 => 3,
        Dtype::U16 | Dtype::Bf16 => 4,
        Dtype::I32 => 5,
        Dtype::U32 => 6,
        Dtype::I64 => 7,
        Dtype::U64 => 8,
        Dtype::F32 => 11,
        Dtype::F64 => 12,
        Dtype::F16 => 23,
    }
}

/// An array on memory that is not numpy's.
///
/// # Safety
/// `data` points to the bytes of `field`, aligned for it, which stay readable (and writable, if `writable`) for as long
/// as `owner` lives, and which nobody else changes meanwhile except by other such views.
pub(crate) unsafe fn view<'py>(
    py: Python<'py>,
    data: *mut u8,
    field: &Field,
    writable: bool,
    owner: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut shape: Vec<npyffi::npy_intp> = field.shape.iter().map(|size| *size as npyffi::npy_intp).collect();
    let flags = if writable { npyffi::NPY_ARRAY_WRITEABLE } else { 0 };
    // SAFETY: the type object and the descriptor are numpy's own (the call takes over the reference to the latter);
    // shape holds as many sizes as said; no strides means C order; the caller vouches for `data`. A null result carries
    // an exception. The base takes over the reference to `owner`, also when it fails.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, npyffi::NpyTypes::PyArray_Type),
            PY_ARRAY_API.PyArray_DescrFromType(py, type_num(field.dtype)),
            shape.len() as std::ffi::c_int,
            shape.as_mut_ptr(),
            std::ptr::null_mut(),
            data.cast(),
            flags,
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), owner.into_ptr()) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

/// Numpy's name of a dtype. There is none for bfloat16: its bits travel as uint16.
pub(crate) fn numpy_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "uint16 (the bits of bfloat16)",
        Dtype::F32 => "float32",
        Dtype::F64 => "float64",
        Dtype::U8 => "uint8",
        Dtype::I8 => "int8",
        Dtype::U16 => "uint16",
        Dtype::I16 => "int16",
        Dtype::U32 => "uint32",
        Dtype::I32 => "int32",
        Dtype::U64 => "uint64",
        Dtype::I64 => "int64",
        Dtype::Bool => "bool",
    }
}

/// Numpy's code of a dtype.
pub(crate) fn numpy_kind(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "f2",
        Dtype::Bf16 | Dtype::U16 => "u2",
        Dtype::F32 => "f4",
        Dtype::F64 => "f8",
        Dtype::U8 => "u1",
        Dtype::I8 => "i1",
        Dtype::I16 => "i2",
        Dtype::U32 => "u4",
        Dtype::I32 => "i4",
        Dtype::U64 => "u8",
        Dtype::I64 => "i8",
        Dtype::Bool => "?",
    }
}

/// A value from Python, described for a message.
pub(crate) fn describe(object: &Bound<'_, PyAny>) -> String {
    let kind = || object.get_type().name().map_or_else(|_| "an object".to_owned(), |name| format!("a {name}"));
    let array = || -> PyResult<String> {
        let array = object.cast::<PyUntypedArray>()?;
        let mut order = String::new();
        if !array.is_c_contiguous() {
            order = ", not C-contiguous".to_owned();
        } else if !array.is_aligned() {
            order = ", not aligned".to_owned();
        }
        // SAFETY: as in `ArrayView::new`.
        let kind = dtype_of(unsafe { (*(*array.as_array_ptr()).fields.descr).fields.type_num });
        if kind.is_some_and(|dtype| borrow::is_being_filled(object, dtype)) {
            order.push_str(", which another thread is filling");
        }
        Ok(format!("a {} array of shape {}{order}", object.getattr("dtype")?.str()?, object.getattr("shape")?.str()?))
    };
    array().unwrap_or_else(|_| kind())
}

/// A shape as Python prints it.
pub(crate) fn shape_text(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// `object` as a writable array of `T` with this shape, or a TypeError/ValueError that names it.
pub(crate) fn output<'a, T: Element>(
    name: &str,
    object: &'a Bound<'_, PyAny>,
    shape: &[usize],
) -> Result<ArrayView<'a>> {
    let expected = || format!("a writable, C-contiguous {} array of shape {}", numpy_name(T::DTYPE), shape_text(shape));
    let wrong = || format!("{name}: expected {}, got {}", expected(), describe(object));
    let view = ArrayView::new(object).ok_or_else(|| Failure::kind(wrong()))?;
    if view.dtype != T::DTYPE {
        return Err(Failure::kind(wrong()));
    }
    if view.shape != shape {
        return Err(Failure::value(wrong()));
    }
    if !view.writable {
        return Err(Failure::value(format!("{name}: expected {}, got a read-only one", expected())));
    }
    if !borrow::free(object, T::DTYPE, true) {
        return Err(Failure::value(format!("{}, which another thread is reading", wrong())));
    }
    Ok(view)
}

/// Bytes of an array as 64-bit words, for the core.
pub(crate) fn words_mut<'a>(name: &str, bytes: &'a mut [u8]) -> Result<&'a mut [u64]> {
    // SAFETY: any bits are valid bytes and valid words.
    let (before, words, after) = unsafe { bytes.align_to_mut::<u64>() };
    if before.is_empty() && after.is_empty() { Ok(words) } else { Err(not_words(name)) }
}

/// As [`words_mut`], for reading.
pub(crate) fn words<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a [u64]> {
    // SAFETY: any bits are valid bytes and valid words.
    let (before, words, after) = unsafe { bytes.align_to::<u64>() };
    if before.is_empty() && after.is_empty() { Ok(words) } else { Err(not_words(name)) }
}

fn not_words(name: &str) -> Failure {
    Failure::value(format!("{name}: expected whole rows (stride bytes each) at an address that is a multiple of 8"))
}
