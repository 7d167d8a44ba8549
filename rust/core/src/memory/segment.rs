//! A sealed memfd, mapped.

#![allow(unsafe_code)] // turns a mapping into atomic words; nothing else does

use std::ffi::CString;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use crate::error::{Error, Result};
use crate::memory::mapping::Mapping;
use crate::memory::{PAGE, available, round_up};
use crate::owner::ForkGuard;
use crate::sync::{AtomicU64, Ordering};

/// Bytes from which on huge pages make a difference: less fits into what the processor remembers of small ones.
const HUGE_FROM: usize = 16 << 20;

/// How a segment is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads and stores.
    ReadWrite,
    /// Loads only; also works through a descriptor that was opened read-only.
    ReadOnly,
}

impl Access {
    /// What a descriptor was opened for.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self> {
        let flags = rustix::fs::fcntl_getfl(fd).map_err(|e| Error::system("fcntl(GETFL) of a segment", e))?;
        Ok(if flags & OFlags::RWMODE == OFlags::RDONLY { Self::ReadOnly } else { Self::ReadWrite })
    }
}

/// A word of a mapping that may be read-only: it can be loaded, never stored to.
#[derive(Debug)]
#[repr(transparent)]
pub struct ReadWord(AtomicU64);

impl ReadWord {
    /// Atomic load.
    #[inline]
    #[must_use]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
}

/// Shared memory without a name: it is gone with the last process that holds it.
///
/// The size is sealed, so no peer can make an access fault by shrinking it. Memory is reached only as atomic words.
#[derive(Debug)]
pub struct Segment {
    map: ManuallyDrop<Arc<Mapping>>,
    fd: OwnedFd,
    access: Access,
    guard: ForkGuard,
}

impl Segment {
    /// Create, allocate and seal a segment of `len` bytes (rounded up to whole pages), all zero.
    ///
    /// `name` is seen in `/proc/<pid>/maps` only. Pages are allocated now, so that too little memory is an error here
    /// and not a SIGBUS in the middle of a run.
    pub fn create(name: &str, len: usize) -> Result<Self> {
        let len = round_up(len, PAGE)
            .filter(|len| *len > 0 && isize::try_from(*len).is_ok())
            .ok_or_else(|| Error::invalid("segment length", len, "more than 0 and less than 2^63 bytes"))?;
        let fail = |step, source: io::Error| Error::SharedMemory {
            name: name.to_owned(),
            bytes: len,
            step,
            fix: "use a smaller buffer, or give the process (or its container) more memory",
            source,
        };
        let label = CString::new(format!("rlz-{name}"))
            .map_err(|_| Error::invalid("segment name", format!("{name:?}"), "text without NUL bytes"))?;
        // Allocating more than there is does not fail: the kernel kills processes until it succeeds.
        check_available(len, available::limits(Path::new("/")).into_iter().next())
            .map_err(|e| fail("the look at free memory", e))?;
        let fd = rustix::fs::memfd_create(&label, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| fail("memfd_create", e.into()))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| fail("ftruncate", e.into()))?;

