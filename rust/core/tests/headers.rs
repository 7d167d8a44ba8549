//! Damaged and hostile segments: every attach answers with an error, never a panic or an access outside.
//!
//! A corpus of a valid segment of each kind, damaged in named ways, and random damage on top.
#![cfg(not(loom))]

#[path = "support/segments.rs"]
mod segments;

use std::os::fd::{AsFd, BorrowedFd};

use proptest::prelude::*;
use rlz_core::inference::Inference;
use rlz_core::limiter::Limiter;
use rlz_core::limiter::rule::Rule;
use rlz_core::memory::{Access, PAGE, Segment};
use rlz_core::parameters::ParameterStore;
use rlz_core::queue::{Options, Queue};
use rlz_core::replay::Replay;
use rlz_core::schema::{Dtype, Field};
use rlz_core::stats::StatsBoard;
use rlz_core::sync::Ordering;
use segments::{TABLE, attach_all, attack, rehash, segment};

/// Words of a header by name (see `memory::header`).
const WORDS: [(&str, usize); 11] = [
    ("magic", 0),
    ("ABI", 1),
    ("kind", 2),
    ("hash", 3),
    ("total", 4),
    ("state", 7),
    ("number of parameters", 8),
    ("bytes of the table", 9),
    ("first parameter", 10),
    ("second parameter", 11),
    ("third parameter", 12),
];
const HOSTILE: [u64; 8] = [0, 1, 2, 1 << 20, (1 << 32) + 1, 1 << 61, u64::MAX / 8, u64::MAX];

fn fields() -> Vec<Field> {
    vec![Field::new("obs", Dtype::F32, &[5]).unwrap(), Field::new("reward", Dtype::F64, &[]).unwrap()]
}

/// A segment of every kind, as a copy of its words.
fn corpus() -> Vec<(&'static str, Vec<u64>)> {
    let copy = |fd: BorrowedFd<'_>| {
        let segment = Segment::attach(fd, Access::ReadOnly).unwrap();
        let words = segment.read_words(0, segment.len() / 8).unwrap();
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    };
    let rule = Rule::new(100, 10, Some((1, 1)), 4.0).unwrap();
    let store = ParameterStore::create(&fields(), 2, 1).unwrap();
    let answer = [Field::new("action", Dtype::F32, &[2]).unwrap()];
    vec![
        ("replay", copy(Replay::create(&fields(), 12, 3, 1).unwrap().as_fd())),
        ("queue", copy(Queue::create(&fields(), Options::new(4), 1).unwrap().as_fd())),
        ("inference", copy(Inference::create(&fields(), &answer, 3, 1).unwrap().as_fd())),
        ("limiter", copy(Limiter::create(rule, 3, 1, 0, 0).unwrap().as_fd())),
        ("stats", copy(StatsBoard::create(2, &["a".to_owned()], 2, 4, 1).unwrap().segment().as_fd())),
        ("control", copy(store.control().as_fd())),
        ("payload", copy(store.payload().as_fd())),
    ]
}

#[test]
fn whole_segments_attach_as_what_they_are_only() {
    for (name, words) in corpus() {
        let expected = usize::from(!["control", "payload"].contains(&name)); // a store has two segments
        assert_eq!(attach_all(&segment(&words)), expected, "{name}");
    }
}

#[test]
fn what_the_fuzzer_found_never_panics() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/header");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= corpus().len());
    for file in files {
        attack(&std::fs::read(&file).unwrap());
    }
}

#[test]
fn a_damaged_word_of_the_header_is_an_error() {
    for (name, whole) in corpus() {
        for (what, at) in WORDS {
            for value in HOSTILE {
                let mut words = whole.clone();
                if words[at] == value || (what == "ABI" && value >> 32 == 1) {
                    continue;
                }
                words[at] = value;
                assert_eq!(attach_all(&segment(&words)), 0, "{name}: {what} = {value:#x}");
            }
        }
    }
}

