//! Tests of the transport from outside: segments as hostile input, semantics of the streams, and what changes under
//! them.

mod changes;
#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod limiter;
mod replay;
