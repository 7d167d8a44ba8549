//! Stand-in for a window under a model checker: models show no memory.

use std::io;
use std::os::fd::BorrowedFd;

/// Shows nothing.
#[derive(Debug)]
pub(crate) struct Window;

impl Window {
    /// Models have no descriptors.
    pub(crate) fn new(_fd: BorrowedFd<'_>, _offset: usize, _len: usize, _writable: bool) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Never called.
    pub(crate) fn show(&self) -> *mut u8 {
        std::ptr::null_mut()
    }

    /// Never called.
    pub(crate) fn hide(&self) {}

    /// Never called.
    pub(crate) fn detach(&self) -> io::Result<()> {
        Ok(())
    }
}
