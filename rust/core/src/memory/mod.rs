//! Shared memory: segments, their headers, racy word copies, and the futex.

#[cfg(not(any(loom, shuttle)))]
pub mod available;
#[cfg_attr(any(loom, shuttle), path = "futex_model.rs")]
pub mod futex;
pub mod header;
#[cfg(not(any(loom, shuttle)))]
mod mapping;
#[cfg_attr(any(loom, shuttle), path = "segment_model.rs")]
pub mod segment;
#[cfg_attr(any(loom, shuttle), path = "window_model.rs")]
mod window;
pub mod words;

pub use header::{Header, Stream};
pub use segment::{Access, ReadWord, Segment};
pub(crate) use window::Window;

use crate::sync::MODEL;

/// Granularity of header and data regions, on every machine: its pages may be larger (small in models, which pay for
/// every word).
pub const PAGE: usize = if MODEL { 64 } else { 4096 };

/// `value` rounded up to a multiple of `unit` (a power of two); None on overflow.
#[must_use]
pub fn round_up(value: usize, unit: usize) -> Option<usize> {
    debug_assert!(unit.is_power_of_two());
    Some(value.checked_add(unit - 1)? & !(unit - 1))
}
