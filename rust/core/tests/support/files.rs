//! Files from any bytes, loaded as saved replay buffers. Used by tests and by the fuzzer.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use rlz_core::replay::Replay;
use rlz_core::schema::{Dtype, Field};
use rlz_core::{Result, WorkerId};
use rustix::fs::MemfdFlags;

/// Rows of 64 bytes: files stay small.
pub(crate) fn buffer(lanes: usize) -> Replay {
    let fields = [Field::new("obs", Dtype::F32, &[5]).unwrap(), Field::new("reward", Dtype::F64, &[]).unwrap()];
    Replay::create(&fields, 12, lanes, 1).unwrap()
}

/// Load a file of these bytes.
pub(crate) fn load(replay: &Replay, bytes: &[u8]) -> Result<u64> {
    let fd: OwnedFd = rustix::fs::memfd_create("saved", MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(fd);
    file.write_all(bytes).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    replay.load(&[path], WorkerId::new(1).unwrap(), false, &mut || true)
}

/// What the fuzzer runs, and the tests on what it found: the bytes as they are, and with the length, hash and checksums
/// that belong to them. Into as many lanes as were saved, and into another number.
pub(crate) fn attack(buffers: &[Replay], bytes: &[u8]) {
    let mut repaired = bytes.to_vec();
    repair(&mut repaired);
    for replay in buffers {
        for bytes in [bytes, &repaired] {
            if let Err(error) = load(replay, bytes) {
                assert!(error.to_string().len() > 20);
            }
        }
    }
}

/// Make damage get behind the checksums, where the trailer says where the header is.
pub(crate) fn repair(bytes: &mut [u8]) {
    let total = bytes.len();
    let Some(trailer) = total.checked_sub(32) else { return };
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let put = |bytes: &mut [u8], at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    let header = word(bytes, trailer + 8);
    let Some(header) = usize::try_from(header).ok().filter(|at| *at <= trailer) else { return };
    if trailer - header >= 64 * 8 {
        put(bytes, header + 4 * 8, total as u64);
        let params = usize::try_from(word(bytes, header + 8 * 8)).unwrap_or(usize::MAX).min(54);
        let table = usize::try_from(word(bytes, header + 9 * 8)).unwrap_or(usize::MAX);
        let table = table.min(trailer - header - 64 * 8);
        let identity = [
            &(word(bytes, header + 8) >> 32).to_le_bytes()[..],
            &bytes[header + 16..header + 24],
            &bytes[header + 80..header + 80 + params * 8],
            &bytes[header + 512..header + 512 + table],
        ]
        .concat();
        let hash = identity
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        put(bytes, header + 3 * 8, hash);
    }
    let records = bytes.get(8..10).map_or(0, |length| 10 + usize::from(u16::from_le_bytes([length[0], length[1]])));
    let checksum = crc32fast::hash(&bytes[records.min(header)..header]);
    put(bytes, trailer, u64::from(checksum));
    let checksum = crc32fast::hash(&bytes[header..trailer + 16]);
    put(bytes, trailer + 16, u64::from(checksum));
    put(bytes, trailer + 24, u64::from_le_bytes(*b"rlz\0npy\x01"));
}
