//! `rlz._native.QueueConsumer`.

#![allow(unsafe_code)] // copies into the caller's arrays without the GIL

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlz_core::queue::Consumer;
use rlz_core::schema::PlacedField;

use crate::array::{ArrayView, describe, numpy_name};
use crate::borrow::{Dim, Flag, filling, flag_filling};
use crate::columns::wrong_names;
use crate::doorway::{Handle, wait};
use crate::failure::{Failure, Result};
use crate::queue::lock;
use crate::readiness::Readiness;
use crate::row::same_kind;
use crate::segment::ReadSegment;

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct QueueConsumer {
    /// Made when it is asked for; goes first, because it keeps the consumer's seat.
    readiness: Mutex<Option<Readiness>>,
    consumer: Handle<Mutex<Consumer>>,
}

impl QueueConsumer {
    pub(crate) fn new(consumer: Consumer) -> Self {
        let consumer = Handle::new("queue consumer", Arc::new(Mutex::new(consumer)));
        Self { readiness: Mutex::default(), consumer }
    }

    fn readiness(&self) -> MutexGuard<'_, Option<Readiness>> {
        self.readiness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take part in a result: tell the descriptor what is known now.
    fn tell<T>(&self, result: Result<T>) -> Result<T> {
        if let Some(readiness) = &*self.readiness() {
            match &result {
                Err(Failure::Core(rlz_core::Error::Timeout { .. })) => readiness.found_nothing(),
                // What an interrupted batch took comes with the next call.
                Err(Failure::Python(_)) => readiness.something_left(),
                _ => {}
            }
        }
        result
    }
}

#[pymethods]
impl QueueConsumer {
    #[pyo3(signature = (*, timeout=None))]
    fn pop(&self, py: Python<'_>, timeout: Option<f64>) -> Result<ReadSegment> {
        let end = self.consumer.get()?;
        let mut consumer = lock(&end)?;
        let consumer = &mut *consumer;
        let popped = wait(py, timeout, |limit, between| consumer.pop(limit, between));
        Ok(ReadSegment::new(self.tell(popped)?))
    }

    #[pyo3(signature = (into, *, timeout=None, tickets=None, notes=None))]
    fn pop_batch(
        &self,
        py: Python<'_>,
        into: &Bound<'_, PyDict>,
        timeout: Option<f64>,
        tickets: Option<&Bound<'_, PyAny>>,
        notes: Option<&Bound<'_, PyAny>>,
    ) -> Result<usize> {
        let end = self.consumer.get()?;
        let mut consumer = lock(&end)?;
        let consumer = &mut *consumer;
        let queue = consumer.queue().clone();
        let (mut columns, mut flags) = (Vec::with_capacity(into.len()), Vec::with_capacity(into.len()));
        let mut size = None;
        // Holds the arrays: the dict could be changed while the GIL is not held.
        let arrays: Vec<_> = into.iter().collect();
        for (name, array) in &arrays {
            let name: String = name.extract()?;
            let placed = queue.schema().fields().iter().find(|placed| placed.field.name == name);
            let placed = placed.ok_or_else(|| wrong_names(queue.schema().fields(), into))?;
            let (column, flag) = Column::new(&name, array, placed, &mut size)?;
            columns.push(column);
            flags.push(flag);
        }
        let size = size.ok_or_else(|| Failure::value("into: expected at least one field of the queue"))?;
        let shape = [Dim::Exactly(size)];
        let mut tickets = tickets.map(|array| filling::<u64>("tickets", array, &shape)).transpose()?;
        let mut notes = notes.map(|array| filling::<u64>("notes", array, &shape)).transpose()?;
        let mut tickets = tickets.as_deref_mut();
        let mut notes = notes.as_deref_mut();
        let mut noted = Ok(());
        let popped = wait(py, timeout, |limit, between| {
            consumer.pop_each(size, limit, between, |number, slot| {
                let bytes = slot.bytes();
                for column in &columns {
                    column.store(number, bytes);
                }
                if let Some(tickets) = &mut tickets {
                    tickets[number] = slot.ticket();
                }
                if let Some(notes) = &mut notes {
                    match slot.note() {
                        Ok(note) => notes[number] = note,
                        Err(error) => noted = Err(error),
                    }
                }
            })
        });
        let popped = self.tell(popped)?;
        noted?;
        Ok(popped)
    }

    fn fileno(&self) -> Result<i32> {
        let end = self.consumer.get()?;
        let mut readiness = self.readiness();
        if readiness.is_none() {
            *readiness = Some(Readiness::new(lock(&end)?.watch())?);
        }
        Ok(readiness.as_ref().map_or(-1, Readiness::fd))
    }

    fn close(&self, py: Python<'_>) -> Result<()> {
        let readiness = self.readiness().take();
        py.detach(|| drop(readiness));
        self.consumer.close()
    }
}

/// Where a field of each segment, or row, of a batch goes.
pub(crate) struct Column {
    data: *mut u8,
    offset: usize,
    bytes: usize,
    rows: usize,
}

// SAFETY: `data` points into an array that the caller of `new` holds for the whole call.
unsafe impl Send for Column {}
// SAFETY: as above; `store` is called by one thread.
unsafe impl Sync for Column {}

impl Column {
    pub(crate) fn new<'py>(
        name: &str,
        array: &Bound<'py, PyAny>,
        placed: &PlacedField,
        size: &mut Option<usize>,
    ) -> Result<(Self, Flag<'py>)> {
        let field = &placed.field;
        let wrong = |size: &str| {
            let shape: Vec<_> =
                std::iter::once(size.to_owned()).chain(field.shape.iter().map(usize::to_string)).collect();
            Failure::value(format!(
                "into[{name:?}]: expected a writable, C-contiguous {} array of shape ({}), got {}",
                numpy_name(field.dtype),
                shape.join(", "),
                describe(array)
            ))
        };
        let any = size.map_or("batch".to_owned(), |size| size.to_string());
        let Some(mut view) = ArrayView::new(array) else { return Err(wrong(&any)) };
        let fits = same_kind(view.dtype(), field.dtype) && view.writable();
        match view.shape() {
            [rows, rest @ ..] if fits && *rows > 0 && rest == field.shape && size.is_none_or(|size| size == *rows) => {
                let rows = *rows;
                *size = Some(rows);
                let flag = flag_filling(array, view.dtype()).ok_or_else(|| {
                    let what = "is in use by another call (of another thread, or given twice)";
                    Failure::value(format!("into[{name:?}] {what}: use an array for each"))
                })?;
                Ok((Self { data: view.as_mut_ptr(), offset: placed.offset, bytes: field.bytes(), rows }, flag))
            }
            _ => Err(wrong(&any)),
        }
    }

    pub(crate) fn store(&self, number: usize, segment: &[u8]) {
        assert!(number < self.rows, "a row of the batch");
        let field = &segment[self.offset..self.offset + self.bytes];
        // SAFETY: `number` is inside the array, whose rows have `bytes` bytes each. The array is not the queue's
        // memory: views of that are read-only or of slots being written. Calls of ours that would use it meanwhile are
        // refused by its flag. As with numpy's own functions that let go of the GIL, others see old or new numbers.
        unsafe { std::ptr::copy_nonoverlapping(field.as_ptr(), self.data.add(number * self.bytes), self.bytes) };
    }
}
