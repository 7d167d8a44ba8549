//! Models of the stats board: the ring of events of a slot, its writer, its reader, kills, successor; sums of two
//! writers.

use std::sync::Arc;

use loom::thread;
use rlz_core::kill;
use rlz_core::stats::StatsBoard;

use crate::model::{check, check_kills, unnoticed};

/// One slot with one value, which keeps one event of two numbers: of two places one may be in the writer's hands.
fn board() -> Arc<StatsBoard> {
    Arc::new(StatsBoard::create(1, &["value".to_owned()], 2, 1, 1).unwrap())
}

/// Event number `number` (from 0).
fn push(board: &StatsBoard, number: u32) {
    board.push_event(0, &[f64::from(number); 2]).unwrap();
}

/// Read what there is: the newest events before the count, each of one piece.
fn read(board: &StatsBoard) -> u64 {
    let mut events = Vec::new();
    let next = board.events(0, 0, &mut events).unwrap();
    let events = events.as_chunks::<2>().0;
    for (event, number) in events.iter().rev().zip((0..next).rev()) {
        assert_eq!(event, &[number as f64; 2], "torn");
    }
    assert!(events.len() as u64 <= next);
    next
}

/// A writer of the events 1 to 3, killed at a point, beside a reader; then a successor.
fn push_and_die(point: u32) -> bool {
    let board = board();
    push(&board, 0);
    let reader = thread::spawn({
        let board = Arc::clone(&board);
        move || read(&board)
    });
    let killed = kill::run(point, || (1..=3).for_each(|number| push(&board, number))).is_err();
    let next = read(&board);
    assert!((1..=4).contains(&next) && (killed || next == 4));
    push(&board, u32::try_from(next).unwrap());
    assert_eq!(read(&board), next + 1);
    reader.join().unwrap();
    killed
}

/// Sums of two threads.
fn add() {
    let board = board();
    let other = thread::spawn({
        let board = Arc::clone(&board);
        move || board.add(0, 0, 1.0).unwrap()
    });
    board.add(0, 0, 2.0).unwrap();
    other.join().unwrap();
    let mut values = [0.0];
    board.read(&mut values).unwrap();
    assert_eq!(values, [3.0]);
}

#[test]
fn a_writer_killed_at_every_point() {
    assert_eq!(check_kills(2, push_and_die), 9);
}

#[test]
fn additions_are_all_counted() {
    check(3, add);
}

#[test]
fn every_ordering_is_needed() {
    assert_eq!(unnoticed("src/stats.rs", &[], &[(2, || _ = push_and_die(u32::MAX))]), Vec::<String>::new());
}
