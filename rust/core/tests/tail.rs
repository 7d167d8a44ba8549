//! The tail reader sees every row once and in order, or says how many it missed.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use rlz_core::WorkerId;
use rlz_core::replay::{Replay, Tail};
use rlz_core::schema::{Dtype, Field};

const LANES: usize = 2;
const WORDS: usize = 8;

fn create(size: usize) -> Replay {
    Replay::create(&[Field::new("x", Dtype::U64, &[WORDS]).unwrap()], size, LANES, 1).unwrap()
}

/// Tickets of the rows read, whose content is checked.
fn read(tail: &mut Tail, lane: usize, most: usize) -> Vec<u64> {
    let (mut rows, mut meta, mut tickets) = (vec![0; most * WORDS], vec![0; most], vec![0; most]);
    let count = tail.read(lane, &mut rows, &mut meta, &mut tickets).unwrap();
    for (i, row) in rows.chunks_exact(WORDS).take(count).enumerate() {
        assert_eq!(row, [(lane as u64) << 32 | tickets[i]; WORDS]);
        assert_eq!(meta[i] >> 32, tickets[i] & 0xffff_ffff, "the row's own meta word");
    }
    tickets.truncate(count);
    tickets
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Append(usize, u64),
    Read(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..LANES, 1u64..30).prop_map(|(lane, rows)| Op::Append(lane, rows)),
        (0..LANES, 1usize..20).prop_map(|(lane, most)| Op::Read(lane, most)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn every_row_once_or_counted(size in 6usize..50, ops in prop::collection::vec(op(), 1..80)) {
        let replay = create(size);
        let mut writer = replay.writer(&[0, 1], WorkerId::new(1).unwrap()).unwrap();
        let mut tail = replay.tail();
        let capacity = replay.lane_capacity() as u64;
        let (mut written, mut next, mut lapped) = ([0; LANES], [1; LANES], 0);
        for op in ops {
            match op {
                Op::Append(lane, rows) => {
                    for _ in 0..rows {
                        written[lane] += 1;
                        let row = [(lane as u64) << 32 | written[lane]; WORDS];
                        writer.append_packed(lane, &row, written[lane] as u32, 0).unwrap();
                    }
                }
                Op::Read(lane, most) => {
                    let tickets = read(&mut tail, lane, most);
                    let oldest = (written[lane] + 1).saturating_sub(capacity).max(1);
                    if next[lane] < oldest {
                        // Overtaken: it goes on near the oldest row, not at the newest.
                        let start = tickets[0];
                        prop_assert!(start >= oldest && start <= oldest + 64.min(capacity));
                        lapped += start - next[lane];
                        next[lane] = start;
                    }
                    let there = (written[lane] + 1 - next[lane]).min(most as u64);
                    let expected: Vec<u64> = (next[lane]..next[lane] + there).collect();
                    prop_assert_eq!(&tickets, &expected);
                    next[lane] += there;
                    prop_assert_eq!(tail.cursors()[lane], next[lane]);
                }
            }
            prop_assert_eq!((tail.lapped(), tail.lost()), (lapped, 0));
        }
    }
}

#[test]
fn beside_a_fast_writer_rows_are_whole_and_ascend() {
    let replay = create(64);
    let mut writer = replay.writer(&[0, 1], WorkerId::new(1).unwrap()).unwrap();
    let stop = Instant::now() + Duration::from_millis(500);
    let (written, (seen, lapped)) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut ticket = 0;
            while Instant::now() < stop {
                ticket += 1;
                writer.append_packed(0, &[ticket; WORDS], ticket as u32, 0).unwrap();
            }
            ticket
        });
        let mut tail = replay.tail();
        let (mut seen, mut last) = (0, 0);
        while Instant::now() < stop {
            for ticket in read(&mut tail, 0, 16) {
                assert!(ticket > last);
                last = ticket;
                seen += 1;
            }
        }
        let written = writer.join().unwrap();
        loop {
            let tickets = read(&mut tail, 0, 16);
            if tickets.is_empty() {
                break (written, (seen, tail.lapped()));
            }
            seen += tickets.len() as u64;
        }
    });
    assert_eq!(seen + lapped, written, "every row was read or counted");
    assert!(seen > 0);
}

#[test]
fn it_can_start_anywhere() {
    let replay = create(20);
    let mut writer = replay.writer(&[1], WorkerId::new(1).unwrap()).unwrap();
    for ticket in 1..=8u64 {
        writer.append_packed(1, &[1 << 32 | ticket; WORDS], ticket as u32, 0).unwrap();
    }
    let mut tail = replay.tail();
    tail.seek(1, 6).unwrap();
    assert_eq!(read(&mut tail, 1, 10), [6, 7, 8]);
    tail.seek(1, 100).unwrap();
    assert!(read(&mut tail, 1, 10).is_empty(), "never past the committed count");
    assert!(tail.seek(1, 0).is_err());
    assert!(tail.seek(2, 1).is_err());
}
