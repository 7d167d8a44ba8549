//! `rlz._native.TrajectoryQueue`, its producer and its consumer.

#![allow(unsafe_code)] // copies into the caller's arrays without the GIL

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use numpy::PyReadwriteArray1;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rlz_core::queue::{self as core, Counter, Options, Redelivery, WhenFull};
use rlz_core::schema::PlacedField;

use crate::array::{ArrayView, describe, numpy_name};
use crate::descriptor::{borrow, fields_from};
use crate::doorway::{Handle, wait, worker as worker_id};
use crate::failure::{Failure, Result};
use crate::parameters::contiguous;
use crate::replay::Placed;
use crate::row::{put_value, same_kind};
use crate::segment::{ReadSegment, WriteSegment};

const STREAM: &str = "trajectory queue";

const WHEN_FULL: [(&str, WhenFull); 3] =
    [("block", WhenFull::Block), ("drop_new", WhenFull::DropNew), ("drop_oldest", WhenFull::DropOldest)];
const REDELIVERY: [(&str, Redelivery); 2] =
    [("at_least_once", Redelivery::AtLeastOnce), ("at_most_once", Redelivery::AtMostOnce)];
const COUNTERS: [(&str, Counter); Counter::COUNT] = [
    ("dropped_new", Counter::DroppedNew),
    ("dropped_oldest", Counter::DroppedOldest),
    ("redelivered", Counter::Redelivered),
    ("dropped_deliveries", Counter::DroppedDeliveries),
    ("dropped_at_most_once", Counter::DroppedAtMostOnce),
    ("reclaimed", Counter::Reclaimed),
    ("copied", Counter::Copied),
    ("consumed", Counter::Consumed),
];

fn choice<T: Copy>(what: &str, given: &str, choices: &[(&str, T)]) -> Result<T> {
    choices.iter().find(|(name, _)| *name == given).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        Failure::value(format!("{what}: given {given:?}, expected one of {}", names.join(", ")))
    })
}

