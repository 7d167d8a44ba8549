//! Models of the protocols, checked by loom: every schedule of two or three threads with a bounded number of forced
//! switches, kills at every kill point, and each ordering taken away by itself. `make loom` runs them all; those that
//! are not ignored are part of `make test`.
#![cfg(loom)]

mod events;
mod inference;
mod limiter;
mod model;
mod parameters;
mod queue;
mod ring;
mod stats;
mod turns;