        let map = Arc::new(Mapping::new(fd.as_fd(), len, true).map_err(|e| fail("mmap", e))?);
        map.populate().map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => Error::system("madvise(POPULATE_WRITE) is unknown: rlz needs Linux 5.14 or newer", e),
            _ => fail("madvise(POPULATE_WRITE)", e),
        })?;
        if len >= HUGE_FROM {
            map.collapse();
        }
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| fail("fcntl(ADD_SEALS)", e.into()))?;
        let map = ManuallyDrop::new(map);
        Ok(Self { map, fd, access: Access::ReadWrite, guard: ForkGuard::new() })
    }

    /// Map the segment behind a descriptor, which is duplicated (close-on-exec) and stays the caller's.
    pub fn attach(fd: BorrowedFd<'_>, access: Access) -> Result<Self> {
        let bad = |reason: String| Error::BadSegment { stream: "shared-memory", reason };
        let fd =
            rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|e| bad(format!("its descriptor is not open ({e})")))?;
        let seals = rustix::fs::fcntl_get_seals(&fd)
            .map_err(|e| bad(format!("descriptor {} is not a memfd that can be sealed ({e})", fd.as_raw_fd())))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad(format!("its size is not sealed (seals {seals:?}): a peer could cut it under our feet")));
        }
        let size = rustix::fs::fstat(&fd).map_err(|e| Error::system("fstat of a segment", e))?.st_size;
        let len = usize::try_from(size)
            .ok()
            .filter(|len| *len >= PAGE && len.is_multiple_of(8))
            .ok_or_else(|| bad(format!("it has {size} bytes, expected a multiple of 8 and at least {PAGE}")))?;
        let map = Mapping::new(fd.as_fd(), len, access == Access::ReadWrite)
            .map_err(|e| bad(format!("mapping its {len} bytes {access:?} failed ({e})")))?;
        Ok(Self { map: ManuallyDrop::new(Arc::new(map)), fd, access, guard: ForkGuard::new() })
    }

    /// A second descriptor of the same memory that can be mapped read-only but not written.
    pub fn read_only_fd(&self) -> Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::system("opening a segment read-only through /proc/self/fd (is /proc mounted?)", e))
    }

    /// Bytes mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Never: a segment has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// How it is mapped.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// `Error::Forked` in a child forked after this segment was mapped.
    #[inline]
    pub fn check_fork(&self, stream: &'static str) -> Result<()> {
        self.guard.check(stream)
    }

    /// `count` words from byte `offset` (a multiple of 8).
    ///
    /// Fails beyond the end and for a read-only mapping. Do not call it in a forked child: check
    /// [`Segment::check_fork`] where a handle enters the library.
    pub fn words(&self, offset: usize, count: usize) -> Result<&[AtomicU64]> {
        if self.access == Access::ReadOnly {
            return Err(Error::ReadOnly { what: "segment" });
        }
        let start = self.bounds(offset, count)?;
        // SAFETY: `bounds` says that the range lies in the mapping and is aligned to 8. The mapping is readable and
        // writable, lives as long as `self` (which the slice borrows), and cannot shrink (sealed). It is reached
        // only as AtomicU64 in every process, and any bit pattern is a valid u64.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), count) })
    }

    /// `count` words from byte `offset` (a multiple of 8), for loads only; works for every mapping.
    pub fn read_words(&self, offset: usize, count: usize) -> Result<&[ReadWord]> {
        let start = self.bounds(offset, count)?;
        // SAFETY: as in `words`; `ReadWord` is a transparent wrapper that only loads, and a relaxed or acquire load of
        // eight aligned bytes is a plain load instruction on the supported machines, which read-only pages allow.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<ReadWord>(), count) })
    }

    fn bounds(&self, offset: usize, count: usize) -> Result<*const u8> {
        let end = count.checked_mul(8).and_then(|bytes| bytes.checked_add(offset));
        match end {
            Some(end) if end <= self.map.len() && offset.is_multiple_of(8) => {
                Ok(self.map.start().cast_const().wrapping_add(offset))
            }
            _ => Err(Error::invalid(
                "segment range",
                format!("{count} words at byte {offset}"),
                format!("an offset that is a multiple of 8 and an end within {} bytes", self.map.len()),
            )),
        }
    }
}

