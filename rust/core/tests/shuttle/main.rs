//! Random schedules of more threads than an exhaustive check can take: queue, replay lanes and limiter, with kills at
//! random points, reaping and successors. All orderings are SeqCst here; `tests/loom` is about those. A failure prints
//! the seed of its schedule, and the variable that runs that one again.
#![cfg(shuttle)]

use std::cell::UnsafeCell;
use std::sync::Arc;

use rlz_core::WorkerId;
use rlz_core::kill;
use rlz_core::limiter::Limiter;
use rlz_core::limiter::rule::Rule;
use rlz_core::owner::Holder;
use rlz_core::queue::slots::Slots;
use rlz_core::queue::{Counter, Redelivery};
use rlz_core::replay::ring::HEAD_WORDS;
use rlz_core::replay::{Meta, Ring};
use rlz_core::sync::{AtomicU64, Ordering, StaticU64};
use rlz_core::wait::EventCount;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, MaxSteps, Runner, thread};

const SCHEDULES: usize = 20_000;
const SEED: u64 = 1;

/// Threads killed so far, in all models.
static KILLED: StaticU64 = StaticU64::new(0);

/// Run `model` under random schedules.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(100_000); // beyond: somebody waits for ever
    println!("{SCHEDULES} schedules from seed {SEED}");
    Runner::new(RandomScheduler::new_from_seed(SEED, SCHEDULES), config).run(model);
    assert!(KILLED.load(Ordering::Relaxed) > SCHEDULES as u64 / 10, "few schedules had a kill");
}

fn id(worker: u64) -> WorkerId {
    WorkerId::new(worker).unwrap()
}

fn zeros(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Run `body`, killed at one of its first 60 kill points if it has as many: whether it was.
fn die_at_random(body: impl FnOnce()) -> bool {
    let killed = kill::run(thread_rng().gen_range(0..60), body).is_err();
    KILLED.fetch_add(killed.into(), Ordering::Relaxed);
    killed
}

struct Queue {
    tickets: AtomicU64,
    closed: AtomicU64,
    counters: Vec<AtomicU64>,
    words: Vec<AtomicU64>,
    payload: Vec<UnsafeCell<u64>>,
    not_full: Vec<AtomicU64>,
    not_empty: Vec<AtomicU64>,
    /// How often each segment was read.
    seen: Vec<AtomicU64>,
    /// Producers that have come to an end.
    ended: AtomicU64,
}

#[allow(unsafe_code)]
// SAFETY: threads of a model take turns; that each cell belongs to one of them at a time is what the model checks.
unsafe impl Sync for Queue {}

const PRODUCERS: u64 = 3;
const CONSUMERS: u64 = 3;
/// Segments of each producer.
const SEGMENTS: u64 = 3;

impl Queue {
    fn slots(&self) -> Slots<'_> {
        Slots::new(&self.tickets, &self.closed, &self.counters, &self.words)
    }

    #[allow(unsafe_code)]
    fn produce(&self, worker: u64) {
        for number in 0..SEGMENTS {
            let (me, not_full) = (Holder::new(id(worker)), EventCount::new(&self.not_full));
            let slot = not_full.wait(id(worker), None, &mut || true, || Ok(self.slots().claim(me, 0)));
            let slot = slot.unwrap().unwrap();
            // SAFETY: the slot is ours.
            unsafe { *self.payload[slot].get() = 0 };
            thread::yield_now();
            // SAFETY: as above.
            unsafe { *self.payload[slot].get() = 1 + (worker - 1) * SEGMENTS + number };
            self.slots().commit(me, slot).unwrap();
            EventCount::new(&self.not_empty).notify();
        }
    }

    /// Read until all producers have ended and nothing is left.
    #[allow(unsafe_code)]
    fn consume(&self, worker: u64) {
        let mut last = vec![0; PRODUCERS as usize];
        loop {
            let not_empty = EventCount::new(&self.not_empty);
            let popped = not_empty.wait(id(worker), None, &mut || true, || {
                let closed = self.slots().is_closed();
                let popped = self.slots().pop(id(worker));
                let ended = || closed && self.slots().ended(id(worker), Redelivery::AtLeastOnce, 15);
                Ok((popped.is_some() || ended()).then_some(popped))
            });
            let Some(delivery) = popped.unwrap().unwrap() else { return };
            // SAFETY: the slot is ours to read.
            let value = unsafe { *self.payload[delivery.slot].get() };
            assert_ne!(value, 0, "half a segment");
            let last = &mut last[((value - 1) / SEGMENTS) as usize];
            assert!(value > *last || delivery.word.deliveries() > 0, "{value} after {last}");
            *last = value;
            self.seen[value as usize - 1].fetch_add(1, Ordering::SeqCst);
            thread::yield_now();
            // SAFETY: as above.
            assert_eq!(unsafe { *self.payload[delivery.slot].get() }, value, "written while it was read");
            self.slots().release(delivery).unwrap();
            EventCount::new(&self.not_full).notify();
            if self.slots().is_closed() {
                EventCount::new(&self.not_empty).notify(); // others may be waiting for the end
            }
        }
    }

    fn reap(&self, worker: u64) {
        self.slots().reap(id(worker), Redelivery::AtLeastOnce, 15);
        EventCount::new(&self.not_full).reap(id(worker));
        EventCount::new(&self.not_empty).reap(id(worker));
    }
}

