//! Words of a model checker, with orderings that a negative control can take away.
//!
//! A model that passes says little unless it would fail without the orderings that it is about. So every operation
//! knows where in the source it stands ([`Site`]), and [`weakened`] runs a model as if the ordering there had been
//! forgotten.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::Mutex;

pub use loom::hint::spin_loop;
use loom::sync::atomic as checked;
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use crate::sync::Ordering;

/// Place of an atomic operation in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// File.
    pub file: &'static str,
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

thread_local! {
    static WEAK: Cell<Option<Site>> = const { Cell::new(None) };
    static RECORDING: Cell<bool> = const { Cell::new(false) };
    static THOROUGH: Cell<bool> = const { Cell::new(false) };
}
static SITES: Mutex<BTreeSet<Site>> = Mutex::new(BTreeSet::new());

/// Run `model` (on this thread) and list the places that use an ordering stronger than Relaxed.
pub fn sites(model: impl FnOnce()) -> Vec<Site> {
    SITES.lock().expect("no panics under this lock").clear();
    RECORDING.set(true);
    model();
    RECORDING.set(false);
    SITES.lock().expect("no panics under this lock").iter().copied().collect()
}

/// Run `model` (on this thread) as if the operation at `site` were Relaxed, a fence there missing, or a `SeqCst` fence
/// there an `AcqRel` one.
pub fn weakened(site: Site, model: impl FnOnce()) {
    WEAK.set(Some(site));
    model();
    WEAK.set(None);
}

/// Run `model` (on this thread) under more schedules: see [`AtomicU64`].
pub fn thorough<T>(model: impl FnOnce() -> T) -> T {
    THOROUGH.set(true);
    let found = model();
    THOROUGH.set(false);
    found
}

/// Whether to weaken the caller's operation.
#[track_caller]
fn weak(order: Ordering) -> bool {
    if order == Ordering::Relaxed {
        return false;
    }
    let at = Location::caller();
    let site = Site { file: at.file(), line: at.line(), column: at.column() };
    if RECORDING.get() {
        SITES.lock().expect("no panics under this lock").insert(site);
    }
    WEAK.get() == Some(site)
}

#[track_caller]
fn order(order: Ordering) -> Ordering {
    if weak(order) { Ordering::Relaxed } else { order }
}

/// Memory fence.
#[track_caller]
pub fn fence(order: Ordering) {
    match (weak(order), order) {
        (false, order) => checked::fence(order),
        (true, Ordering::SeqCst) => checked::fence(Ordering::AcqRel),
        (true, _) => {}
    }
}

/// Word of the model.
///
/// The checker remembers one last access per word, and takes two loads to be independent. A load that another thread
/// does before its exchange (the usual pattern) then hides an earlier load, and schedules are left out. Within
/// [`thorough`] every operation also stores to a shadow: any two operations on a word depend on each other. A relaxed
/// store orders nothing.
#[derive(Debug)]
pub struct AtomicU64 {
    word: checked::AtomicU64,
    shadow: Option<checked::AtomicU64>,
}

macro_rules! read_modify_write {
    ($($name:ident)+) => {$(
        /// As in the standard library.
        #[track_caller]
        pub fn $name(&self, value: u64, with: Ordering) -> u64 {
            self.touch().$name(value, order(with))
        }
    )+};
}

impl AtomicU64 {
    /// As in the standard library.
    #[must_use]
    #[track_caller]
    pub fn new(value: u64) -> Self {
        Self { word: checked::AtomicU64::new(value), shadow: THOROUGH.get().then(|| checked::AtomicU64::new(0)) }
    }

    #[track_caller]
    fn touch(&self) -> &checked::AtomicU64 {
        if let Some(shadow) = &self.shadow {
            shadow.store(0, Ordering::Relaxed);
        }
        &self.word
    }

    /// As in the standard library.
    #[track_caller]
    pub fn load(&self, with: Ordering) -> u64 {
        self.touch().load(order(with))
    }

    /// As in the standard library.
    #[track_caller]
    pub fn store(&self, value: u64, with: Ordering) {
        self.touch().store(value, order(with));
    }

    /// A load that no store may run beside, as of memory that is not atomic: the checker reports a race.
    #[allow(unsafe_code)]
    #[must_use]
    #[track_caller]
    pub fn load_alone(&self) -> u64 {
        // SAFETY: the checker's words are never uninitialised; a race ends the model.
        unsafe { self.word.unsync_load() }
    }

    read_modify_write! { swap fetch_add fetch_sub fetch_and fetch_or fetch_max }

    /// As in the standard library.
    #[track_caller]
    pub fn compare_exchange(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.touch().compare_exchange(old, new, order(success), failure)
    }

    /// As in the standard library (never fails without a reason here).
    #[track_caller]
    pub fn compare_exchange_weak(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.compare_exchange(old, new, success, failure)
    }
}
