//! The only place that names the standard library's atomics.
//!
//! Protocol code says `crate::sync::AtomicU64`, so that a model checker's words can be put underneath by a `cfg` here
//! without touching a protocol (`RUSTFLAGS="--cfg loom"`). They are type aliases rather than re-exports:
//! `clippy::disallowed_types` looks through a re-export and would refuse its users too.

#[cfg(not(loom))]
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
mod words {
    pub type AtomicU64 = loom::sync::atomic::AtomicU64;
    pub type AtomicU32 = loom::sync::atomic::AtomicU32;
    pub type AtomicUsize = loom::sync::atomic::AtomicUsize;
    pub type AtomicBool = loom::sync::atomic::AtomicBool;
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::fence;
}

/// A word in a `static`: never modelled (a model's words cannot be made in a constant).
#[allow(clippy::disallowed_types)]
pub type StaticU64 = std::sync::atomic::AtomicU64;

pub use std::sync::atomic::Ordering;
pub use words::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence, spin_loop};

/// A place at which a kill would be noticed by others: between two stores of a protocol.
///
/// Nothing in a normal build. Models and unit tests make the caller end there (see `kill`) and let a reaper run after it.
#[inline(always)]
pub fn kill_point(name: &'static str) {
    #[cfg(any(loom, test))]
    kill::reach(name);
    let _ = name;
}

/// Whether the current thread plays a killed process: destructors must then touch nothing shared.
#[inline(always)]
#[must_use]
pub fn killed() -> bool {
    #[cfg(any(loom, test))]
    return kill::dead();
    #[cfg(not(any(loom, test)))]
    false
}

/// Playing a kill: unwind from a chosen kill point without running shared clean-up.
///
/// Protocol functions hold no guards whose `Drop` would tidy up, or ask [`killed`] in it.
#[cfg(any(loom, test))]
pub mod kill {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    #[derive(Clone, Copy, PartialEq)]
    enum Plan {
        Live,
        /// Die at the kill point after this many others.
        Die(usize),
        Dead,
    }

    #[cfg(loom)]
    loom::thread_local! {
        static PLAN: Cell<Plan> = Cell::new(Plan::Live);
    }
    #[cfg(not(loom))]
    thread_local! {
        static PLAN: Cell<Plan> = const { Cell::new(Plan::Live) };
    }

    struct Killed(&'static str);

    pub(super) fn dead() -> bool {
        PLAN.with(|plan| plan.get() == Plan::Dead)
    }

    pub(super) fn reach(name: &'static str) {
        PLAN.with(|plan| match plan.get() {
            Plan::Live | Plan::Dead => {}
            Plan::Die(0) => {
                plan.set(Plan::Dead);
                resume_unwind(Box::new(Killed(name))); // unlike panic!, this prints nothing
            }
            Plan::Die(left) => plan.set(Plan::Die(left - 1)),
        });
    }

    /// Run `work` as a process that is killed at its kill point number `point` (from 0): the name of that point, or the
    /// result if it has fewer. Other panics go on.
    pub fn run_named<T>(point: usize, work: impl FnOnce() -> T) -> Result<T, &'static str> {
        PLAN.with(|plan| plan.set(Plan::Die(point)));
        let result = catch_unwind(AssertUnwindSafe(work));
        PLAN.with(|plan| plan.set(Plan::Live));
        result.map_err(|payload| match payload.downcast::<Killed>() {
            Ok(killed) => killed.0,
            Err(other) => resume_unwind(other),
        })
    }
}