/// Three producers and three consumers share two slots; each may be killed, is reaped, and a consumer has a successor.
fn share_slots(reaped: bool) {
    let queue = Arc::new(Queue {
        tickets: AtomicU64::new(0),
        closed: AtomicU64::new(0),
        counters: zeros(Counter::COUNT),
        words: zeros(2),
        payload: (0..2).map(|_| UnsafeCell::new(0)).collect(),
        not_full: zeros(EventCount::WORDS),
        not_empty: zeros(EventCount::WORDS),
        seen: zeros((PRODUCERS * SEGMENTS) as usize),
        ended: AtomicU64::new(0),
    });
    let producers: Vec<_> = (1..=PRODUCERS)
        .map(|worker| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let killed = die_at_random(|| queue.produce(worker));
                // Closed before the last one is reaped: what it holds is waited for.
                if queue.ended.fetch_add(1, Ordering::SeqCst) + 1 == PRODUCERS {
                    queue.slots().close();
                }
                if killed && reaped {
                    queue.reap(worker);
                }
                EventCount::new(&queue.not_empty).notify();
                killed
            })
        })
        .collect();
    let consumers: Vec<_> = (1..=CONSUMERS)
        .map(|consumer| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let worker = PRODUCERS + consumer;
                if die_at_random(|| queue.consume(worker)) {
                    if reaped {
                        queue.reap(worker);
                    }
                    queue.consume(worker);
                }
            })
        })
        .collect();
    let killed: Vec<_> = producers.into_iter().map(|producer| producer.join().unwrap()).collect();
    consumers.into_iter().for_each(|consumer| consumer.join().unwrap());
    for (segments, killed) in queue.seen.chunks_exact(SEGMENTS as usize).zip(killed) {
        let seen: Vec<_> = segments.iter().map(|seen| seen.load(Ordering::SeqCst) > 0).collect();
        assert!(seen.is_sorted_by(|a, b| a >= b), "{seen:?}: one lost before one that came");
        assert!(killed || seen.iter().all(|seen| *seen), "{seen:?}: lost");
    }
    assert!(queue.slots().words().all(|word| word.owner() == 0 && word.ticket() == 0), "a slot is leaked");
}

