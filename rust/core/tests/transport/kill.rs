//! SIGKILL at random instants, in real processes.
//!
//! A child is this test binary run again with `child` as its only test and its role in the environment. Death is proven by
//! reaping the child before its cells are reaped.
#![allow(unsafe_code)] // descriptors by number, as a spawned worker gets them

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rlz_core::limiter::Limiter;
use rlz_core::limiter::rule::Rule;
use rlz_core::memory::{Access, Segment};
use rlz_core::replay::{Batch, Replay};
use rlz_core::sync::{AtomicU64, Ordering, fence};

use crate::{fill, id, is_whole, pattern, words_field};

const STORM: Duration = Duration::from_secs(3);
const LANES: usize = 8;
const LANES_EACH: usize = 2;

// Words of the segment in which children report.
const GOOD: usize = 0;
const TORN: usize = 1;
const STEPS: usize = 8;

fn stream<T>(name: &str, attach: impl Fn(BorrowedFd<'_>) -> T) -> T {
    let fd: i32 = std::env::var(name).expect("a descriptor for the child").parse().unwrap();
    // SAFETY: the parent opened it for this process, and nobody closes it.
    attach(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn report() -> Segment {
    stream("RLZ_REPORT", |fd| Segment::attach(fd, Access::ReadWrite).unwrap())
}

/// Entry of the children; nothing when run as a test.
#[test]
fn child() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    match std::env::var("RLZ_ROLE").as_deref() {
        Ok("writer") => write_for_ever(number("RLZ_WORKER"), number("RLZ_FIRST_LANE")),
        Ok("reader") => read_for_ever(number("RLZ_WORKER")),
        Ok("stepper") => step_to_the_end(number("RLZ_WORKER"), number("RLZ_FIRST_LANE")),
        _ => {}
    }
}

fn lanes_from(first: u64) -> Vec<usize> {
    let first = usize::try_from(first).unwrap();
    (first..first + LANES_EACH).collect()
}

fn write_for_ever(worker: u64, first_lane: u64) {
    let replay = stream("RLZ_REPLAY", |fd| Replay::attach(fd).unwrap());
    let lanes = lanes_from(first_lane);
    let mut writer = replay.writer(&lanes, id(worker)).unwrap();
    let mut row = vec![0; replay.schema().words()];
    loop {
        for lane in &lanes {
            fill(&mut row, *lane as u64, replay.committed().unwrap()[*lane] + 1);
            writer.append_packed(*lane, &row, 1, 0).unwrap();
        }
    }
}

fn read_for_ever(seed: u64) {
    let replay = stream("RLZ_REPLAY", |fd| Replay::attach(fd).unwrap());
    let report = report();
    let report = report.words(0, 8).unwrap();
    let mut sampler = replay.sampler([seed, 2, 3, 4]);
    let words = replay.schema().words();
    let (mut rows, mut ids) = (vec![0; 32 * words], vec![0; 32 * 3]);
    loop {
        if sampler.available().unwrap() == 0 {
            continue;
        }
        sampler.sample(Batch { rows: &mut rows, meta: None, ids: Some(&mut ids) }, 1).unwrap();
        for (row, id) in rows.chunks_exact(words).zip(ids.chunks_exact(3)) {
            let result = if is_whole(row, id[0], id[2]) { GOOD } else { TORN };
            report[result].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn step_to_the_end(worker: u64, first_lane: u64) {
    let limiter = stream("RLZ_LIMITER", |fd| Limiter::attach(fd).unwrap());
    let report = report();
    let lanes = lanes_from(first_lane);
    let mut tickets = vec![0; lanes.len()];
    while limiter.acquire_steps(&lanes, &mut tickets, id(worker), None, &mut || true).unwrap() > 0 {
        for (lane, ticket) in lanes.iter().zip(&tickets) {
            if let Ok(index) = usize::try_from(*ticket) {
                report.words((STEPS + index) * 8, 1).unwrap()[0].fetch_add(1, Ordering::Relaxed);
                limiter.complete_step(*lane).unwrap();
            }
        }
    }
}

/// A duplicate that a spawned child inherits.
fn inheritable(stream: &impl AsFd) -> OwnedFd {
    rustix::io::dup(stream.as_fd()).unwrap()
}

struct Worker {
    child: Child,
    id: u64,
    role: &'static str,
    first_lane: usize,
}

/// Starts workers with ids that go round, and kills those that are left when dropped.
struct Nursery {
    fds: Vec<(&'static str, OwnedFd)>,
    workers: Vec<Worker>,
    next_id: u64,
    random: u64,
}

impl Nursery {
    fn new(fds: Vec<(&'static str, OwnedFd)>) -> Self {
        Self { fds, workers: Vec::new(), next_id: 1, random: 0x1234_5678_9abc_def1 }
    }

    fn spawn(&mut self, role: &'static str, first_lane: usize) {
        let id = self.next_id;
        self.next_id = id % 1022 + 1;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["kill::child", "--exact", "--test-threads=1"]).stdout(Stdio::null());
        command.env("RLZ_ROLE", role).env("RLZ_WORKER", id.to_string()).env("RLZ_FIRST_LANE", first_lane.to_string());
        for (name, fd) in &self.fds {
            command.env(name, fd.as_raw_fd().to_string());
        }
        self.workers.push(Worker { child: command.spawn().unwrap(), id, role, first_lane });
    }

    /// Sleep below `most`, then kill and reap a random worker; it is out of the list.
    fn kill_one(&mut self, most: Duration) -> Worker {
        let nap = self.below(u64::try_from(most.as_micros()).unwrap());
        std::thread::sleep(Duration::from_micros(nap));
        let victim = usize::try_from(self.below(self.workers.len() as u64)).unwrap();
        let mut worker = self.workers.swap_remove(victim);
        worker.child.kill().unwrap();
        let status = worker.child.wait().unwrap();
        assert!(status.code().is_none_or(|code| code == 0), "{} failed by itself: {status}", worker.role);
        worker
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}

#[test]
fn replay_survives_a_kill_storm() {
    let replay = Replay::create(&words_field(512), 64, LANES, 1).unwrap();
    let report = Segment::create("report", 4096).unwrap();
    let ring = replay.ring().unwrap();
    let fds = vec![("RLZ_REPLAY", inheritable(&replay)), ("RLZ_REPORT", inheritable(&report))];
    let mut nursery = Nursery::new(fds);
    for first_lane in (0..LANES).step_by(LANES_EACH) {
        nursery.spawn("writer", first_lane);
    }
    nursery.spawn("reader", 0);
    let (mut kills, mut in_a_row, mut uncounted) = (0, 0, 0);
    let start = Instant::now();
    while start.elapsed() < STORM {
        // A kill during start-up shows little: wait until everybody writes.
        while start.elapsed() < STORM && replay.owners().unwrap().contains(&0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let dead = nursery.kill_one(Duration::from_millis(5));
        kills += 1;
        for lane in (0..LANES).filter(|lane| ring.owner(*lane) == dead.id) {
            let ticket = ring.committed(lane) + 1;
            let stamp = ring.mark(ring.slot(lane, ticket))[0].load(Ordering::Relaxed);
            in_a_row += stamp & 1;
            uncounted += u64::from(stamp & 1 == 0 && stamp >> 11 == ticket);
        }
        let owned = replay.reap(id(dead.id)).unwrap();
        assert!(dead.role == "writer" || owned == 0);
        assert_eq!(replay.reap(id(dead.id)).unwrap(), 0);
        nursery.spawn(dead.role, dead.first_lane);
    }
    // Everybody dies; what is left is whole, and nothing between the oldest and the newest row is missing.
    while !nursery.workers.is_empty() {
        let dead = nursery.kill_one(Duration::from_millis(1));
        replay.reap(id(dead.id)).unwrap();
    }
    assert_eq!(replay.owners().unwrap(), [0; LANES]);
    let capacity = replay.lane_capacity();
    for (lane, committed) in replay.committed().unwrap().into_iter().enumerate() {
        assert!(committed > 1_000, "lane {lane} got {committed} rows: did its writers run?");
        let (mut rows, mut meta) = (vec![0; capacity * 512], vec![0; capacity]);
        let first = committed + 2 - capacity as u64;
        assert_eq!(replay.read_rows(lane, first, &mut rows, &mut meta).unwrap(), capacity - 1);
        for (row, ticket) in rows.chunks_exact(512).zip(first..=committed) {
            assert!(is_whole(row, lane as u64, ticket));
        }
    }
    let report = report.words(0, 8).unwrap();
    let (good, torn) = (report[GOOD].load(Ordering::Relaxed), report[TORN].load(Ordering::Relaxed));
    println!("{kills} kills, {in_a_row} in a row, {uncounted} before the count; {good} rows whole, {torn} torn");
    assert_eq!(torn, 0);
    assert!(good > 1_000);
}

#[test]
fn limiter_survives_a_kill_storm() {
    const TOTAL: u64 = 500_000;
    let slack = 8.0;
    let rule = Rule::new(TOTAL, 100, Some((1, 2)), slack).unwrap();
    let limiter = Limiter::create(rule, LANES, 1, 0, 0).unwrap();
    let total = usize::try_from(TOTAL).unwrap();
    let report = Segment::create("report", (STEPS + total) * 8).unwrap();
    let fds = vec![("RLZ_LIMITER", inheritable(&limiter)), ("RLZ_REPORT", inheritable(&report))];
    let mut nursery = Nursery::new(fds);
    for first_lane in (0..LANES).step_by(LANES_EACH) {
        nursery.spawn("stepper", first_lane);
    }
    let mut kills = 0;
    std::thread::scope(|scope| {
        let learner = scope.spawn(|| {
            loop {
                match limiter.acquire_updates(3, id(1021), Some(Duration::from_secs(30)), &mut || true).unwrap() {
                    0 => break,
                    count => limiter.complete_updates(count).unwrap(),
                }
                let line = |steps: u64| steps.saturating_sub(100) as f64 / 2.0;
                let (updates, steps) = (limiter.updates().unwrap(), limiter.env_steps().unwrap());
                assert!(updates as f64 - line(steps) <= slack);
                let (steps, updates) = (limiter.env_steps().unwrap(), limiter.updates().unwrap());
                assert!(line(steps) - updates as f64 <= slack);
            }
        });
        let start = Instant::now();
        while !learner.is_finished() && start.elapsed() < STORM {
            let dead = nursery.kill_one(Duration::from_millis(15));
            kills += 1;
            limiter.reap(id(dead.id)).unwrap();
            nursery.spawn(dead.role, dead.first_lane);
        }
        learner.join().unwrap();
    });
    println!("{kills} kills");
    assert_eq!(limiter.env_steps().unwrap(), TOTAL);
    assert_eq!(limiter.granted().unwrap(), TOTAL);
    assert_eq!(limiter.lane_steps().unwrap().iter().sum::<u64>(), TOTAL);
    assert_eq!(Some(limiter.updates().unwrap()), limiter.rule().target_updates());
    let stepped = report.words(STEPS * 8, total).unwrap();
    assert!(stepped.iter().all(|times| times.load(Ordering::Relaxed) >= 1), "an index was never stepped");
    let again: u64 = stepped.iter().map(|times| times.load(Ordering::Relaxed) - 1).sum();
    assert!(again <= kills * LANES_EACH as u64, "{again} indices stepped again with {kills} kills");
    assert!(kills > 10);
}

/// Negative control: without the second look at the stamp, torn rows are seen, so the tests above can fail.
#[test]
fn without_the_second_look_rows_are_torn() {
    let replay = Replay::create(&words_field(4096), 1, 1, 1).unwrap();
    let ring = replay.ring().unwrap();
    let stop = AtomicU64::new(0);
    let torn = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = replay.writer(&[0], id(5)).unwrap();
            let mut row = vec![0; 4096];
            while stop.load(Ordering::Relaxed) == 0 {
                fill(&mut row, 0, replay.committed().unwrap()[0] + 1);
                writer.append_packed(0, &row, 0, 0).unwrap();
            }
        });
        let start = Instant::now();
        let mut torn = 0;
        while torn == 0 && start.elapsed() < Duration::from_secs(20) {
            let mark = ring.mark(0);
            let stamp = mark[0].load(Ordering::Acquire);
            if stamp == 0 || stamp & 1 == 1 {
                continue;
            }
            let row: Vec<u64> = ring.row(0).iter().map(|word| word.load(Ordering::Relaxed)).collect();
            fence(Ordering::Acquire);
            torn += u64::from(row[0] != pattern(0, stamp >> 11, 0) || !is_whole(&row, 0, stamp >> 11));
        }
        stop.store(1, Ordering::Relaxed);
        torn
    });
    assert!(torn > 0, "no torn row in 20 s");
}