/// An error when `len` bytes are more than what is left; without a limit that can be seen none.
fn check_available(len: usize, left: Option<available::Left>) -> io::Result<()> {
    match left {
        Some((left, name)) if len as u64 > left => {
            let left = format!("{:.1} MiB are available: {name}", left as f64 / (1024.0 * 1024.0));
            Err(io::Error::new(io::ErrorKind::OutOfMemory, left))
        }
        _ => Ok(()),
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // In a forked child the memory was never mapped (DONTFORK), and by now something else may be at that address.
        if self.guard.check("").is_ok() {
            // SAFETY: dropped here only, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_the_same_words() {
        let a = Segment::create("test", 3 * PAGE - 5).unwrap();
        assert_eq!(a.len(), 3 * PAGE);
        let b = Segment::attach(a.as_fd(), Access::ReadWrite).unwrap();
        a.words(PAGE, 2).unwrap()[1].store(7, Ordering::Relaxed);
        assert_eq!(b.words(PAGE + 8, 1).unwrap()[0].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn ranges_are_checked() {
        let a = Segment::create("test", PAGE).unwrap();
        assert!(a.words(0, PAGE / 8).is_ok());
        for (offset, count) in [(8, PAGE / 8), (4, 1), (PAGE, 1), (0, usize::MAX), (usize::MAX - 7, 1)] {
            assert!(a.words(offset, count).is_err(), "{offset} {count}");
        }
    }

    #[test]
    fn read_only_descriptor_cannot_be_written() {
        let a = Segment::create("test", PAGE).unwrap();
        a.words(0, 1).unwrap()[0].store(9, Ordering::Relaxed);
        let fd = a.read_only_fd().unwrap();
        let b = Segment::attach(fd.as_fd(), Access::ReadOnly).unwrap();
        assert_eq!(b.read_words(0, 1).unwrap()[0].load(Ordering::Relaxed), 9);
        assert!(matches!(b.words(0, 1), Err(Error::ReadOnly { .. })));
        assert!(Segment::attach(fd.as_fd(), Access::ReadWrite).is_err());
    }

    #[test]
    fn unsealed_or_foreign_descriptors_are_refused() {
        let plain = tempfile::tempfile().unwrap();
        let message = Segment::attach(plain.as_fd(), Access::ReadWrite).unwrap_err().to_string();
        assert!(message.contains("seal"), "{message}");
        let fd = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
        assert!(Segment::attach(fd.as_fd(), Access::ReadWrite).unwrap_err().to_string().contains("not sealed"));
    }

    #[test]
    fn size_is_sealed() {
        let a = Segment::create("test", PAGE).unwrap();
        assert!(rustix::fs::ftruncate(a.as_fd(), 0).is_err());
        assert!(rustix::fs::ftruncate(a.as_fd(), 2 * PAGE as u64).is_err());
    }

    #[test]
    fn dropping_a_handle_in_a_forked_child_unmaps_nothing() {
        let segment = Segment::create("test", PAGE).unwrap();
        let address = segment.map.start();
        // SAFETY: the child only maps, drops, writes to what it mapped, and leaves.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: NOREPLACE: succeeds only where nothing is mapped, as DONTFORK promises.
            unsafe {
                let other = libc::mmap(address.cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE, private, -1, 0);
                drop(segment);
                other.cast::<u8>().write_volatile(1); // a fault if it failed or the drop unmapped it
                libc::_exit(i32::from(other != address.cast()));
            }
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writes; `pid` is our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }

    #[test]
    fn more_than_is_free_is_refused_before_it_is_allocated() {
        let left = || Some((2 << 20, "memory limit of the container or cgroup (/pod: 2 MiB)".to_owned()));
        check_available(2 << 20, left()).unwrap();
        let error = check_available((2 << 20) + 1, left()).unwrap_err();
        assert!(
            error.to_string().contains("2.0 MiB are available: memory limit of the container or cgroup (/pod"),
            "{error}"
        );
        check_available(usize::MAX, None).unwrap();
        let message = Segment::create("replay", 1 << 60).unwrap_err().to_string();
        assert!(message.contains("MiB are available"), "{message}");
    }

    #[test]
    fn too_much_memory_is_a_clear_error() {
        let message = Segment::create("replay", 1 << 60).unwrap_err().to_string();
        assert!(message.contains("replay") && message.contains("MiB") && message.contains("smaller"), "{message}");
        assert!(Segment::create("x", 0).is_err());
        assert!(Segment::create("x", usize::MAX).is_err());
    }
}
