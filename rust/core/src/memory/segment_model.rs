//! Stand-in for [`Segment`](crate::memory::Segment) under a model checker: words on the heap, shared by the model's
//! threads.

#![allow(unsafe_code)] // the view of words as words that are only loaded

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::{PAGE, round_up};
use crate::sync::{AtomicU64, Ordering};

/// How a segment is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads and stores.
    ReadWrite,
    /// Loads only.
    ReadOnly,
}

impl Access {
    /// Models have no descriptors.
    pub fn of(_fd: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self::ReadWrite)
    }
}

/// A word that can be loaded, never stored to.
#[derive(Debug)]
#[repr(transparent)]
pub struct ReadWord(AtomicU64);

impl ReadWord {
    /// Atomic load.
    #[must_use]
    #[cfg_attr(loom, track_caller)] // the ordering stands at the caller
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// A load that no store may run beside: loom reports a race.
    #[cfg(loom)]
    #[must_use]
    pub fn load_alone(&self) -> u64 {
        self.0.load_alone()
    }
}

/// Shared words.
#[derive(Debug, Clone)]
pub struct Segment {
    words: Arc<[AtomicU64]>,
}

impl Segment {
    /// Words for `len` bytes, all zero.
    pub fn create(_name: &str, len: usize) -> Result<Self> {
        let len = round_up(len, PAGE).ok_or_else(|| Error::invalid("segment length", len, "a small model"))?;
        Ok(Self { words: (0..len / 8).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Models share one handle instead.
    pub fn attach(_fd: BorrowedFd<'_>, _access: Access) -> Result<Self> {
        Err(Error::invalid("attach", "a descriptor", "a handle shared by the threads of the model"))
    }

    /// Models share one handle instead.
    pub fn read_only_fd(&self) -> Result<OwnedFd> {
        Err(Error::invalid("read_only_fd", "a model", "a handle shared by the threads of the model"))
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len() * 8
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How it is mapped.
    #[must_use]
    pub fn access(&self) -> Access {
        Access::ReadWrite
    }

    /// Models do not fork.
    pub fn check_fork(&self, _stream: &'static str) -> Result<()> {
        Ok(())
    }

    /// `count` words from byte `offset`.
    pub fn words(&self, offset: usize, count: usize) -> Result<&[AtomicU64]> {
        let words = self.words.get(offset / 8..).and_then(|words| words.get(..count));
        words.ok_or_else(|| {
            Error::invalid("segment range", format!("{count} words at byte {offset}"), "words inside it")
        })
    }

    /// `count` words from byte `offset`, for loads only.
    pub fn read_words(&self, offset: usize, count: usize) -> Result<&[ReadWord]> {
        let words = self.words(offset, count)?;
        // SAFETY: `ReadWord` is a transparent wrapper.
        Ok(unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), count) })
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        unimplemented!("a model has no descriptors")
    }
}
