//! `rlz._native.WriteSegment` and `ReadSegment`: slots of a trajectory queue as numpy arrays.
//!
//! Every array that Python gets keeps the slot it looks at: the slot goes back to the queue when the last of them is gone.

#![allow(unsafe_code)] // arrays on the memory of a slot

use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, Once, PoisonError};

use pyo3::exceptions::{PyKeyError, PyRuntimeWarning};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rlz_core::Error;
use rlz_core::owner::ForkGuard;
use rlz_core::queue::{Producer, ReadSlot, WriteSlot};
use rlz_core::schema::Schema;

use crate::array::view;
use crate::doorway::wait;
use crate::failure::{Failure, Result};
use crate::queue::lock;

const STREAM: &str = "trajectory queue";

/// A slot that is owned; given back when dropped, but left alone in a forked child, where it is the parent's.
#[derive(Debug)]
struct Lease<T> {
    guard: ForkGuard,
    slot: ManuallyDrop<T>,
}

impl<T> Lease<T> {
    fn new(slot: T) -> Arc<Self> {
        Arc::new(Self { guard: ForkGuard::new(), slot: ManuallyDrop::new(slot) })
    }

    /// The slot, when no array looks at it.
    fn unshare(self: Arc<Self>) -> std::result::Result<T, Arc<Self>> {
        let mut lease = ManuallyDrop::new(Arc::try_unwrap(self)?);
        // SAFETY: taken out once; the lease, which would drop it again, is never dropped.
        Ok(unsafe { ManuallyDrop::take(&mut lease.slot) })
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        if self.guard.check(STREAM).is_ok() {
            // SAFETY: dropped once, here; `unshare` keeps a lease whose slot it took from being dropped.
            unsafe { ManuallyDrop::drop(&mut self.slot) };
        }
    }
}

/// Base object of the arrays on a slot.
#[pyclass(module = "rlz._native", frozen)]
struct SlotMemory {
    _lease: Arc<dyn Any + Send + Sync>,
}

/// A field of a slot as an array.
///
/// # Safety
/// `data` is the slot that `lease` holds; this process alone writes to it, and only if `writable`.
unsafe fn field_view<'py>(
    py: Python<'py>,
    schema: &Schema,
    name: &str,
    data: *mut u8,
    writable: bool,
    lease: Arc<dyn Any + Send + Sync>,
) -> Result<Bound<'py, PyAny>> {
    let Some(placed) = schema.fields().iter().find(|placed| placed.field.name == name) else {
        let names: Vec<_> = schema.fields().iter().map(|placed| placed.field.name.as_str()).collect();
        let message = format!("{name:?}: this queue has the fields {}", names.join(", "));
        return Err(PyKeyError::new_err(message).into());
    };
    let owner = Bound::new(py, SlotMemory { _lease: lease })?.into_any();
    // SAFETY: the schema places the field inside the slot, aligned; the caller vouches for the rest.
    Ok(unsafe { view(py, data.add(placed.offset), &placed.field, writable, owner) }?)
}

fn names(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|placed| placed.field.name.clone()).collect()
}

/// The lease of a segment that has not ended. An error in a forked child: the slot is the parent's, and not mapped there.
fn held<T>(lease: &Mutex<Option<Arc<Lease<T>>>>) -> Result<Arc<Lease<T>>> {
    let lease = lease.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(ended)?;
    lease.guard.check(STREAM)?;
    Ok(lease)
}