fn name_of<T: PartialEq>(value: T, choices: &[(&'static str, T)]) -> &'static str {
    choices.iter().find(|(_, choice)| *choice == value).map_or("", |(name, _)| name)
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct TrajectoryQueue {
    queue: Handle<core::Queue>,
}

impl TrajectoryQueue {
    fn new(queue: core::Queue) -> Self {
        Self { queue: Handle::new(STREAM, Arc::new(queue)) }
    }
}

#[pymethods]
impl TrajectoryQueue {
    #[staticmethod]
    #[pyo3(signature = (fields, *, slots, run_id, when_full="block", redelivery="at_least_once", max_deliveries=3))]
    fn create(
        py: Python<'_>,
        fields: Vec<(String, String, Vec<usize>)>,
        slots: usize,
        run_id: u64,
        when_full: &str,
        redelivery: &str,
        max_deliveries: u64,
    ) -> Result<Self> {
        let fields = fields_from(&fields)?;
        let options = Options {
            slots,
            when_full: choice("when_full", when_full, &WHEN_FULL)?,
            redelivery: choice("redelivery", redelivery, &REDELIVERY)?,
            max_deliveries,
        };
        Ok(Self::new(py.detach(|| core::Queue::create(&fields, options, run_id))?))
    }

    #[staticmethod]
    fn attach(fd: i32) -> Result<Self> {
        Ok(Self::new(core::Queue::attach(borrow(&fd)?)?))
    }

    #[getter]
    fn fd(&self) -> Result<i32> {
        Ok(self.queue.get()?.as_fd().as_raw_fd())
    }

    #[getter]
    fn slots(&self) -> Result<usize> {
        Ok(self.queue.get()?.options().slots)
    }

    #[getter]
    fn when_full(&self) -> Result<&'static str> {
        Ok(name_of(self.queue.get()?.options().when_full, &WHEN_FULL))
    }

    #[getter]
    fn redelivery(&self) -> Result<&'static str> {
        Ok(name_of(self.queue.get()?.options().redelivery, &REDELIVERY))
    }

    #[getter]
    fn max_deliveries(&self) -> Result<u64> {
        Ok(self.queue.get()?.options().max_deliveries)
    }

    #[getter]
    fn stride(&self) -> Result<usize> {
        Ok(self.queue.get()?.schema().stride())
    }

    #[getter]
    fn nbytes(&self) -> Result<usize> {
        Ok(self.queue.get()?.nbytes())
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> Result<Vec<Placed<'py>>> {
        let queue = self.queue.get()?;
        let fields = queue.schema().fields().iter().map(|PlacedField { field, offset }| {
            Ok((field.name.clone(), field.dtype.name(), PyTuple::new(py, &field.shape)?, *offset))
        });
        fields.collect()
    }

    #[pyo3(signature = (*, worker))]
    fn producer(&self, worker: u64) -> Result<QueueProducer> {
        let producer = self.queue.get()?.producer(worker_id(worker)?);
        Ok(QueueProducer { producer: Handle::new("queue producer", Arc::new(Mutex::new(producer))) })
    }

    #[pyo3(signature = (*, worker))]
    fn consumer(&self, worker: u64) -> Result<QueueConsumer> {
        let consumer = self.queue.get()?.consumer(worker_id(worker)?);
        Ok(QueueConsumer { consumer: Handle::new("queue consumer", Arc::new(Mutex::new(consumer))) })
    }

    fn reap(&self, worker: u64) -> Result<(usize, usize, usize)> {
        let core::Reaped { reclaimed, redelivered, dropped } = self.queue.get()?.reap(worker_id(worker)?)?;
        Ok((reclaimed, redelivered, dropped))
    }

    fn finish(&self) -> Result<()> {
        Ok(self.queue.get()?.close()?)
    }

    #[getter]
    fn finished(&self) -> Result<bool> {
        Ok(self.queue.get()?.is_closed()?)
    }

    fn occupancy(&self) -> Result<BTreeMap<&'static str, usize>> {
        let core::Occupancy { free, writing, full, reading } = self.queue.get()?.occupancy()?;
        Ok(BTreeMap::from([("free", free), ("writing", writing), ("full", full), ("reading", reading)]))
    }

    fn counters(&self) -> Result<BTreeMap<&'static str, u64>> {
        let queue = self.queue.get()?;
        let mut counters = BTreeMap::new();
        for (name, counter) in COUNTERS {
            counters.insert(name, queue.counter(counter)?);
        }
        counters.insert("committed", queue.committed()?);
        counters.insert("missed_wakeups", queue.missed_wakeups()?);
        Ok(counters)
    }

    #[getter]
    fn oldest_age(&self) -> Result<Option<f64>> {
        Ok(self.queue.get()?.oldest_age()?.map(|age| age.as_secs_f64()))
    }

    fn close(&self) -> Result<()> {
        self.queue.close()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> Result<()> {
        self.close()
    }
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct QueueProducer {
    producer: Handle<Mutex<core::Producer>>,
}

#[pymethods]
impl QueueProducer {
    #[pyo3(signature = (*, timeout))]
    fn acquire(&self, py: Python<'_>, timeout: Option<f64>) -> Result<Option<WriteSegment>> {
        let end = self.producer.get()?;
        let slot = {
            let mut producer = lock(&end)?;
            let producer = &mut *producer;
            wait(py, timeout, |limit, between| producer.acquire(limit, between))?
        };
        Ok(slot.map(|slot| WriteSegment::new(end, slot, timeout)))
    }

    #[pyo3(signature = (*, timeout, note=0, **fields))]
    fn put(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        note: u64,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> Result<Option<u64>> {
        let end = self.producer.get()?;
        let mut producer = lock(&end)?;
        let producer = &mut *producer;
        let Some(mut slot) = wait(py, timeout, |limit, between| producer.acquire(limit, between))? else {
            return Ok(None);
        };
        let queue = slot.queue().clone();
        let placed = queue.schema().fields();
        let bytes = slot.bytes_mut();
        for (index, place) in placed.iter().enumerate() {
            let value = fields.map(|fields| fields.get_item(&place.field.name)).transpose()?.flatten();
            let value = value.ok_or_else(|| wrong_names(placed, fields))?;
            put_value(&mut bytes[place.offset..place.offset + place.field.bytes()], index, place, &value)?;
        }
        if fields.is_some_and(|fields| fields.len() != placed.len()) {
            return Err(wrong_names(placed, fields));
        }
        slot.set_note(note)?;
        Ok(Some(slot.commit()?))
    }

    fn close(&self) -> Result<()> {
        self.producer.close()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> Result<()> {
        self.close()
    }
}

fn wrong_names(placed: &[PlacedField], given: Option<&Bound<'_, PyDict>>) -> Failure {
    let expected: Vec<_> = placed.iter().map(|placed| placed.field.name.as_str()).collect();
    let given = given.map_or_else(|| "nothing".to_owned(), |given| given.keys().to_string());
    PyKeyError::new_err(format!("given {given}, expected the fields {}", expected.join(", "))).into()
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct QueueConsumer {
    consumer: Handle<Mutex<core::Consumer>>,
}

#[pymethods]
impl QueueConsumer {
    #[pyo3(signature = (*, timeout))]
    fn pop(&self, py: Python<'_>, timeout: Option<f64>) -> Result<ReadSegment> {
        let end = self.consumer.get()?;
        let mut consumer = lock(&end)?;
        let consumer = &mut *consumer;
        Ok(ReadSegment::new(wait(py, timeout, |limit, between| consumer.pop(limit, between))?))
    }

    #[pyo3(signature = (into, *, timeout, tickets=None, notes=None))]
    fn pop_batch(
        &self,
        py: Python<'_>,
        into: &Bound<'_, PyDict>,
        timeout: Option<f64>,
        tickets: Option<PyReadwriteArray1<'_, u64>>,
        notes: Option<PyReadwriteArray1<'_, u64>>,
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
            let placed = placed.ok_or_else(|| wrong_names(queue.schema().fields(), Some(into)))?;
            let column = Column::new(&name, array, placed, &mut size)?;
            columns.push(column);
        }
        let size = size.ok_or_else(|| Failure::value("into: expected at least one field of the queue"))?;
        let (mut tickets, mut notes) = (tickets, notes);
        let mut tickets = tickets.as_mut().map(|array| contiguous("tickets", array.as_slice_mut())).transpose()?;
        let mut notes = notes.as_mut().map(|array| contiguous("notes", array.as_slice_mut())).transpose()?;
        for (name, words) in [("tickets", &tickets), ("notes", &notes)] {
            if words.as_ref().is_some_and(|words| words.len() != size) {
                return Err(Failure::value(format!("{name}: expected shape ({size},)")));
            }
        }
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
        })?;
        noted?;
        Ok(popped)
    }

    fn close(&self) -> Result<()> {
        self.consumer.close()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> Result<()> {
        self.close()
    }
}

/// Where a field of each segment of a batch goes.
struct Column {
    data: *mut u8,
    offset: usize,
    bytes: usize,
    rows: usize,
}

// SAFETY: `data` points into an array that the caller of `pop_batch` holds for the whole call.
unsafe impl Send for Column {}
// SAFETY: as above; `store` is called by one thread.
unsafe impl Sync for Column {}

impl Column {
    fn new(name: &str, array: &Bound<'_, PyAny>, placed: &PlacedField, size: &mut Option<usize>) -> Result<Self> {
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
                Ok(Self { data: view.as_mut_ptr(), offset: placed.offset, bytes: field.bytes(), rows })
            }
            _ => Err(wrong(&any)),
        }
    }

    fn store(&self, number: usize, segment: &[u8]) {
        assert!(number < self.rows, "a row of the batch");
        let field = &segment[self.offset..self.offset + self.bytes];
        // SAFETY: `number` is inside the array, whose rows have `bytes` bytes each. The array is not the queue's memory:
        // views of that are read-only or of slots being written. As with numpy's own functions that let go of the GIL,
        // another thread that uses the array meanwhile sees old or new numbers.
        unsafe { std::ptr::copy_nonoverlapping(field.as_ptr(), self.data.add(number * self.bytes), self.bytes) };
    }
}

/// `try_lock`: a thread that holds the end may be waiting for the GIL.
pub(crate) fn lock<T>(end: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    end.try_lock().map_err(|_| {
        Failure::value("this end of the queue is in use by another thread: make one per thread, each with a worker id")
    })
}
