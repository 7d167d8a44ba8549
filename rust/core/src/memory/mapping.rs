//! A shared mapping of a file, placed so that the kernel can back it with huge pages.

#![allow(unsafe_code)] // system calls on address ranges that this file owns

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size of a huge page (x86-64, and aarch64 with 4 KiB pages).
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Owned address range that shows a file from its beginning.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address range of the process, not of a thread; `Segment` says how the memory behind it is reached.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods that take `&self` only advise the kernel.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map the first `len` bytes (whole pages, above 0) of a file at a multiple of [`HUGE_PAGE`], not for children.
    pub(super) fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // The kernel places a mapping at any page. So an aligned range is cut out of a larger one that is reserved first.
        let reserved = len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new anonymous range, wherever there is room.
        let hull = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let before = hull.align_offset(HUGE_PAGE);
        // SAFETY: both ends lie within the range just reserved, which nobody else knows.
        let start = unsafe {
            let start = hull.byte_add(before);
            if before > 0 {
                rustix::mm::munmap(hull, before)?;
            }
            rustix::mm::munmap(start.byte_add(len), HUGE_PAGE - before)?;
            start
        };
        // From here on the range is given back whatever fails.
        let mapping = Self { start: NonNull::new(start.cast()).expect("a mapping is not at 0"), len };
        // SAFETY: maps over the reserved range, which nobody looks at yet.
        unsafe { rustix::mm::mmap(start, len, protection, MapFlags::SHARED | MapFlags::FIXED, fd, 0)? };
        mapping.advise(Advice::LinuxDontFork)?;
        Ok(mapping)
    }

    /// First byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Allocate every page now. Needs Linux 5.14.
    pub(super) fn populate(&self) -> io::Result<()> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    /// Begin to move what is allocated to huge pages, where whole ones fit; a thread does it.
    ///
    /// Random rows of a large buffer cost most of their time in looking addresses up: with pages of 4 KiB, several times as
    /// much as with these. Asking for them beforehand has no effect on shared memory unless the administrator allows it
    /// (`shmem_enabled`), asking for a collapse has (Linux 6.1). It takes some 2 ms for each MiB, which nobody should wait for.
    /// Whoever touches the page that is being moved waits for it, so the thread's priority is not lowered: on a busy machine
    /// they would wait for long.
    pub(super) fn collapse(self: &Arc<Self>) {
        let mapping = Arc::clone(self);
        // Without a thread nothing is lost but speed.
        let _ = std::thread::Builder::new().name("rlz-huge-pages".to_owned()).spawn(move || {
            for page in 0..mapping.len / HUGE_PAGE {
                if Arc::strong_count(&mapping) == 1 {
                    return; // closed meanwhile
                }
                // SAFETY: a range of this mapping, whose content stays. A page that is busy stays as it is.
                unsafe {
                    let start = mapping.start().byte_add(page * HUGE_PAGE);
                    let done = libc::madvise(start.cast(), HUGE_PAGE, libc::MADV_COLLAPSE);
                    if done != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
                        return; // an older kernel
                    }
                }
            }
        });
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: a range of this mapping; neither advice that is given here takes pages away.
        Ok(unsafe { rustix::mm::madvise(self.start().cast(), self.len, advice) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own, and whoever borrowed its memory borrowed it.
        let _ = unsafe { rustix::mm::munmap(self.start().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Address space of this process, in pages.
    fn reserved() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_refused_mapping_leaves_no_range_behind() {
        let (tries, len) = (200, 64 << 20);
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, len as u64).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let read_only = std::fs::File::open(path).unwrap();
        let before = reserved();
        for _ in 0..tries {
            assert!(Mapping::new(read_only.as_fd(), len, true).is_err(), "it may not be written");
        }
        // Tests beside this one map things too, but not half as much.
        assert!(reserved() < before + (tries * len / 2 / 4096) as u64);
    }

    #[test]
    fn huge_pages_show_the_same_bytes() {
        let len = 3 * HUGE_PAGE + 4096;
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, len as u64).unwrap();
        let map = Arc::new(Mapping::new(fd.as_fd(), len, true).unwrap());
        let other = Mapping::new(fd.as_fd(), len, false).unwrap();
        assert_eq!((map.start().align_offset(HUGE_PAGE), other.start().align_offset(HUGE_PAGE)), (0, 0));
        map.populate().unwrap();
        let at = |byte: usize| map.start().wrapping_add(byte);
        // SAFETY: bytes of the mapping, which this thread alone writes.
        (0..len).step_by(4096).for_each(|byte| unsafe { at(byte).write_volatile((byte >> 12) as u8) });
        map.collapse();
        let start = Instant::now();
        while Arc::strong_count(&map) > 1 {
            assert!(start.elapsed() < Duration::from_secs(60), "the thread goes on for ever");
            std::thread::yield_now();
        }
        for byte in (0..len).step_by(4096) {
            // SAFETY: bytes of a mapping that nobody writes any more.
            assert_eq!(unsafe { other.start().wrapping_add(byte).read_volatile() }, (byte >> 12) as u8);
        }
    }
}
