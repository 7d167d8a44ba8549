//! Models of the inference stream: clients, servers, kills, reaper. A server answers each request with its own number,
//! so an answer to another request is seen. Rows are cells that the checker watches: any access by two at once is a
//! failure by itself.

use std::time::Duration;

use crate::model::{check, check_kills, check_thoroughly, fails, id, unnoticed, zeros};
use loom::cell::UnsafeCell;
use loom::thread;
use rlz_core::inference::cells::{Cells, Word};
use rlz_core::inference::{Client, Inference};
use rlz_core::kill;
use rlz_core::schema::{Dtype, Field};
use rlz_core::sync::words::thorough;
use rlz_core::sync::{AtomicU64, Ordering};
use rlz_core::{Error, Result};
use std::sync::Arc;

/// The protocol alone, with a row of one word in each direction.
struct Lanes {
    words: Vec<AtomicU64>,
    requests: Vec<UnsafeCell<u64>>,
    answers: Vec<UnsafeCell<u64>>,
}

#[allow(unsafe_code)]
// SAFETY: the protocol under test gives each cell to one thread at a time, and the checker sees to it.
unsafe impl Sync for Lanes {}
#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Send for Lanes {}

#[allow(unsafe_code)]
fn write(cell: &UnsafeCell<u64>, value: u64) {
    // SAFETY: checked by the model.
    cell.with_mut(|cell| unsafe { *cell = value });
}

#[allow(unsafe_code)]
fn read(cell: &UnsafeCell<u64>) -> u64 {
    // SAFETY: checked by the model.
    cell.with(|cell| unsafe { *cell })
}

impl Lanes {
    fn new(lanes: usize) -> Arc<Self> {
        let rows = || (0..lanes).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { words: zeros(lanes), requests: rows(), answers: rows() })
    }

    fn cells(&self) -> Cells<'_> {
        Cells::new(&self.words)
    }

    /// Claim a lane that nobody has.
    fn claim(&self, lane: usize, worker: u64) -> Word {
        self.cells().claim(lane, id(worker)).unwrap().unwrap()
    }

    fn ask(&self, lane: usize, held: Word, value: u64) -> Word {
        write(&self.requests[lane], value);
        self.cells().ask(lane, held).unwrap()
    }

    /// The answer, if it is there; it must be that to `value`.
    fn look(&self, lane: usize, asked: Word, value: u64) -> Option<Word> {
        let answered = self.cells().answered(lane, asked).unwrap()?;
        assert_eq!(read(&self.answers[lane]), value, "the answer to another request");
        Some(answered)
    }

    /// Answer every request that is there; how many.
    fn serve(&self, worker: u64) -> usize {
        let taken = |lane| self.cells().take(lane, id(worker)).map(|word| (lane, word));
        let taken: Vec<_> = (0..self.words.len()).filter_map(taken).collect();
        for (lane, word) in &taken {
            write(&self.answers[*lane], read(&self.requests[*lane]));
            self.cells().answer(*lane, *word).unwrap();
        }
        taken.len()
    }

    fn all_free(&self) -> bool {
        self.cells().words().all(|word| (word.client(), word.server()) == (0, 0))
    }
}

/// A client of two requests beside a server, one of them killed at a point; then the reaper, which is killed as well,
/// and successors of both, which get on.
fn kill_one(kill_client: bool, point: u32) -> bool {
    let lanes = Lanes::new(1);
    let at_client = if kill_client { point } else { u32::MAX };
    let at_server = if kill_client { u32::MAX } else { point };
    let client = thread::spawn({
        let lanes = Arc::clone(&lanes);
        move || {
            kill::run(at_client, || {
                let mut held = lanes.claim(0, 1);
                for value in [11, 12] {
                    held = lanes.ask(0, held, value);
                    match lanes.look(0, held, value) {
                        Some(answered) => held = answered,
                        None => return (held, value),
                    }
                }
                (held, 12)
            })
        }
    });
    let server = thread::spawn({
        let lanes = Arc::clone(&lanes);
        move || {
            kill::run(at_server, || {
                lanes.serve(2);
                lanes.serve(2);
            })
        }
    });
    let (client, server) = (client.join().unwrap(), server.join().unwrap());
    let reap = |worker| {
        let reap = || lanes.cells().reap(id(worker));
        let _ = kill::run(0, reap);
        reap();
    };
    if server.is_err() {
        reap(2);
    }
    match client {
        Err(_) => reap(1),
        Ok((held, value)) => {
            lanes.serve(3);
            assert!(lanes.look(0, held, value).is_some(), "a request is lost");
            lanes.cells().leave(0, held);
        }
    }
    // With the ids of the dead.
    let asked = lanes.ask(0, lanes.claim(0, 1), 21);
    assert_eq!((lanes.serve(2), lanes.look(0, asked, 21).is_some()), (1, true));
    reap(1);
    assert!(lanes.all_free());
    client.is_err() || server.is_err()
}

