//! Kill-safe shared-memory transport for reinforcement learning.
//!
//! Every stream lives in a sealed memfd that unrelated processes of one user map. A process may be killed with SIGKILL
//! at any instruction: nobody else blocks, reads a torn row, or leaks a cell for good. The means are few:
//!
//! - every state that takes several steps to change is one 64-bit word that names its owner, changed by one CAS;
//! - words that may race are relaxed `AtomicU64`s, checked by a stamp before and after (never plain or volatile reads);
//! - only the controller declares a worker dead, on proof, and then reaps that worker's cells;
//! - headers are parsed as hostile input, but attached peers are trusted: they run as the same user and may write.
//!
//! The crate knows nothing of Python. It targets Linux 5.14 or newer, little endian, 64 bit; the orderings for AArch64
//! are argued in comments but have not been run there.

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("rlz needs 64-bit little-endian Linux (x86-64 or aarch64); on Windows use WSL2");

pub mod dense;
mod elementary;
pub mod error;
pub mod inference;
#[cfg(not(any(loom, shuttle, feature = "kill-points")))]
mod kill;
#[cfg(any(loom, shuttle, feature = "kill-points"))]
pub mod kill;
pub mod limiter;
pub mod memory;
pub mod owner;
pub mod parameters;
pub mod phases;
pub mod policy;
pub mod queue;
pub mod replay;
pub mod schema;
pub mod stats;
pub mod sync;
pub mod wait;

pub use error::{Error, Result};
pub use owner::WorkerId;
