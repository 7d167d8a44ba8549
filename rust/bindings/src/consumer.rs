//! `rlz._native.QueueConsumer`.

#![allow(unsafe_code)] // copies into the caller's arrays without the GIL

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlz_core::queue::{Consumer, ReadSlot};
use rlz_core::schema::{Dtype, PlacedField};

use crate::array::{ArrayView, describe, numpy_name};
use crate::borrow::{Dim, Flag, busy, filling, flag_filling, free};
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
    fn pop_batch<'py>(
        &self,
        py: Python<'py>,
        into: &Bound<'py, PyDict>,
        timeout: Option<f64>,
        tickets: Option<&Bound<'py, PyAny>>,
        notes: Option<&Bound<'py, PyAny>>,
    ) -> Result<usize> {
        let end = self.consumer.get()?;
        let mut consumer = lock(&end)?;
        let consumer = &mut *consumer;
        let queue = consumer.queue().clone();
        let mut columns = Vec::with_capacity(into.len());
        let mut size = None;
        // Holds the arrays: the dict could be changed while the GIL is not held.
        let arrays: Vec<_> = into.iter().collect();
        for (name, array) in &arrays {
            let name: String = name.extract()?;
            let placed = queue.schema().fields().iter().find(|placed| placed.field.name == name);
            let placed = placed.ok_or_else(|| wrong_names(queue.schema().fields(), into))?;
            columns.push(Column::new(&name, array, placed, &mut size)?);
        }
        let size = size.ok_or_else(|| Failure::value("into: expected at least one field of the queue"))?;
        // Beside the fields: one word of each segment.
        let beside = [("tickets", tickets), ("notes", notes)];
        let words = |(name, array): (&str, Option<&Bound<'py, PyAny>>)| {
            array.map(|array| Column::words(name, array, size)).transpose()
        };
        let (tickets, notes) = (words(beside[0])?, words(beside[1])?);
        let mut noted = Ok(());
        let mut visit = |number: usize, slot: &ReadSlot| {
            let bytes = slot.bytes();
            for column in &columns {
                column.store(number, bytes);
            }
            if let Some(tickets) = &tickets {
                tickets.store(number, &slot.ticket().to_ne_bytes());
            }
            if let Some(notes) = &notes {
                match slot.note() {
                    Ok(note) => notes.store(number, &note.to_ne_bytes()),
                    Err(error) => noted = Err(error),
                }
            }
        };
        // What is there already, and copied within microseconds, is copied under the GIL: nobody can meet these arrays.
        let all = columns.iter().chain(&tickets).chain(&notes);
        let small = size.saturating_mul(queue.schema().stride()) <= SMALL && disjoint(all);
        let popped = if small && self.tell(consumer.has_ready(size).map_err(Failure::from))? {
            Ok(consumer.pop_each(size, Some(Duration::ZERO), &mut || true, &mut visit)?)
        } else {
            let _flags = flags(&arrays, &columns)?;
            let flag = |(name, array): (&str, Option<&Bound<'py, PyAny>>)| {
                array.map(|array| flag_filling(array, Dtype::U64).ok_or_else(|| busy(name))).transpose()
            };
            let _words = (flag(beside[0])?, flag(beside[1])?);
            wait(py, timeout, |limit, between| consumer.pop_each(size, limit, between, &mut visit))
        };
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

/// Bytes of a batch that are copied without letting go of the GIL.
const SMALL: usize = 64 << 10;

/// Fields that are looked at for arrays that were given twice; more of them are flagged.
const FEW: usize = 16;

/// Flags of all arrays, by field, for a call that lets go of the GIL.
pub(crate) fn flags<'py>(
    arrays: &[(Bound<'py, PyAny>, Bound<'py, PyAny>)],
    columns: &[Column],
) -> Result<Vec<Flag<'py>>> {
    let both = arrays.iter().zip(columns);
    both.map(|((name, array), column)| flag_filling(array, column.dtype).ok_or_else(|| in_use(&name.to_string())))
        .collect()
}

/// Whether no two of a few columns share memory. Flags would say so as well, for 0.16 us each.
pub(crate) fn disjoint<'a>(columns: impl Iterator<Item = &'a Column>) -> bool {
    let within = |one: &Column, two: &Column| {
        let begin = two.data.addr();
        (begin..begin + two.rows * two.bytes).contains(&one.data.addr())
    };
    let mut seen: Vec<&Column> = Vec::with_capacity(FEW);
    for column in columns {
        if seen.len() == FEW || seen.iter().copied().any(|other| within(column, other) || within(other, column)) {
            return false;
        }
        seen.push(column);
    }
    true
}

fn in_use(name: &str) -> Failure {
    let what = "is in use by another call (of another thread, or given twice)";
    Failure::value(format!("into[{name:?}] {what}: use an array for each"))
}

/// Where a field of each segment, or row, of a batch goes.
pub(crate) struct Column {
    data: *mut u8,
    offset: usize,
    bytes: usize,
    rows: usize,
    dtype: Dtype,
}

// SAFETY: `data` points into an array that the caller of `new` holds for the whole call.
unsafe impl Send for Column {}
// SAFETY: as above; `store` is called by one thread.
unsafe impl Sync for Column {}

impl Column {
    /// Of an array that nobody uses now. Whoever lets go of the GIL flags it.
    pub(crate) fn new(
        name: &str,
        array: &Bound<'_, PyAny>,
        placed: &PlacedField,
        size: &mut Option<usize>,
    ) -> Result<Self> {
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
                if !free(array, view.dtype(), true) {
                    return Err(in_use(name));
                }
                let (offset, bytes, dtype) = (placed.offset, field.bytes(), view.dtype());
                Ok(Self { data: view.as_mut_ptr(), offset, bytes, rows, dtype })
            }
            _ => Err(wrong(&any)),
        }
    }

    /// One word for each segment, in an array [size].
    fn words(name: &str, array: &Bound<'_, PyAny>, size: usize) -> Result<Self> {
        if let Some(mut view) = ArrayView::new(array)
            && (view.dtype(), view.writable()) == (Dtype::U64, true)
            && view.shape() == [size]
            && free(array, Dtype::U64, true)
        {
            return Ok(Self { data: view.as_mut_ptr(), offset: 0, bytes: 8, rows: size, dtype: Dtype::U64 });
        }
        Err(filling::<u64>(name, array, &[Dim::Exactly(size)]).err().unwrap_or_else(|| busy(name)))
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
