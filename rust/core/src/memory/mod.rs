//! Shared memory: segments, their headers, racy word copies, and the futex.

pub mod futex;
pub mod header;
pub mod segment;
pub mod words;

pub use header::{Header, Stream};
pub use segment::{Access, ReadWord, Segment};

/// Granularity of header and data regions.
pub const PAGE: usize = 4096;

/// `value` rounded up to a multiple of `unit` (a power of two); None on overflow.
#[must_use]
pub fn round_up(value: usize, unit: usize) -> Option<usize> {
    debug_assert!(unit.is_power_of_two());
    Some(value.checked_add(unit - 1)? & !(unit - 1))
}