fn ended() -> Failure {
    Error::Closed { stream: "segment (it was committed, aborted or released)" }.into()
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct WriteSegment {
    producer: Arc<Mutex<Producer>>,
    lease: Mutex<Option<Arc<Lease<WriteSlot>>>>,
    /// Of the acquire: also for a second slot, where one is needed.
    timeout: Option<f64>,
}

impl WriteSegment {
    pub(crate) fn new(producer: Arc<Mutex<Producer>>, slot: WriteSlot, timeout: Option<f64>) -> Self {
        Self { producer, lease: Mutex::new(Some(Lease::new(slot))), timeout }
    }

    fn lease(&self) -> Result<Arc<Lease<WriteSlot>>> {
        held(&self.lease)
    }

    fn take(&self) -> Option<Arc<Lease<WriteSlot>>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl WriteSegment {
    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> Result<Bound<'py, PyAny>> {
        let lease = self.lease()?;
        let data = lease.slot.as_ptr();
        let queue = lease.slot.queue().clone();
        // SAFETY: a slot being written is this worker's alone, until the lease that the array shares is dropped.
        unsafe { field_view(py, queue.schema(), name, data, true, lease) }
    }

    fn keys(&self) -> Result<Vec<String>> {
        Ok(names(self.lease()?.slot.queue().schema()))
    }

    #[setter]
    fn set_note(&self, value: u64) -> Result<()> {
        Ok(self.lease()?.slot.set_note(value)?)
    }

    fn commit(&self, py: Python<'_>) -> Result<Option<u64>> {
        match self.take().ok_or_else(ended)?.unshare() {
            Ok(slot) => Ok(Some(slot.commit()?)),
            Err(lease) => {
                warn_once(py)?;
                let mut producer = lock(&self.producer)?;
                let producer = &mut *producer;
                wait(py, self.timeout, |limit, between| producer.commit_copy(&lease.slot, limit, between))
            }
        }
    }

    fn abort(&self) {
        drop(self.take());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> Result<()> {
        if exception.iter().next().is_some_and(|kind| !kind.is_none()) {
            self.abort();
        } else if self.lease().is_ok() {
            self.commit(py)?;
        }
        Ok(())
    }
}

fn warn_once(py: Python<'_>) -> Result<()> {
    static WARNED: Once = Once::new();
    if WARNED.is_completed() {
        return Ok(());
    }
    WARNED.call_once(|| ());
    let text =
        c"arrays of a queue segment outlive its block: it is copied to another slot, and this one stays taken until \
                 they are gone; delete them before the block ends (`del obs`), or write through segment[...] alone";
    Ok(PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), text, 2)?)
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct ReadSegment {
    lease: Mutex<Option<Arc<Lease<ReadSlot>>>>,
}

impl ReadSegment {
    pub(crate) fn new(slot: ReadSlot) -> Self {
        Self { lease: Mutex::new(Some(Lease::new(slot))) }
    }

    fn lease(&self) -> Result<Arc<Lease<ReadSlot>>> {
        held(&self.lease)
    }
}

#[pymethods]
impl ReadSegment {
    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> Result<Bound<'py, PyAny>> {
        let lease = self.lease()?;
        let data = lease.slot.as_ptr().cast_mut();
        let queue = lease.slot.queue().clone();
        // SAFETY: nobody writes a slot being read, until the lease that the array shares is dropped; the array does not
        // either.
        unsafe { field_view(py, queue.schema(), name, data, false, lease) }
    }

    fn keys(&self) -> Result<Vec<String>> {
        Ok(names(self.lease()?.slot.queue().schema()))
    }

    #[getter]
    fn ticket(&self) -> Result<u64> {
        Ok(self.lease()?.slot.ticket())
    }

    #[getter]
    fn redeliveries(&self) -> Result<u64> {
        Ok(self.lease()?.slot.redeliveries())
    }

    #[getter]
    fn note(&self) -> Result<u64> {
        Ok(self.lease()?.slot.note()?)
    }

    #[getter]
    fn age(&self) -> Result<f64> {
        Ok(self.lease()?.slot.age()?.as_secs_f64())
    }

    fn release(&self) -> Result<()> {
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
        // While arrays look at the slot it stays taken; the last of them gives it back.
        if let Some(Ok(slot)) = lease.map(Lease::unshare) {
            slot.release()?;
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> Result<()> {
        self.release()
    }
}
