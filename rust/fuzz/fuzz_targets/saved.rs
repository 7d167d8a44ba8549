//! Saved replay buffers: any bytes, loaded as a file.
#![no_main]

#[path = "../../core/tests/support/files.rs"]
mod files;

use std::sync::OnceLock;

use rlz_core::replay::Replay;

static BUFFERS: OnceLock<[Replay; 2]> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let buffers = BUFFERS.get_or_init(|| [files::buffer(2), files::buffer(3)]);
    files::attack(buffers, bytes);
});
