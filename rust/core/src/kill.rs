//! Points at which tests end a process "by SIGKILL", exactly.
//!
//! Protocol code names the instants between its stores with [`kill_point`]. Outside of unit tests that is nothing. In unit
//! tests [`run`] makes the n-th point on this thread unwind without running the rest of the protocol, as a kill
//! would, and a reaper or successor is run afterwards. (Protocol functions hold no guards whose `Drop` would tidy up.)

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn kill_point(_name: &'static str) {}

#[cfg(test)]
pub(crate) use armed::{kill_point, run};

#[cfg(test)]
mod armed {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    struct Killed(&'static str);

    pub(crate) fn kill_point(name: &'static str) {
        LEFT.with(|left| match left.get() {
            None => {}
            Some(0) => {
                left.set(None);
                resume_unwind(Box::new(Killed(name)));
            }
            Some(n) => left.set(Some(n - 1)),
        });
    }

    /// Run `body`, killed at its `n`-th kill point (0-based): the name of that point, or the result if it has fewer.
    pub(crate) fn run<T>(n: u32, body: impl FnOnce() -> T) -> Result<T, &'static str> {
        LEFT.with(|left| left.set(Some(n)));
        let result = catch_unwind(AssertUnwindSafe(body));
        LEFT.with(|left| left.set(None));
        result.map_err(|payload| match payload.downcast::<Killed>() {
            Ok(killed) => killed.0,
            Err(other) => resume_unwind(other),
        })
    }
}
