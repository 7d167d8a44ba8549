//! A view of shared memory that can outlive its right to it.
//!
//! Whoever is shown the content of a slot (an array in Python, and arrays derived from it) may keep the addresses for
//! longer than the slot. So a slot is shown through a mapping of its own, a *window*. When the slot is given back while
//! addresses are still in use, the window is [detached](Window::detach): private memory with the same content takes its
//! place at the same addresses. From then on nobody sees through it, and the slot is as free as if nobody had looked.
//!
//! A forked child has no shared memory of ours. What was shown there before the fork becomes private in the same way.

#![allow(unsafe_code)] // system calls on address ranges that a window owns, and what is registered with the C library

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::owner::ForkGuard;

/// Some bytes of a file at addresses of their own.
#[derive(Debug)]
pub(crate) struct Window {
    /// Whole pages.
    start: NonNull<u8>,
    pages: usize,
    /// The bytes that are shown, from the start.
    skip: usize,
    len: usize,
    guard: ForkGuard,
    /// Whether addresses of it were given out: then a forked child has it, too.
    shown: Mutex<bool>,
}

// SAFETY: an address range of the process, not of a thread; who reads and writes it is the business of its users.
unsafe impl Send for Window {}
// SAFETY: as above; the methods change the mapping as the kernel does, at once for all threads.
unsafe impl Sync for Window {}

impl Window {
    /// Show `len` bytes (above 0) of the file from `offset` on.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, writable: bool) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let skip = offset % page;
        let pages = (skip + len).next_multiple_of(page);
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // POPULATE: the memory is there, and one call is cheaper than a fault for each page.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new range, wherever there is room.
        let start = unsafe { rustix::mm::mmap(null_mut(), pages, protection, flags, fd, (offset - skip) as u64)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let window = Self { start, pages, skip, len, guard: ForkGuard::new(), shown: Mutex::new(false) };
        // SAFETY: the range was just made.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), pages, Advice::LinuxDontFork)? };
        Ok(window)
    }

    /// The first byte that is shown. It stays readable for as long as the window lives, here and in forked children.
    pub(crate) fn show(&self) -> *mut u8 {
        let mut shown = lock(&self.shown);
        if !*shown {
            *shown = true;
            register(self.range());
        }
        self.start.as_ptr().wrapping_add(self.skip)
    }

    /// Nobody has addresses of it any more.
    pub(crate) fn hide(&self) {
        if self.guard.check("").is_ok() && std::mem::take(&mut *lock(&self.shown)) {
            unregister(self.range());
        }
    }

    /// Put private memory with the same content in its place.
    ///
    /// Call it while the bytes are still the caller's. Threads that read or write meanwhile are not disturbed; what
    /// they write goes to the file before and to the private memory after.
    pub(crate) fn detach(&self) -> io::Result<()> {
        let copy = private_copy(self.range())?;
        // SAFETY: `copy` is a range that nobody else knows, as long as this one, which is ours.
        unsafe { put_in_place(copy, self.range()) }?;
        self.hide(); // private memory comes to a forked child by itself
        // Drop must know it for its own in a child, too.
        *lock(&self.shown) = true;
        Ok(())
    }

