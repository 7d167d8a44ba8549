//! `with`: everything that can be closed is closed at the end of its block.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::consumer::QueueConsumer;
use crate::inference::{InferenceClient, InferenceServer, InferenceStream};
use crate::limiter::Limiter;
use crate::parameters::{ParameterStore, Publisher, Subscriber};
use crate::prioritized::PrioritizedSampler;
use crate::queue::{QueueProducer, TrajectoryQueue};
use crate::replay::{Replay, ReplaySampler};
use crate::stats::StatsBoard;
use crate::tail::ReplayTail;
use crate::writer::ReplayWriter;

macro_rules! closed_at_the_end {
    ($($class:ty),+ $(,)?) => {$(
        #[pymethods]
        impl $class {
            fn __enter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(slf: &Bound<'_, Self>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
                slf.call_method0("close").map(drop)
            }
        }
    )+};
}

closed_at_the_end!(
    InferenceClient,
    InferenceServer,
    InferenceStream,
    Limiter,
    ParameterStore,
    PrioritizedSampler,
    Publisher,
    QueueConsumer,
    QueueProducer,
    Replay,
    ReplaySampler,
    ReplayTail,
    ReplayWriter,
    StatsBoard,
    Subscriber,
    TrajectoryQueue,
);
