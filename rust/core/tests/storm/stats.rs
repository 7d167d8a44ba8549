//! Stats board: writers with a slot each, and a reader.

use std::os::fd::{AsFd, BorrowedFd};

use rlz_core::WorkerId;
use rlz_core::memory::Segment;
use rlz_core::stats::StatsBoard;
use rlz_core::sync::{AtomicU64, Ordering};

use crate::child::{Files, Seat};
use crate::harness::{Kills, Role, Scene, TORN, Verdict, demand};

const WRITERS: usize = 2;
/// Numbers per event.
const WIDTH: usize = 64;

/// The ledger has, per slot, the events and the additions that its writers know to be done.
pub struct Board {
    board: StatsBoard,
    ledger: Segment,
}

impl Scene for Board {
    const NAME: &'static str = "stats board";
    const ROLES: &'static [Role] = &[
        Role { name: "writer", seats: WRITERS, points: &["stats: in an event", "stats: event not counted"] },
        Role { name: "reader", seats: 1, points: &[] },
    ];

    fn create() -> Self {
        let board = StatsBoard::create(WRITERS, &["sum".to_owned()], WIDTH, 16, 1).unwrap();
        Self { board, ledger: Segment::create("ledger", 2 * WRITERS * 8).unwrap() }
    }

    fn attach(_: &str, files: &Files) -> Self {
        Self { board: StatsBoard::attach(files.open(0, true).as_fd()).unwrap(), ledger: files.segment(1) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.board.segment().as_fd(), self.ledger.as_fd()]
    }

    fn play(&self, role: &str, seat: &Seat) {
        match role {
            "writer" => self.write(seat),
            _ => self.read(seat),
        }
    }

    fn reap(&self, _: WorkerId) {} // nothing is held

    fn held_by(&self, _: WorkerId) -> usize {
        0
    }

    fn check(&self) -> Verdict {
        for slot in 0..WRITERS {
            let known = |what: usize| self.known(slot)[what].load(Ordering::Acquire);
            let before = (known(0), known(1));
            let (events, sum) = (self.events(slot), self.sums()[slot]);
            demand(events >= before.0, || format!("event {} of slot {slot} is lost", before.0))?;
            demand(sum >= before.1 as f64, || format!("the sum of slot {slot} went back to {sum}"))?;
        }
        Ok(())
    }

    fn settle(&self, kills: &Kills) -> Verdict<String> {
        let (mut events, mut additions) = (0, 0);
        for slot in 0..WRITERS {
            let known = self.known(slot)[1].load(Ordering::Relaxed);
            let more = self.sums()[slot] - known as f64;
            demand(more <= kills.of("writer") as f64, || format!("{more} additions were done twice"))?;
            (events, additions) = (events + self.events(slot), additions + known);
        }
        demand(events > 20, || format!("{events} events only"))?;
        Ok(format!("{events} events, {additions} additions"))
    }
}

impl Board {
    fn known(&self, slot: usize) -> &[AtomicU64] {
        self.ledger.words(slot * 16, 2).unwrap()
    }

    /// Events of a slot ever pushed.
    fn events(&self, slot: usize) -> u64 {
        self.board.events(slot, u64::MAX, &mut Vec::new()).unwrap()
    }

    fn sums(&self) -> [f64; WRITERS] {
        let mut sums = [0.0; WRITERS];
        self.board.read(&mut sums).unwrap();
        sums
    }

    fn write(&self, seat: &Seat) {
        let slot = seat.index;
        let known = self.known(slot);
        loop {
            let number = self.events(slot);
            self.board.push_event(slot, &[number as f64; WIDTH]).unwrap();
            known[0].store(number + 1, Ordering::Release);
            self.board.add(slot, 0, 1.0).unwrap();
            known[1].fetch_add(1, Ordering::Release);
            seat.tick(0);
        }
    }

    fn read(&self, seat: &Seat) {
        let (mut next, mut last) = ([0; WRITERS], [0.0; WRITERS]);
        loop {
            for (slot, next) in next.iter_mut().enumerate() {
                let mut events = Vec::new();
                *next = self.board.events(slot, *next, &mut events).unwrap();
                let count = (events.len() / WIDTH) as u64;
                // What is left is the newest part, in order, each record of one piece.
                for (event, number) in events.chunks_exact(WIDTH).zip(*next - count..) {
                    if event != [number as f64; WIDTH] {
                        std::process::exit(TORN);
                    }
                }
                seat.tick(count);
            }
            let sums = self.sums();
            assert!(sums.iter().zip(last).all(|(now, before)| *now >= before), "{last:?} became {sums:?}");
            last = sums;
        }
    }
}