    fn range(&self) -> Range {
        Range { start: self.start.as_ptr() as usize, pages: self.pages, skip: self.skip, len: self.len }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let shown = *lock(&self.shown);
        if self.guard.check("").is_ok() {
            unregister(self.range());
        } else if !shown {
            return; // a forked child does not have it, and something else may be at that address by now
        }
        // SAFETY: the range is this window's own, and nobody has addresses of it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.pages) };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Addresses of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    start: usize,
    pages: usize,
    skip: usize,
    len: usize,
}

/// Private memory with the content of a range that is mapped and, by the protocol, written by the caller's process
/// only.
fn private_copy(range: Range) -> io::Result<*mut u8> {
    let Range { start, pages, skip, len } = range;
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new range, wherever there is room.
    let copy = unsafe { rustix::mm::mmap_anonymous(null_mut(), pages, ProtFlags::READ | ProtFlags::WRITE, flags)? }
        .cast::<u8>();
    // SAFETY: both ranges are mapped and `skip + len` bytes long at least; one is new. Threads of Python may write to
    // the other one meanwhile: then the copy has old or new bytes, as with any copy that lets go of the GIL.
    unsafe { std::ptr::copy_nonoverlapping((start + skip) as *const u8, copy.add(skip), len) };
    Ok(copy)
}

/// Move `copy` onto a range; what was mapped there is gone.
///
/// # Safety
/// `copy` is a mapping of the range's length that nobody knows, the range the caller's to replace.
unsafe fn put_in_place(copy: *mut u8, range: Range) -> io::Result<()> {
    // SAFETY: as the caller says. The kernel moves it at once: a thread that accesses the range meanwhile waits.
    let moved = unsafe {
        let to = range.start as *mut std::ffi::c_void;
        rustix::mm::mremap_fixed(copy.cast(), range.pages, range.pages, MremapFlags::MAYMOVE, to)
    };
    if let Err(error) = moved {
        // SAFETY: still where it was.
        let _ = unsafe { rustix::mm::munmap(copy.cast(), range.pages) };
        return Err(error.into());
    }
    Ok(())
}

/// Windows that are shown and not detached: a forked child gets a copy of each.
static SHOWN: Mutex<Vec<Range>> = Mutex::new(Vec::new());

/// What the thread that forks holds meanwhile: no other one shows, hides or detaches.
struct Forking {
    shown: MutexGuard<'static, Vec<Range>>,
    copies: Vec<(*mut u8, Range)>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

fn register(range: Range) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: functions of static lifetime. Without memory for them children have nothing at these addresses.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    lock(&SHOWN).push(range);
}

fn unregister(range: Range) {
    let mut shown = lock(&SHOWN);
    if let Some(at) = shown.iter().position(|other| *other == range) {
        shown.swap_remove(at);
    }
}

/// The copies are made here, while the slots are known to be ours: in the child they might have been given back.
extern "C" fn before_fork() {
    let shown = lock(&SHOWN);
    let copies = shown.iter().filter_map(|range| Some((private_copy(*range).ok()?, *range))).collect();
    FORKING.with_borrow_mut(|forking| *forking = Some(Forking { shown, copies }));
}

extern "C" fn in_parent() {
    let Some(Forking { shown, copies }) = FORKING.take() else { return };
    for (copy, range) in copies {
        // SAFETY: made by `before_fork`, and known to nobody.
        let _ = unsafe { rustix::mm::munmap(copy.cast(), range.pages) };
    }
    drop(shown);
}

extern "C" fn in_child() {
    let Some(Forking { mut shown, mut copies }) = FORKING.take() else { return };
    for (copy, range) in copies.drain(..) {
        // SAFETY: nothing is mapped at the range in a child (DONTFORK), and its addresses are the window's.
        let _ = unsafe { put_in_place(copy, range) };
    }
    shown.clear(); // from here on they are memory like any other
    std::mem::forget(copies); // the allocator's locks may be another thread's, which is not here
    drop(shown);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::sync::{AtomicBool, Ordering};

    /// A file of `len` bytes, each its offset (modulo 251).
    fn file(len: usize) -> std::fs::File {
        use std::io::Write;
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(fd);
        file.write_all(&content(0, len)).unwrap();
        file
    }

    #[allow(clippy::cast_possible_truncation)]
    fn content(from: usize, len: usize) -> Vec<u8> {
        (from..from + len).map(|byte| (byte % 251) as u8).collect()
    }

    fn bytes(at: *mut u8, len: usize) -> Vec<u8> {
        // SAFETY: `len` bytes that a window shows and nobody writes.
        unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
    }

    fn read(file: &std::fs::File, offset: usize, len: usize) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut found = vec![0; len];
        file.read_exact_at(&mut found, offset as u64).unwrap();
        found
    }

    #[test]
    fn a_detached_window_keeps_its_content_at_its_address_and_writes_to_nobody() {
        let file = file(40_000);
        for (offset, len) in [(0, 64), (64, 64), (4_000, 200), (4_096, 4_096), (4_160, 30_016)] {
            let window = Window::new(file.as_fd(), offset, len, true).unwrap();
            let at = window.show();
            assert_eq!(bytes(at, len), content(offset, len));
            // SAFETY: a byte of the window; nobody else uses it.
            unsafe { at.write_volatile(7) };
            assert_eq!(read(&file, offset, 1), [7], "shared before");
            window.detach().unwrap();
            assert_eq!(bytes(at, len)[1..], content(offset, len)[1..]);
            // SAFETY: as above.
            unsafe { at.write_volatile(8) };
            assert_eq!((read(&file, offset, 1), bytes(at, 1)), (vec![7], vec![8]), "private after");
            drop(window);
            use std::os::unix::fs::FileExt;
            file.write_all_at(&content(offset, 1), offset as u64).unwrap();
        }
        let window = Window::new(file.as_fd(), 0, 64, false).unwrap();
        let at = window.show();
        window.detach().unwrap();
        assert_eq!(bytes(at, 64), content(0, 64), "of a reader, too");
    }

    #[test]
    fn threads_that_look_meanwhile_see_the_content() {
        let file = file(300_000);
        let window = Window::new(file.as_fd(), 100, 299_000, true).unwrap();
        let at = window.show() as usize;
        let expected = content(100, 299_000);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let look = || {
                let mut looks = 0;
                while !done.load(Ordering::Relaxed) || looks == 0 {
                    assert!(bytes(at as *mut u8, 299_000) == expected);
                    looks += 1;
                }
            };
            let threads = [scope.spawn(look), scope.spawn(look)];
            for _ in 0..50 {
                window.detach().unwrap();
            }
            done.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn a_forked_child_has_what_was_shown_as_its_own() {
        let file = file(20_000);
        let shown = Window::new(file.as_fd(), 5_000, 9_000, true).unwrap();
        let detached = Window::new(file.as_fd(), 0, 64, true).unwrap();
        let (at, other) = (shown.show(), detached.show());
        detached.detach().unwrap();
        let hidden = Window::new(file.as_fd(), 64, 64, true).unwrap();
        let expected = content(5_000, 9_000);
        // SAFETY: the child reads, writes and unmaps what is its own, and leaves.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: windows that are alive; `_exit` runs nothing.
            unsafe {
                let same = std::slice::from_raw_parts(at, 9_000) == expected && other.add(3).read_volatile() == 3;
                at.write_volatile(99);
                drop((shown, detached, hidden));
                libc::_exit(i32::from(!same));
            }
        }
        let mut status = -1;
        // SAFETY: `status` is valid for writes; `pid` is our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert_eq!(bytes(at, 9_000), expected, "the parent's is as it was");
        // SAFETY: a byte of the window.
        unsafe { at.write_volatile(1) };
        assert_eq!(read(&file, 5_000, 1), [1], "and still shared");
    }
}
