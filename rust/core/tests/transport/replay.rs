use std::os::fd::AsFd;

use proptest::prelude::*;
use rlz_core::Error;
use rlz_core::replay::{Batch, FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED, Meta, Replay, Sampler};

use crate::common::{fill, id, is_whole, words_field};

const WORDS: usize = 8;
const SEED: [u64; 4] = [1, 2, 3, 4];

fn append(replay: &Replay, writer: &mut rlz_core::replay::Writer, lane: usize) -> u64 {
    let ticket = replay.committed().unwrap()[lane] + 1;
    let mut row = [0; WORDS];
    fill(&mut row, lane as u64, ticket);
    assert_eq!(writer.append_packed(lane, &row, 9, 0).unwrap(), ticket);
    ticket
}

/// (lane, ticket) of a drawn batch; every row is checked.
fn draw(sampler: &mut Sampler, size: usize, threads: usize) -> Vec<(usize, u64)> {
    let (mut rows, mut meta, mut ids) = (vec![0; size * WORDS], vec![0; size], vec![0; size * 3]);
    let batch = Batch { rows: &mut rows, meta: Some(&mut meta), ids: Some(&mut ids) };
    sampler.sample(batch, threads).unwrap();
    let capacity = sampler.replay().lane_capacity() as u64;
    let drawn = rows.chunks_exact(WORDS).zip(ids.chunks_exact(3)).zip(meta);
    drawn
        .map(|((row, id), meta)| {
            let (lane, slot, ticket) = (id[0], id[1], id[2]);
            assert!(is_whole(row, lane, ticket));
            assert_eq!(slot, (ticket - 1) % capacity);
            let meta = Meta::from_word(meta);
            assert_eq!((meta.version, u64::from(meta.env)), (9, lane));
            (usize::try_from(lane).unwrap(), ticket)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Against a list of all rows in order: drawn are the newest `buffer_size` rows of all lanes, and nothing else, at
    /// the seam of each ring too, and when some lanes stop.
    #[test]
    fn the_window_is_the_newest_rows(
        size in 3usize..40,
        phases in prop::collection::vec((prop::collection::vec(0usize..3, 1..4), 1usize..40), 1..5),
    ) {
        let replay = Replay::create(&words_field(WORDS), size, 3, 1).unwrap();
        let mut writer = replay.writer(&[0, 1, 2], id(5)).unwrap();
        let mut sampler = replay.sampler(SEED);
        let mut order = Vec::new();
        let share = size.div_ceil(3);
        for (lanes, rounds) in phases {
            for round in 0..rounds {
                let lane = lanes[round % lanes.len()];
                order.push((lane, append(&replay, &mut writer, lane)));
                let committed = replay.committed().unwrap();
                let window: Vec<_> = order
                    .iter()
                    .rev()
                    .take(size)
                    .filter(|(lane, ticket)| ticket + share as u64 > committed[*lane])
                    .collect();
                prop_assert_eq!(sampler.available().unwrap(), window.len() as u64);
                if round % 7 == 0 {
                    for row in draw(&mut sampler, 20, 1) {
                        prop_assert!(window.contains(&&row), "{:?} of {:?}", row, window);
                    }
                }
            }
        }
    }
}

#[test]
fn draws_are_uniform_over_uneven_lanes() {
    let replay = Replay::create(&words_field(WORDS), 300, 3, 1).unwrap();
    let mut writer = replay.writer(&[0, 1, 2], id(5)).unwrap();
    for (lane, rows) in [(0, 10), (1, 100), (2, 37)] {
        for _ in 0..rows {
            append(&replay, &mut writer, lane);
        }
    }
    let mut sampler = replay.sampler(SEED);
    let mut hits = std::collections::HashMap::new();
    const PER_ROW: usize = 1_000;
    for row in draw(&mut sampler, 147 * PER_ROW, 1) {
        *hits.entry(row).or_insert(0) += 1;
    }
    assert_eq!(hits.len(), 147);
    // Binomial with mean 1000 and standard deviation 32: six of them.
    assert!(hits.values().all(|hits| (810..1190).contains(hits)), "{:?}", hits.values());
}

#[test]
fn rows_do_not_depend_on_threads_and_state_can_be_restored() {
    let replay = Replay::create(&words_field(WORDS), 100, 2, 1).unwrap();
    let mut writer = replay.writer(&[0, 1], id(5)).unwrap();
    for i in 0..70 {
        append(&replay, &mut writer, i % 2);
    }
    let (mut one, mut three) = (replay.sampler(SEED), replay.sampler(SEED));
    for size in [1, 2, 31, 256] {
        assert_eq!(draw(&mut one, size, 1), draw(&mut three, size, 3));
    }
    let state = one.state();
    let next = draw(&mut one, 64, 1);
    one.set_state(&state).unwrap();
    assert_eq!(draw(&mut one, 64, 1), next);
    assert!(one.set_state(&state[1..]).is_err());
    assert_ne!(draw(&mut replay.sampler([5; 4]), 64, 1), next);
}

#[test]
fn misuse_is_explained() {
    let replay = Replay::create(&words_field(WORDS), 10, 2, 1).unwrap();
    let mut sampler = replay.sampler(SEED);
    let mut rows = [0; WORDS];
    let empty = sampler.sample(Batch { rows: &mut rows, meta: None, ids: None }, 1);
    assert!(matches!(empty, Err(Error::Empty(_))));
    let wrong = sampler.sample(Batch { rows: &mut rows[1..], meta: None, ids: None }, 1);
    assert!(wrong.unwrap_err().to_string().contains("[batch, 64 bytes]"));

    let mut writer = replay.writer(&[0], id(5)).unwrap();
    assert!(matches!(replay.writer(&[1, 0], id(6)), Err(Error::Owned { owner: 5, worker: 6, .. })));
    assert_eq!(replay.owners().unwrap(), [5, 0], "a writer that failed half-way gives back what it took");
    assert!(writer.append_packed(1, &rows, 0, 0).unwrap_err().to_string().contains("[0]"));
    assert!(writer.append_packed(0, &rows[1..], 0, 0).is_err());
    assert!(replay.writer(&[2], id(6)).is_err());
    writer.close();
    assert!(matches!(writer.append_packed(0, &rows, 0, 0), Err(Error::Closed { .. })));
    assert_eq!(replay.owners().unwrap(), [0, 0]);

    for (size, lanes) in [(10, 0), (10, 65_536), (1, 2), (usize::MAX, 1)] {
        assert!(Replay::create(&words_field(WORDS), size, lanes, 1).is_err(), "{size} {lanes}");
    }
}

#[test]
fn sequences_begin_with_a_flag() {
    let replay = Replay::create(&words_field(WORDS), 20, 1, 1).unwrap();
    let flags_given = [0, FLAG_TERMINATED, 0, FLAG_TRUNCATED, 0, 0];
    for worker in [5, 6] {
        let mut writer = replay.writer(&[0], id(worker)).unwrap();
        for flags in flags_given {
            writer.append_packed(0, &[0; WORDS], 0, flags).unwrap();
        }
    }
    let (mut rows, mut meta) = (vec![0; 12 * WORDS], vec![0; 12]);
    assert_eq!(replay.read_rows(0, 1, &mut rows, &mut meta).unwrap(), 12);
    let first: Vec<_> = meta.iter().map(|meta| Meta::from_word(*meta).flags & FLAG_FIRST != 0).collect();
    let expected = [true, false, true, false, true, false];
    assert_eq!(first, [expected, expected].concat());
}

#[test]
fn saved_rows_come_back() {
    let replay = Replay::create(&words_field(WORDS), 32, 2, 1).unwrap();
    let mut writer = replay.writer(&[1], id(5)).unwrap();
    for _ in 0..30 {
        append(&replay, &mut writer, 1);
    }
    let capacity = replay.lane_capacity(); // 18: rows 13 to 30 are there
    let (mut rows, mut meta) = (vec![0; 40 * WORDS], vec![0; 40]);
    assert_eq!(replay.read_rows(1, 5, &mut rows, &mut meta).unwrap(), 0, "overwritten");
    let first = 31 - capacity as u64;
    assert_eq!(replay.read_rows(1, first, &mut rows, &mut meta).unwrap(), capacity);
    assert!(replay.read_rows(1, 0, &mut rows, &mut meta).is_err());
    assert!(replay.read_rows(2, 1, &mut rows, &mut meta).is_err());
    assert_eq!(replay.read_rows(1, 31, &mut rows, &mut meta).unwrap(), 0, "not committed");

    let other = Replay::create(&words_field(WORDS), 32, 2, 2).unwrap();
    let rows = &rows[..capacity * WORDS];
    let meta = &meta[..capacity];
    other.restore_rows(1, rows, meta, id(1)).unwrap();
    assert_eq!(other.committed().unwrap(), [0, capacity as u64]);
    assert_eq!(other.owners().unwrap(), [0, 0]);
    let (mut again, mut meta_again) = (vec![0; rows.len()], vec![0; capacity]);
    assert_eq!(other.read_rows(1, 1, &mut again, &mut meta_again).unwrap(), capacity);
    assert_eq!((&again[..], &meta_again[..]), (rows, meta));
    let _busy = other.writer(&[1], id(3)).unwrap();
    assert!(matches!(other.restore_rows(1, rows, meta, id(1)), Err(Error::Owned { owner: 3, .. })));
}

#[test]
fn attaching_gives_the_same_buffer() {
    let replay = Replay::create(&words_field(WORDS), 32, 2, 77).unwrap();
    let mut writer = replay.writer(&[1], id(5)).unwrap();
    append(&replay, &mut writer, 1);
    let other = Replay::attach(replay.as_fd()).unwrap();
    assert_eq!((other.lanes(), other.lane_capacity(), other.buffer_size()), (2, replay.lane_capacity(), 32));
    assert_eq!(other.schema(), replay.schema());
    assert_eq!(other.header(), replay.header());
    assert_eq!(draw(&mut other.sampler(SEED), 3, 1), [(1, 1); 3]);
    other.header().expect(replay.header()).unwrap();
    let different = Replay::create(&words_field(WORDS + 1), 32, 3, 78).unwrap();
    let message = other.header().expect(different.header()).unwrap_err().to_string();
    for part in ["run id", "lanes: here 3, there 2", "stride: here 128, there 64", "u64[9]", "u64[8]"] {
        assert!(message.contains(part), "{part} in {message}");
    }
}

/// A row larger than the private copy of a page, and a batch while a writer laps the buffer all the time.
#[test]
fn no_torn_row_beside_a_fast_writer() {
    const LONG: usize = 700;
    let replay = Replay::create(&words_field(LONG), 4, 1, 1).unwrap();
    let stop = std::sync::Mutex::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = replay.writer(&[0], id(5)).unwrap();
            let mut row = vec![0; replay.schema().words()];
            while !*stop.lock().unwrap() {
                fill(&mut row, 0, replay.committed().unwrap()[0] + 1);
                writer.append_packed(0, &row, 0, 0).unwrap();
            }
        });
        let mut sampler = replay.sampler(SEED);
        while sampler.available().unwrap() == 0 {
            std::thread::yield_now();
        }
        let (mut rows, mut ids) = (vec![0; 16 * replay.schema().words()], vec![0; 16 * 3]);
        for _ in 0..2_000 {
            sampler.sample(Batch { rows: &mut rows, meta: None, ids: Some(&mut ids) }, 1).unwrap();
            for (row, id) in rows.chunks_exact(replay.schema().words()).zip(ids.chunks_exact(3)) {
                assert!(is_whole(row, 0, id[2]));
            }
        }
        *stop.lock().unwrap() = true;
    });
}
