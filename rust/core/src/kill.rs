//! Points at which tests and models end a process by SIGKILL, exactly.
//!
//! Protocol code names the instants between its stores with [`kill_point`]. In a normal build that is nothing.
//!
//! - In unit tests and models `run` makes the n-th point on this thread unwind without running the rest of the
//!   protocol, as a kill would, and a reaper or successor is run afterwards. (Protocol functions hold no guards whose
//!   `Drop` would tidy up; where one is needed it asks [`killed`] first.)
//! - With the feature `kill-points`, which this crate's integration tests turn on, `arm` makes a real process send
//!   itself SIGKILL at a point. Builds of the extension are without it.

#![allow(unreachable_pub)] // models are other crates: the module is public for them

#[cfg(not(any(test, loom, shuttle, feature = "kill-points")))]
#[inline(always)]
pub(crate) fn kill_point(_name: &'static str) {}

/// Whether this thread plays a killed process: destructors must then touch nothing shared.
#[cfg(not(any(test, loom, shuttle)))]
#[inline(always)]
pub(crate) fn killed() -> bool {
    false
}

#[cfg(all(feature = "kill-points", not(any(test, loom, shuttle))))]
pub use real::{arm, kill_point};

#[cfg(any(test, loom, shuttle))]
pub use armed::{kill_point, killed, run};

#[cfg(all(feature = "kill-points", not(any(test, loom, shuttle))))]
mod real {
    use std::sync::OnceLock;

    use rustix::process::{Signal, getpid, kill_process};

    use crate::sync::{Ordering, StaticU64};

    struct Plan {
        name: String,
        /// Passages of the point until the end.
        left: StaticU64,
    }

    static PLAN: OnceLock<Plan> = OnceLock::new();

    /// End this process by SIGKILL at the `passage`-th (from 1) time that one of its threads comes to the point `name`.
    ///
    /// # Panics
    /// When called a second time.
    pub fn arm(name: &str, passage: u64) {
        let plan = Plan { name: name.to_owned(), left: StaticU64::new(passage) };
        assert!(PLAN.set(plan).is_ok(), "a process dies at one point only");
    }

    /// See the module.
    pub fn kill_point(name: &'static str) {
        let Some(plan) = PLAN.get() else { return };
        if plan.name == name && plan.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
            unreachable!("SIGKILL comes before the system call returns");
        }
    }
}

#[cfg(any(test, loom, shuttle))]
mod armed {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    #[derive(Clone, Copy, PartialEq)]
    enum Plan {
        Live,
        /// Die at the kill point after this many others.
        Die(u32),
        Dead,
    }

    #[cfg(loom)]
    loom::thread_local! {
        // A model's threads are coroutines of one thread.
        static PLAN: Cell<Plan> = Cell::new(Plan::Live);
    }
    #[cfg(shuttle)]
    shuttle::thread_local! {
        static PLAN: Cell<Plan> = Cell::new(Plan::Live);
    }
    #[cfg(not(any(loom, shuttle)))]
    thread_local! {
        static PLAN: Cell<Plan> = const { Cell::new(Plan::Live) };
    }

    struct Killed(&'static str);

    /// See the module.
    pub fn kill_point(name: &'static str) {
        PLAN.with(|plan| match plan.get() {
            Plan::Live | Plan::Dead => {}
            Plan::Die(0) => {
                plan.set(Plan::Dead);
                resume_unwind(Box::new(Killed(name))); // unlike panic!, this prints nothing
            }
            Plan::Die(left) => plan.set(Plan::Die(left - 1)),
        });
    }

    /// Whether this thread plays a killed process: destructors must then touch nothing shared.
    #[must_use]
    pub fn killed() -> bool {
        PLAN.with(|plan| plan.get() == Plan::Dead)
    }

    /// Run `body`, killed at its `n`-th kill point (0-based): the name of that point, or the result if it has fewer.
    pub fn run<T>(n: u32, body: impl FnOnce() -> T) -> Result<T, &'static str> {
        PLAN.with(|plan| plan.set(Plan::Die(n)));
        let result = catch_unwind(AssertUnwindSafe(body));
        PLAN.with(|plan| plan.set(Plan::Live));
        result.map_err(|payload| match payload.downcast::<Killed>() {
            Ok(killed) => killed.0,
            Err(other) => resume_unwind(other),
        })
    }
}