#[test]
fn counts_of_an_earlier_run_are_bounded() {
    let (_, whole) = corpus().into_iter().find(|(name, _)| *name == "limiter").unwrap();
    for (parameter, name) in [(6, "first env step"), (7, "first update")] {
        for (count, fits) in [(1 << 46, true), (u64::MAX, false), (1 << 47, false)] {
            let mut words = whole.clone();
            words[10 + parameter] = count;
            rehash(&mut words);
            let segment = segment(&words);
            match Limiter::attach(segment.as_fd()) {
                Ok(limiter) => assert!(fits && limiter.env_steps().unwrap() <= 1 << 46, "{name} {count}"),
                Err(error) => assert!(!fits && error.to_string().contains(name), "{error}"),
            }
        }
    }
}

/// As many fields as a header has room for. (Comparing every name with every other took a quarter of a minute.)
#[test]
fn tens_of_thousands_of_fields() {
    let mut fields: Vec<_> = (0..60_000).map(|i| Field::new(format!("{i:05}"), Dtype::U8, &[]).unwrap()).collect();
    let queue = Queue::create(&fields, Options::new(1), 1).unwrap();
    assert_eq!(Queue::attach(queue.as_fd()).unwrap().schema().fields().len(), fields.len());
    let store = ParameterStore::create(&fields, 1, 1).unwrap();
    assert!(ParameterStore::attach(store.control().as_fd(), store.payload().as_fd(), true).is_ok());
    let names: Vec<_> = fields.iter().map(|field| field.name.clone()).collect();
    StatsBoard::create(1, &names, 1, 1, 1).unwrap();
    fields.push(fields[0].clone());
    let message = Queue::create(&fields, Options::new(1), 1).unwrap_err().to_string();
    assert!(message.contains("\"00000\" twice"), "{message}");
}

#[test]
fn a_damaged_field_table_is_an_error() {
    for (name, whole) in corpus().into_iter().filter(|(_, words)| words[9] > 0) {
        let bytes = usize::try_from(whole[9]).unwrap();
        for at in 0..bytes {
            for bits in [0x01, 0x80, 0xff] {
                let mut words = whole.clone();
                words[TABLE + at / 8] ^= bits << (8 * (at % 8));
                assert_eq!(attach_all(&segment(&words)), 0, "{name}: byte {at} of the table ^ {bits:#x}");
            }
        }
        for cut in 0..bytes as u64 {
            let mut words = whole.clone();
            words[9] = cut;
            assert_eq!(attach_all(&segment(&words)), 0, "{name}: table of {cut} bytes");
        }
    }
}

#[test]
fn a_cut_or_longer_segment_is_an_error() {
    for (name, whole) in corpus() {
        for pages in 1..=whole.len() * 8 / PAGE + 2 {
            let mut words = whole.clone();
            words.resize(pages * PAGE / 8, 0);
            if words.len() != whole.len() {
                assert_eq!(attach_all(&segment(&words)), 0, "{name}: {pages} pages");
                // The same, with a header that admits it.
                words[4] = words.len() as u64 * 8;
                attach_all(&segment(&words));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    /// Damage with a hash that fits it: sizes that overflow, huge counts, offsets outside.
    #[test]
    fn forged_headers_never_panic(
        which in 0usize..6,
        params in prop::collection::vec((10usize..19, prop_oneof![
            prop::sample::select(HOSTILE.to_vec()), 0u64..20, any::<u64>(), Just(PAGE as u64),
        ]), 0..3),
        table in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let (_, mut words) = corpus().swap_remove(which);
        for (at, value) in params {
            words[at] = value;
        }
        let bytes = usize::try_from(words[9]).unwrap();
        if bytes > 0 {
            for (at, value) in table {
                let at = at.index(bytes);
                words[TABLE + at / 8] ^= u64::from(value) << (8 * (at % 8));
            }
        }
        rehash(&mut words);
        attach_all(&segment(&words));
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u64>(), 512), keep in 0usize..12) {
        let (_, whole) = corpus().swap_remove(0);
        let mut words = whole.clone();
        words[keep..512].copy_from_slice(&noise[keep..]);
        attach_all(&segment(&words));
    }
}