/// A client dies while a server computes its answer. The lane's next client waits for the server to let go, and gets
/// the answer to its own request alone.
fn reap_beside_answer() {
    let lanes = Lanes::new(1);
    lanes.ask(0, lanes.claim(0, 1), 11); // killed
    let server = thread::spawn({
        let lanes = Arc::clone(&lanes);
        move || lanes.serve(2)
    });
    lanes.cells().reap(id(1));
    let next = lanes.cells().claim(0, id(1)).unwrap().map(|held| lanes.ask(0, held, 21));
    if let Some(asked) = next {
        lanes.look(0, asked, 21);
    }
    server.join().unwrap();
    let asked = next.unwrap_or_else(|| lanes.ask(0, lanes.claim(0, 1), 21));
    lanes.serve(3);
    assert!(lanes.look(0, asked, 21).is_some());
}

/// A server dies with a request; what the next one answers is whole, however far the dead one had come.
fn server_reaped_beside_another() {
    let lanes = Lanes::new(1);
    let asked = lanes.ask(0, lanes.claim(0, 1), 11);
    assert!(lanes.cells().take(0, id(2)).is_some()); // killed
    let server = thread::spawn({
        let lanes = Arc::clone(&lanes);
        move || lanes.serve(3)
    });
    lanes.cells().reap(id(2));
    if lanes.look(0, asked, 11).is_none() {
        server.join().unwrap();
        lanes.serve(4);
        assert!(lanes.look(0, asked, 11).is_some());
    }
}

/// Two servers never have the same request.
fn two_servers() {
    let lanes = Lanes::new(1);
    let asked = lanes.ask(0, lanes.claim(0, 1), 11);
    let servers = [2, 3].map(|worker| {
        let lanes = Arc::clone(&lanes);
        thread::spawn(move || lanes.serve(worker))
    });
    let served: usize = servers.into_iter().map(|server| server.join().unwrap()).sum();
    assert_eq!(served, 1);
    assert!(lanes.look(0, asked, 11).is_some());
}

/// A lane that its client gives back when it has read the answer, and another one that claims it.
fn handed_over() {
    let lanes = Lanes::new(1);
    let held = lanes.claim(0, 1);
    let next = thread::spawn({
        let lanes = Arc::clone(&lanes);
        move || {
            if let Ok(Some(held)) = lanes.cells().claim(0, id(3)) {
                let asked = lanes.ask(0, held, 31);
                lanes.serve(4);
                assert!(lanes.look(0, asked, 31).is_some());
            }
        }
    });
    let asked = lanes.ask(0, held, 11);
    lanes.serve(2);
    lanes.cells().leave(0, lanes.look(0, asked, 11).unwrap());
    next.join().unwrap();
}

/// The stream itself, with its waits: a client of one request.
fn whole() -> Inference {
    let field = |name| vec![Field::new(name, Dtype::U64, &[1]).unwrap()];
    Inference::create(&field("obs"), &field("action"), 1, 1).unwrap()
}

fn client(stream: &Inference, worker: u64) -> Client {
    stream.client(&[vec![0]], id(worker), None, &mut || true).unwrap()
}

/// Ask for `value`, and wait for the answer.
fn ask(client: &mut Client, value: u64) -> Result<()> {
    client.ask(0, &[0], |_, row| {
        row[0] = value;
        value
    })?;
    assert_eq!(client.wait(None, &mut || true)?, 0);
    client.take(0, |_, row, note| assert_eq!((row[0], note), (value, 7), "the answer to another request"))?;
    Ok(())
}

/// Wait for a request and answer it.
fn serve(stream: &Inference, worker: u64) {
    let mut server = stream.server(id(worker)).unwrap();
    let mut value = 0;
    server.take(1, None, Duration::ZERO, &mut || true, |_, _, row, _| value = row[0]).unwrap();
    server.answer(7, |_, row| row[0] = value).unwrap();
}

