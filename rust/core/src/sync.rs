//! The only place that names the standard library's atomics.
//!
//! Protocol code says `crate::sync::AtomicU64`, so that a model checker's words can be put underneath by a `cfg` here
//! without touching a protocol (`RUSTFLAGS="--cfg loom"`, or `shuttle`). They are type aliases rather than re-exports:
//! `clippy::disallowed_types` looks through a re-export and would refuse its users too.

#[cfg(not(any(loom, shuttle)))]
#[allow(clippy::disallowed_types)]
mod words {
    pub type AtomicU64 = std::sync::atomic::AtomicU64;
    pub type AtomicU32 = std::sync::atomic::AtomicU32;
    pub type AtomicUsize = std::sync::atomic::AtomicUsize;
    pub type AtomicBool = std::sync::atomic::AtomicBool;
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::fence;
}

#[cfg(loom)]
#[path = "sync_model.rs"]
pub mod words;

/// Words of a checker that tries random schedules of many threads. All orderings are `SeqCst` there.
#[cfg(shuttle)]
#[allow(clippy::disallowed_types)]
mod words {
    pub use shuttle::hint::spin_loop;
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
}

/// Whether a model checker runs the code: with few words, and without time.
pub const MODEL: bool = cfg!(any(loom, shuttle));

/// A word in a `static`: never modelled (a model's words cannot be made in a constant).
#[allow(clippy::disallowed_types)]
pub type StaticU64 = std::sync::atomic::AtomicU64;

pub use std::sync::atomic::Ordering;
pub use words::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence, spin_loop};
