//! Saved replay buffers: read back as they were; damaged and hostile files are errors, never a panic.
#![cfg(not(loom))]

#[path = "support/files.rs"]
mod files;

use files::{attack, buffer, load, repair};
use proptest::prelude::*;
use rlz_core::replay::Replay;
use rlz_core::{Error, WorkerId};

/// Bytes of a whole file.
fn save(replay: &Replay) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved.npy");
    replay.save(&path, None, &mut || true).unwrap();
    std::fs::read(path).unwrap()
}

/// Lanes with so many rows; each word of a row is its ticket.
fn filled(counts: &[u64]) -> Replay {
    let replay = buffer(counts.len());
    let lanes: Vec<_> = (0..counts.len()).collect();
    let mut writer = replay.writer(&lanes, WorkerId::new(2).unwrap()).unwrap();
    for (lane, count) in counts.iter().enumerate() {
        for ticket in 1..=*count {
            writer.append_packed(lane, &[ticket; 8], 0, 0).unwrap();
        }
    }
    replay
}

fn tickets(replay: &Replay, lane: usize) -> Vec<u64> {
    let count = usize::try_from(replay.committed().unwrap()[lane]).unwrap();
    let (mut rows, mut meta) = (vec![0; count * 8], vec![0; count]);
    assert_eq!(replay.read_rows(lane, 1, &mut rows, &mut meta).unwrap(), count);
    rows.chunks(8).map(|row| row[0]).collect()
}

#[test]
fn rows_come_back() {
    let bytes = save(&filled(&[4, 2]));
    let replay = buffer(2);
    assert_eq!(load(&replay, &bytes).unwrap(), 6);
    assert_eq!([tickets(&replay, 0), tickets(&replay, 1)], [vec![1, 2, 3, 4], vec![1, 2]]);
    let replay = buffer(1);
    assert_eq!(load(&replay, &bytes).unwrap(), 6);
    assert_eq!(tickets(&replay, 0), [1, 2, 3, 1, 4, 2], "oldest first, by how many rows of the lane are newer");
}

#[test]
fn rows_that_were_overwritten_are_left_out() {
    let replay = filled(&[100]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let capacity = replay.lane_capacity() as u64;
    assert_eq!(replay.save(&path, Some(&[(0, 1, 90)]), &mut || true).unwrap(), capacity - 10);
    assert_eq!(replay.save(&path, Some(&[(0, 99, 200)]), &mut || true).unwrap(), 2, "not yet written");
    let again = buffer(1);
    assert_eq!(again.load(&[&path], WorkerId::new(1).unwrap(), false, &mut || true).unwrap(), 2);
    assert_eq!(tickets(&again, 0), [99, 100]);
}

#[test]
fn a_record_that_does_not_fit_its_section_is_an_error() {
    let whole = save(&filled(&[3, 0, 2]));
    let records = 10 + usize::from(u16::from_le_bytes([whole[8], whole[9]]));
    let replay = buffer(3);
    for (record, ticket) in [(0, 0), (0, 2), (1, 1), (2, 4), (4, 3), (3, u64::MAX)] {
        let mut bytes = whole.clone();
        let at = records + record * 80 + 72;
        bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(ticket));
        repair(&mut bytes);
        let error = load(&replay, &bytes).unwrap_err();
        assert!(matches!(error, Error::BadFile { .. }), "record {record}, ticket {ticket}: {error}");
    }
    assert_eq!(replay.committed().unwrap(), [0, 0, 0]);
    let mut same = whole.clone();
    repair(&mut same);
    assert_eq!(same, whole, "a whole file needs no repair");
}

#[test]
fn what_the_fuzzer_found_never_panics() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/saved");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 5);
    let buffers = [buffer(2), buffer(3)];
    for file in files {
        attack(&buffers, &std::fs::read(&file).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    /// Words with meaning, changed; the checksums fit.
    #[test]
    fn forged_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![
            any::<u64>(), 0u64..10, Just(u64::MAX), Just(1 << 61),
        ]), 1..4),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = save(&filled(&[4, 2]));
        let tail = usize::try_from(u64::from_le_bytes(bytes[bytes.len() - 24..][..8].try_into().unwrap())).unwrap();
        for (at, value) in changes {
            let at = tail + at.index((bytes.len() - tail) / 8) * 8;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if let Some(cut) = cut {
            let cut = cut.index(bytes.len());
            bytes.drain(..cut);
        }
        attack(&[buffer(2), buffer(1)], &bytes);
    }
}