/// A client that waits for its answer, and a server that waits for it; the server is killed at a point, reaped, and has
/// a successor. The client is always answered.
fn waiting_client(point: u32) -> bool {
    let stream = whole();
    let server = thread::spawn({
        let stream = stream.clone();
        move || {
            let killed = kill::run(point, || serve(&stream, 2));
            if killed.is_err() {
                stream.reap(id(2)).unwrap();
                // Killed behind the answer there is nothing left to do.
                if !matches!(killed, Err(at) if at.ends_with("answered") || at.ends_with("wake")) {
                    serve(&stream, 2);
                }
            }
            killed.is_err()
        }
    });
    ask(&mut client(&stream, 1), 11).unwrap();
    server.join().unwrap()
}

/// A client is killed at a point while its server waits or answers; its successor waits for the lane, asks, is
/// answered.
fn waiting_server(point: u32) -> bool {
    let stream = whole();
    let server = thread::spawn({
        let stream = stream.clone();
        move || serve(&stream, 2)
    });
    let killed = kill::run(point, || ask(&mut client(&stream, 1), 11).unwrap());
    if killed.is_err() {
        stream.reap(id(1)).unwrap();
    }
    // The server has seen the first request, or sees the second one.
    let mut next = client(&stream, 1);
    next.ask(0, &[0], |_, row| {
        row[0] = 21;
        21
    })
    .unwrap();
    server.join().unwrap();
    match next.wait(Some(Duration::ZERO), &mut || true) {
        Ok(_) => {}
        Err(Error::Timeout { .. }) => {
            serve(&stream, 3);
            assert_eq!(next.wait(None, &mut || true).unwrap(), 0);
        }
        Err(error) => panic!("{error}"),
    }
    next.take(0, |_, row, _| assert_eq!(row[0], 21)).unwrap();
    killed.is_err()
}

#[test]
fn client_killed_at_every_point() {
    assert_eq!(thorough(|| check_kills(2, |point| kill_one(true, point))), 5);
}

#[test]
fn server_killed_at_every_point() {
    assert_eq!(thorough(|| check_kills(2, |point| kill_one(false, point))), 6);
}

#[test]
fn a_late_answer_goes_to_nobody() {
    check_thoroughly(3, reap_beside_answer);
}

#[test]
fn a_lane_changes_its_client() {
    check_thoroughly(2, handed_over);
}

#[test]
fn what_a_dead_server_had_is_answered_by_another() {
    check_thoroughly(2, server_reaped_beside_another);
}

#[test]
fn each_request_has_one_server() {
    check_thoroughly(2, two_servers);
}

#[test]
fn a_client_waits_through_the_death_of_its_server() {
    assert!(check_kills(1, waiting_client) > 3);
}

#[test]
fn a_successor_waits_for_the_lane_of_the_dead() {
    assert!(check_kills(1, waiting_server) > 3);
}

#[test]
#[ignore = "minutes"]
fn waits_under_more_schedules() {
    check_kills(2, waiting_client);
    check_kills(2, waiting_server);
}

#[test]
fn every_ordering_is_needed() {
    let plain = || _ = kill_one(true, u32::MAX);
    let left = unnoticed(
        "inference/cells.rs",
        &[(3, reap_beside_answer), (2, server_reaped_beside_another), (2, handed_over)],
        &[(2, plain), (2, two_servers)],
    );
    assert_eq!(left, [""; 0]);
}

/// Negative control: without the orphan a late answer is written over that to the next client.
#[test]
fn without_the_orphan_a_late_answer_is_taken() {
    fn model() {
        let lanes = Lanes::new(1);
        lanes.ask(0, lanes.claim(0, 1), 11);
        let server = thread::spawn({
            let lanes = Arc::clone(&lanes);
            move || {
                let word = lanes.cells().take(0, id(2));
                write(&lanes.answers[0], read(&lanes.requests[0]));
                word.map(|word| lanes.cells().answer(0, word))
            }
        });
        // A careless reaper: the lane is free at once.
        lanes.words[0].store(0, Ordering::Release);
        let asked = lanes.ask(0, lanes.claim(0, 1), 21);
        lanes.serve(3);
        lanes.look(0, asked, 21);
        let _ = server.join().unwrap();
    }
    assert!(fails(2, model));
    check(0, two_servers);
}
