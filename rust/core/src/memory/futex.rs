//! Shared futex on the low half of a 64-bit word.

#![allow(unsafe_code)] // two system calls

use std::time::Duration;

use crate::sync::AtomicU64;

/// Sleep while the low 32 bits of `word` equal `expected`, at most `timeout` (monotonic clock).
///
/// Returns on a wake, a time-out, a signal, or when the value differs already: callers re-check in a loop. The futex is
/// not PRIVATE: the other side is another process. The kernel compares the four bytes at the word's address, which are
/// the low half on a little-endian machine.
#[allow(clippy::cast_possible_wrap)] // nanoseconds are below 10^9
pub fn wait(word: &AtomicU64, expected: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    };
    // SAFETY: the address is valid and 4-byte aligned for the whole call; the kernel only loads from it. `timeout`
    // lives across the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr().cast::<u32>(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
            std::ptr::null::<u32>(),
            0u32,
        );
    }
}

/// Wake everyone who sleeps on `word`.
pub fn wake_all(word: &AtomicU64) {
    // SAFETY: the address is valid; FUTEX_WAKE does not access the memory behind it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr().cast::<u32>(),
            libc::FUTEX_WAKE,
            i32::MAX,
            std::ptr::null::<libc::timespec>(),
            std::ptr::null::<u32>(),
            0u32,
        );
    }
}
