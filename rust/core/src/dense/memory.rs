//! Memory that several threads write parts of.

#![allow(unsafe_code)] // Hands out parts of one exclusive borrow; whoever asks warrants that they do not overlap.

use std::marker::PhantomData;

/// An exclusive slice that the items of one parallel phase share, each with parts of its own.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    at: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for an exclusive borrow of plain numbers; the parts are kept apart by `part`'s contract.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(super) fn new(slice: &'a mut [f32]) -> Self {
        Self { at: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// `len` numbers from `start` on, to write.
    ///
    /// # Safety
    /// While the part is in use, nobody else uses a part that overlaps it.
    #[allow(clippy::mut_from_ref)] // That is what it is for.
    pub(super) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [f32] {
        assert!(start <= self.len && len <= self.len - start, "part {start}+{len} of {}", self.len);
        // SAFETY: inside the borrow by the assertion; not shared by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(start), len) }
    }

    /// `len` numbers from `start` on, to read.
    ///
    /// # Safety
    /// While the part is in use, nobody writes into it.
    pub(super) unsafe fn read(&self, start: usize, len: usize) -> &'a [f32] {
        // SAFETY: a part that is only read may overlap others that are.
        unsafe { self.part(start, len) }
    }
}

/// Sixteen numbers on a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Numbers that begin on a cache line. Grows when asked for more and keeps the memory; contents are whatever they were.
#[derive(Default)]
pub(super) struct Buffer(Vec<Line>);

impl Buffer {
    pub(super) fn take(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; 16]));
        }
        // SAFETY: Line is repr(C), sixteen f32 without padding; the exclusive borrow is passed on.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}
