//! Tests of the transport from outside: segments as hostile input, and semantics of the streams.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod limiter;
mod replay;
