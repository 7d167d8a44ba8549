//! `rlz._native.TrajectoryQueue` and its producer.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rlz_core::queue::{self as core, Counter, Options, Redelivery, WhenFull};
use rlz_core::schema::PlacedField;

use crate::columns::{row_dtype, wrong_names};
use crate::consumer::QueueConsumer;
use crate::descriptor::{borrow, fields_from};
use crate::doorway::{Handle, wait, worker as worker_id};
use crate::failure::{Failure, Result};
use crate::replay::Placed;
use crate::row::put_value;
use crate::segment::WriteSegment;
use crate::whole;

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
    #[pyo3(signature = (fields, *, slots, run_id=0, when_full="block", redelivery="at_least_once", max_deliveries=3))]
    fn create(
        py: Python<'_>,
        fields: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::slots)] slots: usize,
        #[pyo3(from_py_with = whole::run_id)] run_id: u64,
        when_full: &str,
        redelivery: &str,
        #[pyo3(from_py_with = whole::max_deliveries)] max_deliveries: u64,
    ) -> Result<Self> {
        let fields = fields_from(fields)?;
        let options = Options {
            slots,
            when_full: choice("when_full", when_full, &WHEN_FULL)?,
            redelivery: choice("redelivery", redelivery, &REDELIVERY)?,
            max_deliveries,
        };
        Ok(Self::new(py.detach(|| core::Queue::create(&fields, options, run_id))?))
    }

    #[staticmethod]
    fn attach(#[pyo3(from_py_with = whole::fd)] fd: i32) -> Result<Self> {
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

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        Ok(row_dtype(py, self.queue.get()?.schema())?)
    }

    #[pyo3(signature = (*, worker))]
    fn producer(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<QueueProducer> {
        let producer = self.queue.get()?.producer(worker_id(worker)?)?;
        Ok(QueueProducer { producer: Handle::new("queue producer", Arc::new(Mutex::new(producer))) })
    }

    #[pyo3(signature = (*, worker))]
    fn consumer(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<QueueConsumer> {
        let consumer = self.queue.get()?.consumer(worker_id(worker)?)?;
        Ok(QueueConsumer::new(consumer))
    }

    fn reap(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<(usize, usize, usize)> {
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
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct QueueProducer {
    producer: Handle<Mutex<core::Producer>>,
}

#[pymethods]
impl QueueProducer {
    #[pyo3(signature = (*, timeout=None))]
    fn acquire(&self, py: Python<'_>, timeout: Option<f64>) -> Result<Option<WriteSegment>> {
        let end = self.producer.get()?;
        let slot = {
            let mut producer = lock(&end)?;
            let producer = &mut *producer;
            wait(py, timeout, |limit, between| producer.acquire(limit, between))?
        };
        Ok(slot.map(WriteSegment::new))
    }

    #[pyo3(signature = (segment=None, /, *, timeout=None, note=0, **fields))]
    fn put(
        &self,
        py: Python<'_>,
        segment: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
        #[pyo3(from_py_with = whole::note)] note: u64,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> Result<Option<u64>> {
        let fields = match (segment, fields) {
            (Some(_), Some(_)) => {
                return Err(Failure::kind("put: given a dict and fields by name, expected one of both"));
            }
            (Some(fields), None) | (None, Some(fields)) => fields,
            (None, None) => &PyDict::new(py),
        };
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
            let value = fields.get_item(&place.field.name)?.ok_or_else(|| wrong_names(placed, fields))?;
            put_value(&mut bytes[place.offset..place.offset + place.field.bytes()], index, place, &value)?;
        }
        if fields.len() != placed.len() {
            return Err(wrong_names(placed, fields));
        }
        slot.set_note(note)?;
        Ok(Some(slot.commit()?))
    }

    fn close(&self) -> Result<()> {
        self.producer.close()
    }
}

/// `try_lock`: a thread that holds the end may be waiting for the GIL.
pub(crate) fn lock<T>(end: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    end.try_lock().map_err(|_| {
        Failure::value("this end of the stream is in use by another thread: make one per thread, each with a worker id")
    })
}
