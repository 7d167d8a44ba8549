//! Inference stream: clients that ask for groups of lanes, and servers that take what is there.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rlz_core::WorkerId;
use rlz_core::inference::Inference;
use rlz_core::memory::Segment;
use rlz_core::schema::{Dtype, Field};
use rlz_core::sync::Ordering;

use crate::child::{Files, Seat};
use crate::common::{fill, id, is_whole};
use crate::harness::{Kills, Role, Scene, TORN, Verdict, demand};

const CLIENTS: usize = 3;
/// Lanes of a client: two groups, of two lanes and of one.
const EACH: usize = 3;
const LANES: usize = CLIENTS * EACH;
const WORDS: usize = 8;
/// Note beside every answer.
const VERSION: u64 = 7;

/// The ledger counts requests, so that each has a number of its own, over all incarnations of a client.
pub struct Questions {
    stream: Inference,
    ledger: Segment,
}

impl Scene for Questions {
    const NAME: &'static str = "inference stream";
    const ROLES: &'static [Role] = &[
        Role {
            name: "client",
            seats: CLIENTS,
            points: &[
                "inference: lane claimed",
                "inference: request written",
                "inference: asked",
                "event: before the wake",
                "event: announced",
            ],
        },
        Role {
            name: "server",
            seats: 2,
            points: &[
                "inference: taken",
                "inference: answer written",
                "inference: answered",
                "inference: orphan freed",
                "event: before the wake",
                "event: announced",
            ],
        },
    ];
    const REAP_POINTS: &'static [&'static str] = &["inference: reaped a client", "inference: reaped a server"];

    fn create() -> Self {
        let field = |name| vec![Field::new(name, Dtype::U64, &[WORDS]).unwrap()];
        let stream = Inference::create(&field("obs"), &field("action"), LANES, 1).unwrap();
        Self { stream, ledger: Segment::create("ledger", 8 * (LANES + 1)).unwrap() }
    }

    fn attach(_: &str, files: &Files) -> Self {
        Self { stream: Inference::attach(files.open(0, true).as_fd()).unwrap(), ledger: files.segment(1) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.stream.as_fd(), self.ledger.as_fd()]
    }

    fn play(&self, role: &str, seat: &Seat) {
        match role {
            "client" => self.ask(seat),
            _ => self.serve(seat),
        }
    }

    fn reap(&self, dead: WorkerId) {
        self.stream.reap(dead).unwrap();
    }

    fn held_by(&self, worker: WorkerId) -> usize {
        let owners = self.stream.owners().unwrap().into_iter();
        owners.filter(|(client, server)| [*client, *server].contains(&worker.get())).count()
    }

    fn check(&self) -> Verdict {
        Ok(()) // the clients check every answer
    }

    fn settle(&self, _: &Kills) -> Verdict<String> {
        let occupancy = self.stream.occupancy().unwrap();
        demand(occupancy.idle == LANES, || format!("lanes leaked: {occupancy:?}"))?;
        let mut client = self.stream.client(&[(0..LANES).collect()], id(1022), None, &mut || true).unwrap();
        let mut server = self.stream.server(id(1022)).unwrap();
        client.ask(0, &[0, LANES - 1], |_, _| 0).unwrap();
        let taken = server.take(LANES, Some(Duration::ZERO), Duration::ZERO, &mut || true, |_, _, _, _| ());
        demand(matches!(taken, Ok(2)), || format!("{taken:?} requests, expected 2"))?;
        let answered = self.counter(LANES);
        demand(answered > 20, || format!("{answered} answers only"))?;
        Ok(format!("{answered} answers"))
    }
}

impl Questions {
    fn count(&self, word: usize) -> u64 {
        self.ledger.words(word * 8, 1).unwrap()[0].fetch_add(1, Ordering::Relaxed)
    }

    fn counter(&self, word: usize) -> u64 {
        self.ledger.words(word * 8, 1).unwrap()[0].load(Ordering::Relaxed)
    }

    /// Two groups that wait for their answers in turn.
    fn ask(&self, seat: &Seat) {
        let first = seat.index * EACH;
        let groups = [vec![first, first + 2], vec![first + 1]];
        let mut client = self.stream.client(&groups, seat.worker, None, &mut || true).unwrap();
        let mut numbers = [[0; 2]; 2];
        let mut next = vec![0, 1];
        let mut random = seat.random();
        loop {
            for group in next.drain(..) {
                // Sometimes for a part of the group.
                let all: Vec<_> = (0..groups[group].len()).collect();
                let which = if random.below(4) == 0 { &all[..1] } else { &all[..] };
                let fill_row = |at: usize, row: &mut [u64]| {
                    let lane = groups[group][at];
                    let number = self.count(lane) + 1;
                    numbers[group][at] = number;
                    fill(row, lane as u64, number);
                    number
                };
                client.ask(group, which, fill_row).unwrap();
            }
            let group = client.wait(None, &mut || true).unwrap();
            let taken = client.take(group, |at, row, note| {
                let (lane, number) = (groups[group][at], numbers[group][at]);
                // The server's answer to exactly this request.
                if note != VERSION || !is_whole(row, (LANES + lane) as u64, number) {
                    std::process::exit(TORN);
                }
            });
            seat.tick(taken.unwrap() as u64);
            next.push(group);
        }
    }

    /// Now one request at a time, now all that there are; sometimes slowly, so that clients die meanwhile.
    fn serve(&self, seat: &Seat) {
        let mut server = self.stream.server(seat.worker).unwrap();
        let mut random = seat.random();
        loop {
            let mut batch = Vec::new();
            let most = if random.below(2) == 0 { 1 } else { LANES };
            let visit = |_, lane: usize, row: &[u64], number| {
                if !is_whole(row, lane as u64, number) {
                    std::process::exit(TORN);
                }
                batch.push((lane, number));
            };
            server.take(most, None, Duration::ZERO, &mut || true, visit).unwrap();
            if random.below(8) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            server.answer(VERSION, |number, row| fill(row, (LANES + batch[number].0) as u64, batch[number].1)).unwrap();
            self.count(LANES);
            seat.tick(batch.len() as u64);
        }
    }
}
