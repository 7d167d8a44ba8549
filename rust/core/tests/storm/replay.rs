//! Replay buffer: writers of two lanes each, a sampler and a follower.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rlz_core::WorkerId;
use rlz_core::memory::Segment;
use rlz_core::replay::{Batch, Replay};
use rlz_core::sync::{Ordering, fence};

use crate::child::{Files, Seat};
use crate::common::{fill, is_whole, words_field};
use crate::harness::{Kills, Role, Scene, TORN, Verdict, demand};

const LANES_EACH: usize = 2;
const WRITERS: usize = 3;
const LANES: usize = WRITERS * LANES_EACH;
const WORDS: usize = 512;

/// The ledger has the last ticket that each lane's writers know to be appended.
pub struct Lanes {
    replay: Replay,
    ledger: Segment,
}

impl Scene for Lanes {
    const NAME: &'static str = "replay buffer";
    const ROLES: &'static [Role] = &[
        Role {
            name: "writer",
            seats: WRITERS,
            points: &[
                "ring: before the claim",
                "ring: claimed",
                "ring: half a row",
                "ring: written",
                "ring: committed, not counted",
                "ring: counted",
            ],
        },
        Role { name: "sampler", seats: 1, points: &[] },
        Role { name: "follower", seats: 1, points: &[] },
    ];
    const REAP_POINTS: &'static [&'static str] = &["ring: reaped, not released"];

    fn create() -> Self {
        let replay = Replay::create(&words_field(WORDS), 8 * LANES, LANES, 1).unwrap();
        Self { replay, ledger: Segment::create("ledger", LANES * 8).unwrap() }
    }

    fn attach(_: &str, files: &Files) -> Self {
        Self { replay: Replay::attach(files.open(0, true).as_fd()).unwrap(), ledger: files.segment(1) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.replay.as_fd(), self.ledger.as_fd()]
    }

    fn play(&self, role: &str, seat: &Seat) {
        match role {
            "writer" => self.write(seat),
            "sampler" => self.sample(seat),
            "follower" => self.follow(seat),
            _ => self.read_carelessly(),
        }
    }

    fn reap(&self, dead: WorkerId) {
        self.replay.reap(dead).unwrap();
    }

    fn held_by(&self, worker: WorkerId) -> usize {
        let ring = self.replay.ring().unwrap();
        let slots = 0..LANES * self.replay.lane_capacity();
        let written = slots.filter(|slot| {
            let stamp = ring.mark(*slot)[0].load(Ordering::Relaxed);
            stamp & 1 == 1 && stamp >> 1 & 1023 == worker.get()
        });
        written.count() + (0..LANES).filter(|lane| ring.owner(*lane) == worker.get()).count()
    }

    fn check(&self) -> Verdict {
        let ledger = self.ledger.words(0, LANES).unwrap();
        let known = |lane: usize| ledger[lane].load(Ordering::Acquire);
        for lane in 0..LANES {
            let before = known(lane);
            let committed = self.replay.committed().unwrap()[lane];
            demand(committed >= before, || format!("row {before} of lane {lane} was appended and is lost"))?;
            // One that its writer is about to note, or died before it could.
            demand(committed <= known(lane) + 1, || format!("lane {lane} counts rows that nobody appended"))?;
        }
        Ok(())
    }

    fn settle(&self, _: &Kills) -> Verdict<String> {
        let capacity = self.replay.lane_capacity();
        let committed = self.replay.committed().unwrap();
        for (lane, &committed) in committed.iter().enumerate() {
            // Of a full lane at most one row is gone: the oldest, over which somebody died.
            let (mut rows, mut meta) = (vec![0; capacity * WORDS], vec![0; capacity]);
            demand(committed > 2 * capacity as u64, || format!("lane {lane} has {committed} rows only"))?;
            let first = committed + 2 - capacity as u64;
            let there = self.replay.read_rows(lane, first, &mut rows, &mut meta).unwrap();
            demand(there == capacity - 1, || format!("{there} rows of lane {lane} are left, of {capacity}"))?;
            let mut rows = rows.chunks_exact(WORDS).zip(first..=committed);
            demand(rows.all(|(row, ticket)| is_whole(row, lane as u64, ticket)), || format!("lane {lane} is torn"))?;
        }
        Ok(format!("{} rows appended", committed.iter().sum::<u64>()))
    }
}

impl Lanes {
    fn write(&self, seat: &Seat) {
        let lanes: Vec<_> = (0..LANES_EACH).map(|lane| seat.index * LANES_EACH + lane).collect();
        let ring = self.replay.ring().unwrap();
        let ledger = self.ledger.words(0, LANES).unwrap();
        let mut writer = self.replay.writer(&lanes, seat.worker).unwrap();
        let mut row = vec![0; WORDS];
        for &lane in &lanes {
            // With the row of a predecessor that died before it could note it.
            ledger[lane].store(ring.committed(lane), Ordering::Release);
        }
        loop {
            for &lane in &lanes {
                let ticket = ring.committed(lane) + 1;
                fill(&mut row, lane as u64, ticket);
                assert_eq!(writer.append_packed(lane, &row, 1, 0).unwrap(), ticket);
                ledger[lane].store(ticket, Ordering::Release);
                seat.tick(0);
            }
        }
    }

    fn sample(&self, seat: &Seat) {
        const BATCH: usize = 32;
        let mut sampler = self.replay.sampler([seat.random().next_u64(), 2, 3, 4]);
        let (mut rows, mut ids) = (vec![0; BATCH * WORDS], vec![0; BATCH * 3]);
        loop {
            if sampler.available().unwrap() == 0 {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            sampler.sample(Batch { rows: &mut rows, meta: None, ids: Some(&mut ids) }, 1).unwrap();
            for (row, id) in rows.chunks_exact(WORDS).zip(ids.chunks_exact(3)) {
                if !is_whole(row, id[0], id[2]) {
                    std::process::exit(TORN);
                }
            }
            seat.tick(BATCH as u64);
        }
    }

    /// Rows in order, with gaps where writers were faster or died.
    fn follow(&self, seat: &Seat) {
        const MOST: usize = 4;
        let mut tail = self.replay.tail();
        let (mut rows, mut meta, mut tickets) = (vec![0; MOST * WORDS], vec![0; MOST], vec![0; MOST]);
        let mut last = [0; LANES];
        loop {
            for (lane, last) in last.iter_mut().enumerate() {
                let count = tail.read(lane, &mut rows, &mut meta, &mut tickets).unwrap();
                for (row, &ticket) in rows.chunks_exact(WORDS).zip(&tickets).take(count) {
                    assert!(ticket > *last, "row {ticket} of lane {lane} after row {last}");
                    *last = ticket;
                    if !is_whole(row, lane as u64, ticket) {
                        std::process::exit(TORN);
                    }
                }
                seat.tick(count as u64);
            }
        }
    }

    /// Without the second look at the stamp.
    fn read_carelessly(&self) {
        let ring = self.replay.ring().unwrap();
        let slots = LANES * self.replay.lane_capacity();
        for slot in (0..slots).cycle() {
            let stamp = ring.mark(slot)[0].load(Ordering::Acquire);
            if stamp == 0 || stamp & 1 == 1 {
                continue;
            }
            let row: Vec<u64> = ring.row(slot).iter().map(|word| word.load(Ordering::Relaxed)).collect();
            fence(Ordering::Acquire);
            if !is_whole(&row, (slot / self.replay.lane_capacity()) as u64, stamp >> 11) {
                std::process::exit(TORN);
            }
        }
    }
}
