//! Headers of segments: any bytes, attached as everything.
#![no_main]

#[path = "../../core/tests/support/segments.rs"]
mod segments;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| segments::attack(bytes));
