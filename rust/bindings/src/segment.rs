//! `rlz._native.WriteSegment` and `ReadSegment`: slots of a trajectory queue as numpy arrays.
//!
//! An array that Python gets keeps the memory that it looks at, not the slot: what outlives the slot becomes private
//! memory with the same content, at the same address.

#![allow(unsafe_code)] // arrays on the memory of a slot

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyKeyError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyTuple};
use rlz_core::Error;
use rlz_core::queue::{Queue, ReadSlot, WriteSlot};
use rlz_core::schema::PlacedField;

use crate::array::view;
use crate::failure::{Failure, Result};
use crate::row::{mismatch, put_value};
use crate::whole;

/// Base object of the arrays on a slot.
#[pyclass(module = "rlz._native", frozen)]
struct SlotMemory {
    _memory: Arc<dyn Any + Send + Sync>,
}

/// A field of a segment as an array.
///
/// # Safety
/// `data` shows a segment of this queue for as long as `memory` lives; this process alone writes to it, and only if
/// `writable`.
unsafe fn field_view<'py>(
    py: Python<'py>,
    placed: &PlacedField,
    data: *mut u8,
    writable: bool,
    memory: Arc<dyn Any + Send + Sync>,
) -> Result<Bound<'py, PyAny>> {
    let owner = Bound::new(py, SlotMemory { _memory: memory })?.into_any();
    // SAFETY: the schema places the field inside the segment, aligned; the caller vouches for the rest.
    Ok(unsafe { view(py, data.add(placed.offset), &placed.field, writable, owner) }?)
}

/// What both kinds of segments are: a slot, until it ends.
struct Held<S> {
    queue: Queue,
    slot: Mutex<Option<S>>,
}

impl<S> Held<S> {
    fn new(queue: Queue, slot: S) -> Self {
        Self { queue, slot: Mutex::new(Some(slot)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<S>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Use the slot. An error when it has ended, and in a forked child: it is the parent's.
    fn with<T>(&self, f: impl FnOnce(&mut S) -> Result<T>) -> Result<T> {
        self.queue.is_closed()?;
        f(self.lock().as_mut().ok_or_else(ended)?)
    }

    fn fields(&self) -> &[PlacedField] {
        self.queue.schema().fields()
    }

    /// Number and place of a field.
    fn find(&self, name: &str) -> Result<(usize, &PlacedField)> {
        self.fields().iter().enumerate().find(|(_, placed)| placed.field.name == name).ok_or_else(|| {
            let message = format!("given {name:?}, expected one of the fields {}", self.names().join(", "));
            PyKeyError::new_err(message).into()
        })
    }

    fn names(&self) -> Vec<&str> {
        self.fields().iter().map(|placed| placed.field.name.as_str()).collect()
    }
}

fn ended() -> Failure {
    Error::Closed { stream: "segment (it was committed, aborted or released)" }.into()
}

/// Methods of a segment: as a mapping of names to arrays, and its own.
macro_rules! mapping {
    ($class:ident { $($own:tt)* }) => {
        #[pymethods]
        impl $class {
            fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> Result<Bound<'py, PyAny>> {
                let (_, placed) = self.held.find(name)?;
                self.array(py, placed)
            }

            fn __len__(&self) -> usize {
                self.held.fields().len()
            }

            fn __iter__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyIterator>> {
                Ok(PyList::new(py, self.held.names())?.try_iter()?)
            }

            fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
                name.extract::<String>().is_ok_and(|name| self.held.names().contains(&name.as_str()))
            }

            fn keys(&self) -> Result<Vec<&str>> {
                self.held.with(|_| Ok(()))?;
                Ok(self.held.names())
            }

            fn values<'py>(&self, py: Python<'py>) -> Result<Vec<Bound<'py, PyAny>>> {
                self.held.fields().iter().map(|placed| self.array(py, placed)).collect()
            }

            fn items<'py>(&self, py: Python<'py>) -> Result<Vec<(&str, Bound<'py, PyAny>)>> {
                let items = self.held.fields().iter();
                items.map(|placed| Ok((placed.field.name.as_str(), self.array(py, placed)?))).collect()
            }

            $($own)*
        }
    };
}

