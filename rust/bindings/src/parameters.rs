//! `rlz._native.ParameterStore`, its publisher and its subscribers.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rlz_core::WorkerId;
use rlz_core::memory::Access;
use rlz_core::parameters::{self as core, Publication};

use crate::borrow::{Dim, filling, reading};
use crate::descriptor::{borrow, field_tuple, fields_from};
use crate::doorway::{Handle, wait, worker as worker_id};
use crate::failure::Result;
use crate::policy::Tensor;
use crate::whole;

const STREAM: &str = "parameter store";

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct ParameterStore {
    store: Handle<core::ParameterStore>,
    read_only: Mutex<Option<OwnedFd>>,
}

impl ParameterStore {
    fn new(store: Arc<core::ParameterStore>) -> Self {
        Self { store: Handle::new(STREAM, store), read_only: Mutex::new(None) }
    }
}

#[pymethods]
impl ParameterStore {
    #[staticmethod]
    #[pyo3(signature = (manifest, *, leases=1, run_id=0, version=0))]
    fn create(
        py: Python<'_>,
        manifest: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::leases)] leases: usize,
        #[pyo3(from_py_with = whole::run_id)] run_id: u64,
        #[pyo3(from_py_with = whole::version)] version: u64,
    ) -> Result<Self> {
        let fields = fields_from(manifest)?;
        Ok(Self::new(py.detach(|| core::ParameterStore::create_after(version, &fields, leases, run_id))?))
    }

    #[staticmethod]
    #[pyo3(signature = (control_fd, payload_fd, *, writable=false))]
    fn attach(
        #[pyo3(from_py_with = whole::control_fd)] control_fd: i32,
        #[pyo3(from_py_with = whole::payload_fd)] payload_fd: i32,
        writable: bool,
    ) -> Result<Self> {
        Ok(Self::new(core::ParameterStore::attach(borrow(&control_fd)?, borrow(&payload_fd)?, writable)?))
    }

    #[getter]
    fn control_fd(&self) -> Result<i32> {
        Ok(self.store.get()?.control().as_fd().as_raw_fd())
    }

    #[getter]
    fn payload_fd(&self) -> Result<i32> {
        Ok(self.store.get()?.payload().as_fd().as_raw_fd())
    }

    #[getter]
    fn readonly_payload_fd(&self) -> Result<i32> {
        let store = self.store.get()?;
        let mut read_only = self.read_only.lock().unwrap_or_else(PoisonError::into_inner);
        if read_only.is_none() {
            *read_only = Some(store.read_only_payload()?);
        }
        Ok(read_only.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }

    #[getter]
    fn writable(&self) -> Result<bool> {
        Ok(self.store.get()?.payload().access() == Access::ReadWrite)
    }

    #[getter]
    fn manifest<'py>(&self, py: Python<'py>) -> Result<Vec<Tensor<'py>>> {
        self.store.get()?.manifest().iter().map(|placed| field_tuple(py, &placed.field)).collect()
    }

    #[getter]
    fn nbytes(&self) -> Result<usize> {
        Ok(self.store.get()?.nbytes())
    }

    fn version(&self) -> Result<u64> {
        Ok(self.store.get()?.version())
    }

    #[pyo3(signature = (*, worker))]
    fn publisher(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<Publisher> {
        let publisher = self.store.get()?.publisher(worker_id(worker)?)?;
        Ok(Publisher { publisher: Handle::new("publisher", Arc::new(Mutex::new(publisher))) })
    }

    #[pyo3(signature = (*, worker=None))]
    fn subscriber(&self, #[pyo3(from_py_with = whole::worker)] worker: Option<u64>) -> Result<Subscriber> {
        const END: &str = "subscriber";
        let (store, worker) = (self.store.get()?, worker.map(worker_id).transpose()?);
        let subscriber = Arc::new(Mutex::new(store.subscriber(worker)));
        Ok(Subscriber { store: Handle::new(END, store), subscriber: Handle::new(END, subscriber), worker })
    }

    fn reap(&self, #[pyo3(from_py_with = whole::worker)] worker: u64) -> Result<()> {
        let store = self.store.get()?;
        store.check_writable()?;
        store.reap(worker_id(worker)?);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.store.close()?;
        drop(self.read_only.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct Publisher {
    publisher: Handle<Mutex<core::Publisher>>,
}

#[pymethods]
impl Publisher {
    #[pyo3(signature = (parameters, *, env_steps=0, updates=0))]
    fn publish(
        &self,
        py: Python<'_>,
        parameters: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::env_steps)] env_steps: u64,
        #[pyo3(from_py_with = whole::updates)] updates: u64,
    ) -> Result<u64> {
        let publisher = self.publisher.get()?;
        let bytes = reading::<u8>("parameters", parameters, &[Dim::Any("bytes")])?;
        let bytes = &*bytes;
        Ok(py.detach(|| {
            let mut publisher = publisher.lock().unwrap_or_else(PoisonError::into_inner);
            publisher.publish(bytes, env_steps, updates)
        })?)
    }

    /// Leave the publisher's place to another one.
    fn close(&self) -> Result<()> {
        self.publisher.close()
    }
}

#[pyclass(module = "rlz._native", frozen)]
pub(crate) struct Subscriber {
    store: Handle<core::ParameterStore>,
    // Locked without the GIL only, and never across a wait.
    subscriber: Handle<Mutex<core::Subscriber>>,
    worker: Option<WorkerId>,
}

impl Subscriber {
    pub(crate) fn newest(&self) -> Result<u64> {
        Ok(self.store.get()?.version())
    }

    pub(crate) fn read_into(&self, into: &mut [u8]) -> Result<Publication> {
        let subscriber = self.subscriber.get()?;
        let publication = subscriber.lock().unwrap_or_else(PoisonError::into_inner).read(into)?;
        Ok(publication)
    }
}

#[pymethods]
impl Subscriber {
    fn version(&self) -> Result<u64> {
        self.newest()
    }

    fn read(&self, py: Python<'_>, into: &Bound<'_, PyAny>) -> Result<(u64, u64, u64)> {
        let mut into = filling::<u8>("into", into, &[Dim::Any("bytes")])?;
        let bytes = &mut *into;
        let Publication { version, env_steps, updates } = py.detach(|| self.read_into(bytes))?;
        Ok((version, env_steps, updates))
    }

    #[pyo3(signature = (version, *, timeout=None))]
    fn wait_newer(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::version)] version: u64,
        timeout: Option<f64>,
    ) -> Result<u64> {
        let store = self.store.get()?;
        wait(py, timeout, |timeout, between| store.wait_newer(self.worker, version, timeout, between))
    }

    #[pyo3(signature = (env_steps, *, timeout=None))]
    fn wait_env_steps(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::env_steps)] env_steps: u64,
        timeout: Option<f64>,
    ) -> Result<u64> {
        let store = self.store.get()?;
        wait(py, timeout, |timeout, between| store.wait_env_steps(self.worker, env_steps, timeout, between))
    }

    /// Give the lease cell back.
    fn close(&self) -> Result<()> {
        self.subscriber.close()?;
        self.store.close()
    }
}