/// Two lanes of two slots, their writers killed, reaped and followed, beside three readers.
fn share_lanes(second_look: bool) {
    const LANES: usize = 2;
    const SLOTS: usize = 2;
    struct Words(Vec<AtomicU64>, Vec<AtomicU64>, Vec<AtomicU64>);
    impl Words {
        fn ring(&self) -> Ring<'_> {
            Ring::new(&self.0, &self.1, &self.2, SLOTS)
        }
    }
    let words = Arc::new(Words(zeros(LANES * HEAD_WORDS), zeros(LANES * SLOTS * 2), zeros(LANES * SLOTS * 3)));
    let writers: Vec<_> = (0..LANES)
        .map(|lane| {
            let words = Arc::clone(&words);
            let append = move |words: &Words, worker| {
                let ring = words.ring();
                ring.acquire(lane, id(worker)).unwrap();
                for _ in 0..5 {
                    let ticket = ring.committed(lane) + 1;
                    let meta = Meta { version: ticket as u32, env: lane as u16, flags: 0 };
                    assert_eq!(ring.append(lane, id(worker), meta, &[ticket; 3]).unwrap(), ticket);
                }
            };
            thread::spawn(move || {
                let first = lane as u64 + 1;
                if die_at_random(|| append(&words, first)) {
                    words.ring().reap(lane, id(first));
                    append(&words, first + LANES as u64);
                }
            })
        })
        .collect();
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let mut row = [0; 3];
                for slot in (0..LANES * SLOTS).cycle().take(12) {
                    if !second_look {
                        words
                            .ring()
                            .row(slot)
                            .iter()
                            .zip(&mut row)
                            .for_each(|(word, into)| *into = word.load(Ordering::SeqCst));
                        assert_eq!(row, [row[0]; 3], "torn");
                    } else if let Some(mark) = words.ring().read(slot, &mut row) {
                        assert_eq!(row, [mark.ticket(); 3], "torn");
                        let meta = Meta::from_word(mark.meta);
                        assert_eq!((meta.version, meta.env), (mark.ticket() as u32, (slot / SLOTS) as u16), "torn");
                    }
                }
            })
        })
        .collect();
    writers.into_iter().chain(readers).for_each(|thread| thread.join().unwrap());
    assert!((0..LANES).all(|lane| words.ring().committed(lane) >= 5));
}

/// Four lanes and a learner, an update for each step; each may be killed, is reaped and followed.
fn share_steps(followed: bool) {
    const STEPS: u64 = 8;
    const LANES: usize = 4;
    const LEARNER: u64 = 9;
    fn sample(limiter: &Limiter, lane: usize) {
        let mut index = [0];
        while limiter.acquire_steps(&[lane], &mut index, id(lane as u64 + 1), None, &mut || true).unwrap() > 0 {
            limiter.complete_step(lane).unwrap();
        }
    }
    fn learn(limiter: &Limiter) {
        while limiter.acquire_updates(2, id(LEARNER), None, &mut || true).unwrap() > 0 {
            limiter.complete_updates(1).unwrap();
            while limiter.complete_updates(1).is_ok() {}
        }
    }
    let rule = Rule::new(STEPS, 1, Some((1, 1)), 1.0).unwrap();
    let limiter = Limiter::create(rule, LANES, 1, 0, 0).unwrap();
    let mut threads: Vec<_> = (0..LANES)
        .map(|lane| {
            let limiter = limiter.clone();
            thread::spawn(move || {
                if die_at_random(|| sample(&limiter, lane)) {
                    limiter.reap(id(lane as u64 + 1)).unwrap();
                    if followed {
                        sample(&limiter, lane);
                    }
                }
            })
        })
        .collect();
    threads.push({
        let limiter = limiter.clone();
        thread::spawn(move || {
            if die_at_random(|| learn(&limiter)) {
                limiter.reap(id(LEARNER)).unwrap();
                learn(&limiter.attach_model());
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let counts = [limiter.granted(), limiter.env_steps(), limiter.updates()].map(Result::unwrap);
    assert_eq!(counts, [STEPS, STEPS, STEPS - 1]);
}

#[test]
fn queue() {
    check(|| share_slots(true));
}

#[test]
#[should_panic]
fn without_reaping_slots_are_stuck() {
    check(|| share_slots(false));
}

#[test]
fn replay_lanes() {
    check(|| share_lanes(true));
}

#[test]
#[should_panic(expected = "torn")]
fn without_the_stamps_rows_are_torn() {
    check(|| share_lanes(false));
}

#[test]
fn limiter() {
    check(|| share_steps(true));
}

#[test]
#[should_panic]
fn without_successors_steps_are_lost() {
    check(|| share_steps(false));
}
