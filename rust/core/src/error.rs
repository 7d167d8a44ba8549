//! The one error enum of the crate. Messages say what was given, what was expected, and how to fix it.

use std::io;

/// `Result` with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in the transport.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that cannot be used.
    #[error("{what}: given {given}, expected {expected}")]
    Invalid {
        /// Name of the argument.
        what: &'static str,
        /// The value, as text.
        given: String,
        /// What would be accepted, and how to get there.
        expected: String,
    },

    /// Two ends of a stream do not agree; `differences` has one line per item, both sides shown.
    #[error("the {stream} segment does not match (here: this process, there: the segment):\n{differences}")]
    LayoutMismatch {
        /// Kind of stream.
        stream: &'static str,
        /// One line per difference.
        differences: String,
    },

    /// A descriptor that is not a segment of the expected kind, or whose header is damaged.
    #[error("not a usable {stream} segment: {reason}")]
    BadSegment {
        /// Kind of stream that was expected.
        stream: &'static str,
        /// What is wrong with it, given and expected.
        reason: String,
    },

    /// A file that is not a whole saved replay buffer.
    #[error("{path} is not a usable saved replay buffer: {reason}")]
    BadFile {
        /// The file.
        path: String,
        /// What is wrong with it, given and expected.
        reason: String,
    },

    /// A saved replay buffer with rows of another layout; `differences` has one line per item, both sides shown.
    #[error("{path} does not fit (here: this buffer, there: the file):\n{differences}")]
    FileMismatch {
        /// The file.
        path: String,
        /// One line per difference.
        differences: String,
    },

    /// The system refused to read or write a file.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The system's answer.
        source: io::Error,
    },

    /// Shared memory of this size cannot be had.
    #[error(
        "cannot get {bytes} bytes ({:.1} MiB) of shared memory for {name}: {step} failed: {source}; \
         {fix}",
        *.bytes as f64 / (1024.0 * 1024.0)
    )]
    SharedMemory {
        /// Name of the segment.
        name: String,
        /// Size asked for.
        bytes: usize,
        /// System call or check that failed.
        step: &'static str,
        /// What to change.
        fix: &'static str,
        /// The system's answer.
        source: io::Error,
    },

    /// The caller no longer owns what it writes: it was declared dead and reaped.
    #[error(
        "worker {worker} no longer owns {what} (owner is now {owner}, 0 = nobody): it was declared dead and reaped; \
         a worker that is fenced off must end"
    )]
    LeaseLost {
        /// Lane or slot, as text.
        what: String,
        /// Worker that asked.
        worker: u64,
        /// Owner found.
        owner: u64,
    },

    /// A lane or slot that has a live owner was asked for.
    #[error("{what} is owned by worker {owner}, so worker {worker} cannot have it; reap or close that owner first")]
    Owned {
        /// Lane or slot, as text.
        what: String,
        /// Worker that asked.
        worker: u64,
        /// Owner found.
        owner: u64,
    },

    /// The stream was closed before or while the caller used it.
    #[error("the {stream} was closed")]
    Closed {
        /// Kind of stream.
        stream: &'static str,
    },

    /// A wait ran out of time.
    #[error("waited {seconds:.3} s for {what}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        seconds: f64,
    },

    /// The caller's check between two slices of a wait asked to end it (for instance a pending signal).
    #[error("the wait was interrupted")]
    Interrupted,

    /// Nothing can be drawn.
    #[error("{0}")]
    Empty(String),

    /// A number that is not finite where only finite ones may travel.
    #[error("{what} has a value that is not finite at flat index {index}; it was not published")]
    NonFinite {
        /// Name of the tensor.
        what: String,
        /// Flat index of the first such value.
        index: usize,
    },

    /// A policy's outputs make no choice.
    #[error("the policy's outputs for observation {row} are not finite, so there is nothing to choose by")]
    NoChoice {
        /// Row of the observation.
        row: usize,
    },

    /// A handle was used in a forked child, where its memory is not mapped.
    #[error(
        "this {stream} handle was made before a fork and cannot be used in the child; start processes with the spawn \
         method (multiprocessing.get_context(\"spawn\")) and attach there"
    )]
    Forked {
        /// Kind of stream.
        stream: &'static str,
    },

    /// A handle was opened read-only.
    #[error("this {what} was attached read-only; attach it writable to change it")]
    ReadOnly {
        /// What was attached.
        what: &'static str,
    },

    /// A system call failed where no better explanation is known.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Shorthand for [`Error::Invalid`].
    pub fn invalid(what: &'static str, given: impl ToString, expected: impl ToString) -> Self {
        Self::Invalid { what, given: given.to_string(), expected: expected.to_string() }
    }

    /// Shorthand for [`Error::System`].
    pub fn system(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { what, source: source.into() }
    }
}
