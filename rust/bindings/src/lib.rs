//! `rlz._native`: the transport and the sampler's policy for Python. A thin layer; `rlz-core` does the work.
//!
//! `python/rlz/_native.pyi` is the contract, with the documentation of every function. Everything that may wait goes
//! through [`doorway::wait`], every error through [`failure::Failure`].

mod array;
mod borrow;
mod columns;
mod consumer;
mod context;
mod dense;
mod descriptor;
mod doorway;
mod failure;
mod inference;
mod limiter;
mod memory;
mod parameters;
mod phases;
mod policy;
mod prioritized;
mod process;
mod queue;
mod readiness;
mod replay;
mod row;
mod sampler;
mod segment;
mod stats;
mod tail;
mod whole;
mod writer;

// The GIL orders what the borrow flags and the segments do: a build of Python without it takes it back for this module.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    #[allow(non_upper_case_globals)] // Python's name for it
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    const FLAG_TERMINATED: u16 = rlz_core::replay::FLAG_TERMINATED;
    #[pymodule_export]
    const FLAG_TRUNCATED: u16 = rlz_core::replay::FLAG_TRUNCATED;
    #[pymodule_export]
    const FLAG_FIRST: u16 = rlz_core::replay::FLAG_FIRST;
    #[pymodule_export]
    use crate::prioritized::PrioritizedSampler;
    #[pymodule_export]
    use crate::replay::{Replay, ReplaySampler};
    #[pymodule_export]
    use crate::writer::ReplayWriter;

    #[pymodule_export]
    const RUNNING: u64 = rlz_core::limiter::State::Running as u64;
    #[pymodule_export]
    const STOPPING: u64 = rlz_core::limiter::State::Stopping as u64;
    #[pymodule_export]
    const FINISHED: u64 = rlz_core::limiter::State::Finished as u64;
    #[pymodule_export]
    const CLOSED: u64 = rlz_core::limiter::State::Closed as u64;
    #[pymodule_export]
    use crate::limiter::Limiter;

    #[pymodule_export]
    use crate::parameters::{ParameterStore, Publisher, Subscriber};

    #[pymodule_export]
    use crate::consumer::QueueConsumer;
    #[pymodule_export]
    use crate::inference::{InferenceClient, InferenceServer, InferenceStream};
    #[pymodule_export]
    use crate::queue::{QueueProducer, TrajectoryQueue};
    #[pymodule_export]
    use crate::segment::{ReadSegment, WriteSegment};
    #[pymodule_export]
    use crate::tail::ReplayTail;

    #[pymodule_export]
    use crate::phases::PhaseClock;
    #[pymodule_export]
    use crate::stats::StatsBoard;

    #[pymodule_export]
    use crate::policy::Policy;

    #[pymodule_export]
    use crate::dense::{dense_bf16, dense_instructions, dense_kept, dense_peak, dense_threads};

    #[pymodule_export]
    use crate::memory::{check_shared_memory, memory_limits};
    #[pymodule_export]
    use crate::process::bind_to_parent;
}
