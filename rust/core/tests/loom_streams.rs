//! Models of the parameter store, the limiter and the event count.
#![cfg(loom)]

mod model;

use std::mem::ManuallyDrop;
use std::sync::Arc;

use loom::thread;
use model::{check, check_kills, fails, id, unnoticed, unnoticed_thoroughly, zeros};
use rlz_core::kill;
use rlz_core::limiter::counters::{Claim, Counters};
use rlz_core::parameters::ParameterStore;
use rlz_core::schema::{Dtype, Field};
use rlz_core::sync::{AtomicU64, Ordering};
use rlz_core::wait::EventCount;

fn content(version: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes[8..].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn store() -> Arc<ParameterStore> {
    ParameterStore::create(&[Field::new("w", Dtype::U64, &[2]).unwrap()], 1, 1).unwrap()
}

/// A publisher of versions 2 to `last` (5 comes round to the slot being read), killed at a point; its successor goes on; readers copy or lease.
fn publish(point: u32, last: u64, lease: bool) -> bool {
    let store = store();
    let mut first = ManuallyDrop::new(store.publisher(id(1)).unwrap());
    first.publish(&content(1), 1, 0).unwrap();
    let publisher = thread::spawn(move || {
        kill::run(point, || {
            for version in 2..=last {
                assert_eq!(first.publish(&content(version), version, 0).unwrap(), version);
            }
        })
        .is_err()
    });
    let reader = thread::spawn({
        let store = Arc::clone(&store);
        move || {
            let mut subscriber = store.subscriber(id(2));
            let mut bytes = [0; 16];
            let publication = if lease {
                let lease = subscriber.lease().unwrap();
                for (word, bytes) in lease.words().iter().zip(bytes.chunks_exact_mut(8)) {
                    bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
                }
                lease.publication()
            } else {
                subscriber.read(&mut bytes).unwrap()
            };
            assert_eq!(bytes, content(publication.version), "torn");
            assert_eq!(publication.env_steps, publication.version, "torn");
        }
    });
    let killed = publisher.join().unwrap();
    store.reap(id(1));
    let version = store.version();
    assert!((1..=last).contains(&version) && (killed || version == last));
    let mut next = store.publisher(id(3)).unwrap();
    assert_eq!(next.publish(&content(version + 1), version + 1, 0).unwrap(), version + 1);
    reader.join().unwrap();
    let mut bytes = [0; 16];
    assert_eq!(store.subscriber(id(4)).read(&mut bytes).unwrap().version, version + 1);
    assert_eq!(bytes, content(version + 1));
    killed
}

#[test]
fn a_publisher_killed_at_every_point() {
    assert_eq!(check_kills(1, |point| publish(point, 2, false)), 6);
}

#[test]
#[ignore = "a minute"]
fn a_publisher_killed_at_every_point_as_it_comes_round() {
    for lease in [false, true] {
        for point in 18..=24 {
            check(1, move || _ = publish(point, 5, lease));
        }
    }
}

#[test]
fn a_publisher_comes_round_to_a_copying_reader() {
    check(1, || _ = publish(u32::MAX, 5, false));
}

#[test]
fn a_publisher_comes_round_to_a_leasing_reader() {
    check(1, || _ = publish(u32::MAX, 5, true));
}

const TOTAL: u64 = 2;

struct Steps {
    words: Vec<AtomicU64>,
    /// Rows written by each lane.
    rows: Vec<AtomicU64>,
}

impl Steps {
    /// Claim, write a row and complete, until all indices are out.
    fn run(&self, lane: usize) {
        let counters = Counters::new(&self.words);
        while let Claim::Index(index) = counters.claim(lane, |index| index < TOTAL) {
            assert!(index < TOTAL);
            self.rows[lane].store(self.rows[lane].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            assert!(counters.complete(lane));
        }
    }
}

/// Two lanes share the run's steps; the owner of one is killed at a point and has a successor.
fn share_steps(point: u32) -> bool {
    let steps = Arc::new(Steps { words: zeros(Counters::words(2)), rows: zeros(2) });
    let dying = thread::spawn({
        let steps = Arc::clone(&steps);
        move || kill::run(point, || steps.run(0)).is_err()
    });
    let other = thread::spawn({
        let steps = Arc::clone(&steps);
        move || steps.run(1)
    });
    let killed = dying.join().unwrap();
    steps.run(0);
    other.join().unwrap();
    // The other may have ended while an index of the dead was open: the successor has taken it.
    let counters = Counters::new(&steps.words);
    assert_eq!((counters.granted(), counters.done()), (TOTAL, TOTAL));
    killed
}

/// A learner that sees a step counted sees its row.
fn seen_by_learner() {
    let steps = Arc::new(Steps { words: zeros(Counters::words(1)), rows: zeros(1) });
    let sampler = thread::spawn({
        let steps = Arc::clone(&steps);
        move || steps.run(0)
    });
    let done = Counters::new(&steps.words).done();
    assert!(steps.rows[0].load(Ordering::Relaxed) >= done, "a step was counted whose row is not there");
    sampler.join().unwrap();
}

#[test]
fn no_step_index_is_lost() {
    assert!(check_kills(2, share_steps) > 6);
}

#[test]
fn every_ordering_of_the_step_counters_is_needed() {
    let mut left = unnoticed_thoroughly("limiter/counters.rs", &[(3, seen_by_learner)]);
    let shared = [(2, (|| _ = share_steps(u32::MAX)) as fn()), (2, || _ = share_steps(2))];
    let others = unnoticed("limiter/counters.rs", &shared);
    left.retain(|line| others.contains(line));
    assert_eq!(left, Vec::<String>::new());
}

/// A waiter and a notifier that may be killed before its wake, which the reaper then makes up for.
fn wake(point: u32) -> bool {
    let words = Arc::new((zeros(EventCount::WORDS), AtomicU64::new(0)));
    let waiter = thread::spawn({
        let words = Arc::clone(&words);
        move || {
            let ready = || Ok((words.1.load(Ordering::Relaxed) == 1).then_some(()));
            EventCount::new(&words.0).wait(id(1), None, &mut || true, ready).unwrap().unwrap();
        }
    });
    let notifier = thread::spawn({
        let words = Arc::clone(&words);
        move || {
            kill::run(point, || {
                words.1.store(1, Ordering::Relaxed);
                EventCount::new(&words.0).notify();
            })
            .is_err()
        }
    });
    let killed = notifier.join().unwrap();
    if killed {
        EventCount::new(&words.0).reap(id(3));
    }
    waiter.join().unwrap();
    killed
}

/// Two notifiers whose stores make the predicate true together, each waking only if it sees it true: the last one does.
fn two_notifiers() {
    let words = Arc::new((zeros(EventCount::WORDS), zeros(2)));
    let both = |flags: &[AtomicU64]| flags.iter().all(|flag| flag.load(Ordering::Relaxed) == 1);
    let notifiers = [0, 1].map(|flag: usize| {
        let words = Arc::clone(&words);
        thread::spawn(move || {
            words.1[flag].store(1, Ordering::Relaxed);
            EventCount::new(&words.0).notify_if(|| both(&words.1));
        })
    });
    let ready = || Ok(both(&words.1).then_some(()));
    EventCount::new(&words.0).wait(id(1), None, &mut || true, ready).unwrap().unwrap();
    notifiers.into_iter().for_each(|notifier| notifier.join().unwrap());
}

/// A lost wake is a run without end here: sleeps of a model have no slices.
#[test]
fn no_wake_is_lost() {
    assert_eq!(check_kills(2, wake), 1);
    check(2, two_notifiers);
}

#[test]
fn every_fence_of_the_event_count_is_needed() {
    let left = unnoticed("src/wait.rs", &[(2, || _ = wake(u32::MAX))]);
    // The addition follows a SeqCst fence, which releases too (a reaper's does not, but what it announces is ordered by the
    // wake itself); the other is for a figure.
    let spare =
        ["self.seq.fetch_add(1, Ordering::Release);", "if slept_out == Some(self.seq.load(Ordering::Acquire)) {"];
    assert_eq!(left, spare);
}

/// Negative control: a notifier that looks for waiters before it stores loses wakes.
#[test]
fn looking_before_storing_loses_wakes() {
    assert!(fails(2, || {
        let words = Arc::new((zeros(EventCount::WORDS), AtomicU64::new(0)));
        let waiter = thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let ready = || Ok((words.1.load(Ordering::Relaxed) == 1).then_some(()));
                EventCount::new(&words.0).wait(id(1), None, &mut || true, ready).unwrap().unwrap();
            }
        });
        EventCount::new(&words.0).notify();
        words.1.store(1, Ordering::Relaxed);
        waiter.join().unwrap();
    }));
}