#[pyclass(module = "rlz._native", frozen, mapping)]
pub(crate) struct WriteSegment {
    held: Held<WriteSlot>,
}

impl WriteSegment {
    pub(crate) fn new(slot: WriteSlot) -> Self {
        Self { held: Held::new(slot.queue().clone(), slot) }
    }

    fn array<'py>(&self, py: Python<'py>, placed: &PlacedField) -> Result<Bound<'py, PyAny>> {
        let (data, memory) = self.held.with(|slot| Ok(slot.view()?))?;
        // SAFETY: a slot being written is this worker's alone, and what `memory` shows after that is private.
        unsafe { field_view(py, placed, data, true, memory) }
    }

    fn take(&self) -> Option<WriteSlot> {
        self.held.lock().take()
    }
}

mapping!(WriteSegment {
    fn __setitem__(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> Result<()> {
        let (number, placed) = self.held.find(name)?;
        let exact = self.held.with(|slot| {
            let bytes = &mut slot.bytes_mut()[placed.offset..placed.offset + placed.field.bytes()];
            put_value(bytes, number, placed, value)
        });
        let Err(refused) = exact else { return Ok(()) };
        self.held.with(|_| Ok(()))?; // it has ended, rather
        // As numpy assigns: from other dtypes of the same kind, and from shapes that can be broadcast.
        let options = PyDict::new(py);
        options.set_item(intern!(py, "casting"), intern!(py, "same_kind"))?;
        let copyto = py.import(intern!(py, "numpy"))?.getattr(intern!(py, "copyto"))?;
        if placed.field.shape.is_empty() && !value.hasattr(intern!(py, "shape"))? {
            return Err(refused); // a number that does not fit: said better there
        }
        match copyto.call((self.array(py, placed)?, value), Some(&options)) {
            Ok(_) => Ok(()),
            Err(_) => Err(mismatch(number, placed, value)),
        }
    }

    #[getter]
    fn note(&self) -> Result<u64> {
        self.held.with(|slot| Ok(slot.note()?))
    }

    #[setter]
    fn set_note(&self, #[pyo3(from_py_with = whole::note)] value: u64) -> Result<()> {
        self.held.with(|slot| Ok(slot.set_note(value)?))
    }

    fn commit(&self) -> Result<u64> {
        self.held.queue.is_closed()?; // in a forked child it is the parent's
        Ok(self.take().ok_or_else(ended)?.commit()?)
    }

    fn abort(&self) {
        drop(self.take());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) -> Result<()> {
        let slot = self.take();
        if exception.iter().next().is_none_or(|kind| kind.is_none())
            && let Some(slot) = slot
        {
            slot.commit()?;
        }
        Ok(())
    }
});

#[pyclass(module = "rlz._native", frozen, mapping)]
pub(crate) struct ReadSegment {
    held: Held<ReadSlot>,
}

impl ReadSegment {
    pub(crate) fn new(slot: ReadSlot) -> Self {
        Self { held: Held::new(slot.queue().clone(), slot) }
    }

    fn array<'py>(&self, py: Python<'py>, placed: &PlacedField) -> Result<Bound<'py, PyAny>> {
        let (data, memory) = self.held.with(|slot| Ok(slot.view()?))?;
        // SAFETY: nobody writes what `memory` shows; the array does not either.
        unsafe { field_view(py, placed, data.cast_mut(), false, memory) }
    }
}

mapping!(ReadSegment {
    #[getter]
    fn ticket(&self) -> Result<u64> {
        self.held.with(|slot| Ok(slot.ticket()))
    }

    #[getter]
    fn redeliveries(&self) -> Result<u64> {
        self.held.with(|slot| Ok(slot.redeliveries()))
    }

    #[getter]
    fn note(&self) -> Result<u64> {
        self.held.with(|slot| Ok(slot.note()?))
    }

    #[getter]
    fn age(&self) -> Result<f64> {
        self.held.with(|slot| Ok(slot.age()?.as_secs_f64()))
    }

    fn release(&self) -> Result<()> {
        let slot = self.held.lock().take();
        Ok(slot.map_or(Ok(()), ReadSlot::release)?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> Result<()> {
        self.release()
    }
});
