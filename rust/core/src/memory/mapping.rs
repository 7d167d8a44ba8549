//! A shared mapping of a file, placed so that the kernel can back it with huge pages.

#![allow(unsafe_code)] // system calls on address ranges that this file owns

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::memory::round_up;

/// Size of a huge page (x86-64, and aarch64 with 4 KiB pages).
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Owned address range that shows a file from its beginning.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Bytes of address range, whole pages.
    range: usize,
}

// SAFETY: it is an address range of the process, not of a thread; `Segment` says how the memory behind it is reached.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods that take `&self` only advise the kernel.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map the first `len` bytes (above 0) of a file at a multiple of [`HUGE_PAGE`], not for children.
    pub(super) fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        Self::place(fd, len, writable, rustix::param::page_size())
    }

    /// [`Mapping::new`] on a machine with pages of `page` bytes: 4 KiB on x86-64, up to 64 on aarch64.
    fn place(fd: BorrowedFd<'_>, len: usize, writable: bool, page: usize) -> io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // The kernel takes ranges of whole pages only; the last one may reach beyond the file's end.
        let whole = round_up(len, page).ok_or(io::ErrorKind::OutOfMemory)?;
        // The kernel places a mapping at any page. So an aligned range is cut out of a larger one that is reserved
        // first.
        let reserved = whole.checked_add(HUGE_PAGE.max(page)).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new anonymous range, wherever there is room.
        let hull = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        // From here on all of it is given back whatever fails.
        let start = NonNull::new(hull.cast()).expect("a mapping is not at 0");
        let mut mapping = Self { start, len, range: reserved };
        let before = hull.align_offset(HUGE_PAGE);
        let behind = reserved - before - whole;
        // SAFETY: the parts lie within the range just reserved, which nobody else knows; the file is mapped over its
        // middle.
        unsafe {
            if before > 0 {
                rustix::mm::munmap(hull, before)?;
                mapping.start = mapping.start.byte_add(before);
                mapping.range -= before;
            }
            if behind > 0 {
                rustix::mm::munmap(mapping.start.as_ptr().byte_add(whole).cast(), behind)?;
            }
            mapping.range = whole;
            rustix::mm::mmap(
                mapping.start.as_ptr().cast(),
                len,
                protection,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                0,
            )?;
        }
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
    /// Random rows of a large buffer cost most of their time in looking addresses up: with pages of 4 KiB, several
    /// times as much as with these. Asking for them beforehand has no effect on shared memory unless the administrator
    /// allows it (`shmem_enabled`), asking for a collapse has (Linux 6.1). It takes some 2 ms for each MiB, which
    /// nobody should wait for. Whoever touches the page that is being moved waits for it, so the thread's priority is
    /// not lowered: on a busy machine they would wait for long.
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
        let _ = unsafe { rustix::mm::munmap(self.start().cast(), self.range) };
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
    fn any_length_and_any_size_of_pages() {
        for len in [4096 + 8, 4096, 3 * 4096, HUGE_PAGE, HUGE_PAGE + 5 * 4096 + 8] {
            let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, len as u64).unwrap();
            let before = reserved();
            for page in [4096, 16_384, 65_536] {
                for _ in 0..200 {
                    let map = Mapping::place(fd.as_fd(), len, true, page).unwrap();
                    assert_eq!((map.len(), map.start().align_offset(HUGE_PAGE)), (len, 0));
                    let last = map.start().wrapping_add(len - 1);
                    // SAFETY: the last byte of the mapping, which this thread alone uses.
                    unsafe {
                        last.write_volatile(7);
                        assert_eq!(last.read_volatile(), 7);
                    }
                }
            }
            // 600 hulls of more than 2 MiB; tests beside this one map things too, but not half as much.
            assert!(reserved() < before + (300 * HUGE_PAGE / 4096) as u64, "{len}");
        }
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
