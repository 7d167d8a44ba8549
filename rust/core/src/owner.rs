//! Who owns a cell: worker ids, and the guard that refuses use after a fork.

#![allow(unsafe_code)] // one registration with the C library, see `ForkGuard`

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Once;

use crate::error::{Error, Result};
use crate::sync::{Ordering, StaticU64};

/// Most lanes that a stream can have: lane + 1 takes 16 bits in state words, and a lane is an env slot in a row's meta.
pub const MAX_LANES: usize = 65_535;

/// Identity of a worker in all streams, 1 to 1022.
///
/// The controller gives ids out, and gives one out again only after every stream's reaping for it has ended. Ten bits,
/// so that an id fits into every state word; 0 means nobody and 1023 is kept free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(NonZeroU16);

impl WorkerId {
    /// Largest id.
    pub const MAX: u64 = 1022;

    /// Check and wrap an id.
    pub fn new(id: u64) -> Result<Self> {
        u16::try_from(id)
            .ok()
            .filter(|id| u64::from(*id) <= Self::MAX)
            .and_then(NonZeroU16::new)
            .map(Self)
            .ok_or_else(|| Error::invalid("worker", id, "a worker id from 1 to 1022, given out by the controller"))
    }

    /// The id as it stands in state words.
    #[must_use]
    pub fn get(self) -> u64 {
        u64::from(self.0.get())
    }
}

/// Who holds a place that only one handle may have: a worker and a number that no other handle has. One word, 0 for
/// nobody.
///
/// A worker id alone does not tell two handles apart that were given the same one, in one process or in two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(u64);

impl Holder {
    /// Bits of the worker id, and of the process id (the kernel gives out none above 2^22).
    const WORKER: u32 = 10;
    const PROCESS: u32 = 22;

    /// A holder that differs from every other one, dead ones included unless 2^32 handles ago.
    #[must_use]
    pub fn new(worker: WorkerId) -> Self {
        static COUNT: StaticU64 = StaticU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed); // a number: orders nothing
        let process = u64::from(std::process::id()) & ((1 << Self::PROCESS) - 1);
        Self(count << (Self::WORKER + Self::PROCESS) | process << Self::WORKER | worker.get())
    }

    /// From its word.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Never 0: a worker id is above it.
    #[must_use]
    pub fn word(self) -> u64 {
        self.0
    }

    /// Id of the worker; 0 for nobody.
    #[must_use]
    pub fn worker(self) -> u64 {
        self.0 & ((1 << Self::WORKER) - 1)
    }

    /// What tells it from other holders with its worker id, in 44 bits.
    #[must_use]
    pub fn handle(self) -> u64 {
        self.0 >> Self::WORKER & ((1 << 44) - 1)
    }

    /// Whether both were made by one process (of one pid namespace).
    #[must_use]
    pub fn same_process(self, other: Self) -> bool {
        let process = |holder: Self| holder.0 >> Self::WORKER & ((1 << Self::PROCESS) - 1);
        process(self) == process(other)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerId({})", self.0)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of forks between the process that loaded the library and this one.
static FORKS: StaticU64 = StaticU64::new(0);
static REGISTER: Once = Once::new();

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed); // the child has one thread: nothing to order
}

/// Remembers in which process a handle was made.
///
/// Segments are mapped with `MADV_DONTFORK`, so a handle used in a forked child would fault. A comparison of two words
/// (kept current by `pthread_atfork`) turns that into an error, and is far cheaper than asking for the process id.
#[derive(Debug, Clone, Copy)]
pub struct ForkGuard(u64);

impl ForkGuard {
    /// Remember this process.
    #[must_use]
    pub fn new() -> Self {
        REGISTER.call_once(|| {
            // SAFETY: `count_fork` is an async-signal-safe function of static lifetime (one atomic addition).
            // Failure (no memory) leaves the guard without effect, which costs the clear message only.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// `Error::Forked` when the process was forked since.
    pub fn check(self, stream: &'static str) -> Result<()> {
        if FORKS.load(Ordering::Relaxed) == self.0 { Ok(()) } else { Err(Error::Forked { stream }) }
    }
}

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_differ_even_with_one_id() {
        let id = WorkerId::new(1022).unwrap();
        let (a, b) = (Holder::new(id), Holder::new(id));
        assert!(a != b && a.same_process(b) && a.word() != 0);
        assert_eq!((a.worker(), Holder::from_word(a.word())), (1022, a));
        assert!(!a.same_process(Holder::from_word(1022)));
    }

    #[test]
    fn ids_are_ten_bits_without_the_ends() {
        for id in [0, 1023, 1024, u64::MAX] {
            assert!(WorkerId::new(id).is_err(), "{id}");
        }
        for id in [1, 512, 1022] {
            assert_eq!(WorkerId::new(id).unwrap().get(), id);
        }
    }

    #[test]
    fn guard_notices_a_fork() {
        let guard = ForkGuard::new();
        guard.check("replay").unwrap();
        // SAFETY: the child calls only async-signal-safe code (an atomic load and `_exit`).
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let forked = guard.check("replay").is_err();
            // SAFETY: leaves the child without running destructors.
            unsafe { libc::_exit(i32::from(!forked)) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writes; `pid` is our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
        guard.check("replay").unwrap();
    }
}
