//! Models of the event count: waiters, notifiers, kills, reaper. A lost wake is a run without end here, because sleeps
//! of a model have no slices.

use std::sync::Arc;

use loom::thread;
use rlz_core::kill;
use rlz_core::sync::{AtomicU64, Ordering};
use rlz_core::wait::EventCount;

use crate::model::{check, check_kills, fails, id, unnoticed, zeros};

/// Words of an event count, and what is waited for.
type Words = Arc<(Vec<AtomicU64>, AtomicU64)>;

fn fresh() -> Words {
    Arc::new((zeros(EventCount::WORDS), AtomicU64::new(0)))
}

/// A wait of `worker` for a value.
fn wait(words: &Words, worker: u64, value: u64) -> impl FnOnce() + use<> {
    let words = Arc::clone(words);
    move || {
        let ready = || Ok((words.1.load(Ordering::Relaxed) >= value).then_some(()));
        EventCount::new(&words.0).wait(id(worker), None, &mut || true, ready).unwrap().unwrap();
    }
}

/// A waiter and a notifier that may be killed before its wake, which the reaper then makes up for.
fn wake(point: u32) -> bool {
    let words = fresh();
    let waiter = thread::spawn(wait(&words, 1, 1));
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
    let left = unnoticed("src/wait.rs", &[], &[(2, || _ = wake(u32::MAX))]);
    // The addition follows a SeqCst fence, which releases too (a reaper's does not, but what it announces is ordered by
    // the wake itself); the other is for a figure.
    let spare =
        ["self.seq.fetch_add(1, Ordering::Release);", "if slept_out == Some(self.seq.load(Ordering::Acquire)) {"];
    assert_eq!(left, spare);
}

/// Negative control: a notifier that looks for waiters before it stores loses wakes.
#[test]
fn looking_before_storing_loses_wakes() {
    assert!(fails(2, || {
        let words = fresh();
        let waiter = thread::spawn(wait(&words, 1, 1));
        EventCount::new(&words.0).notify();
        words.1.store(1, Ordering::Relaxed);
        waiter.join().unwrap();
    }));
}

/// Two waiters, one of which is killed after it announced itself, and a notifier; then the reaper, and a successor with
/// the id of the dead.
fn wait_and_die(point: u32) -> bool {
    let words = fresh();
    let bits = |words: &[AtomicU64]| words[2].load(Ordering::Relaxed);
    let dying = thread::spawn({
        let (words, first, successor) = (Arc::clone(&words), wait(&words, 1, 1), wait(&words, 1, 2));
        move || {
            let killed = kill::run(point, first).is_err();
            assert_eq!(bits(&words.0) & 2 != 0, killed, "its bit is left to the reaper");
            if killed {
                EventCount::new(&words.0).reap(id(1));
            }
            successor();
            killed
        }
    });
    let other = thread::spawn(wait(&words, 2, 1));
    for value in 1..=2 {
        words.1.store(value, Ordering::Relaxed);
        EventCount::new(&words.0).notify(); // comes to an end, whatever bits are left
    }
    other.join().unwrap();
    let killed = dying.join().unwrap();
    assert_eq!(bits(&words.0), 0);
    killed
}

/// Everything between the announcement and the end of the wait leaves the same words: there is one point.
#[test]
fn a_waiter_killed_at_every_point() {
    assert_eq!(check_kills(1, wait_and_die), 1);
}
