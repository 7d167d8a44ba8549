//! Models of the limiter: step counters by themselves, then the whole with its waits.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use rlz_core::kill;
use rlz_core::limiter::counters::{Claim, Counters};
use rlz_core::limiter::rule::Rule;
use rlz_core::limiter::{Limiter, State};
use rlz_core::sync::{AtomicU64, Ordering};
use rlz_core::{Error, Result};

use crate::model::{check, check_kills, check_thoroughly, id, unnoticed, zeros};

/// Env steps of a model.
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
    let shared: [(usize, fn()); 2] = [(2, || _ = share_steps(u32::MAX)), (2, || _ = share_steps(2))];
    assert_eq!(unnoticed("limiter/counters.rs", &[(3, seen_by_learner)], &shared), Vec::<String>::new());
}

/// Samplers and a learner. An update for each step, so each waits for the other.
struct Run {
    limiter: Limiter,
    /// Rows written by each lane.
    rows: Vec<AtomicU64>,
    /// Updates done.
    learnt: AtomicU64,
}

const LEARNER: u64 = 9;

impl Run {
    fn new(lanes: usize, steps: u64) -> Arc<Self> {
        let rule = Rule::new(steps, 0, Some((1, 1)), 1.0).unwrap();
        let limiter = Limiter::create(rule, lanes, 1, 0, 0).unwrap();
        Arc::new(Self { limiter, rows: zeros(lanes), learnt: AtomicU64::new(0) })
    }

    /// Write a row for every leave, until there are no more.
    fn sample(&self, lane: usize, worker: u64) {
        let mut index = [-1];
        while self.limiter.acquire_steps(&[lane], &mut index, id(worker), None, &mut || true).unwrap() > 0 {
            let learnt = self.learnt.load(Ordering::Relaxed);
            assert!(
                learnt.cast_signed() >= index[0],
                "step {} with leave from updates that are not to be seen",
                index[0]
            );
            let rows = &self.rows[lane];
            rows.store(rows.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.limiter.complete_step(lane).unwrap();
        }
    }

    /// A sampler that is killed at a point, the reaper, and a successor.
    fn sample_and_die(&self, point: u32) -> bool {
        let killed = kill::run(point, || self.sample(0, 1)).is_err();
        if killed {
            self.limiter.reap(id(1)).unwrap();
            self.sample(0, 1);
        }
        killed
    }

    /// Do an update for every leave, until there are no more.
    fn learn(&self, limiter: &Limiter) {
        while limiter.acquire_updates(1, id(LEARNER), None, &mut || true).unwrap() > 0 {
            let steps = limiter.env_steps().unwrap();
            let rows: u64 = self.rows.iter().map(|rows| rows.load(Ordering::Relaxed)).sum();
            assert!(rows >= steps.max(1), "a step was counted whose row is not there");
            self.learnt.store(self.learnt.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            limiter.complete_updates(1).unwrap();
        }
    }

    fn check_complete(&self) {
        let limiter = &self.limiter;
        let counts = [limiter.granted(), limiter.env_steps(), limiter.updates()].map(Result::unwrap);
        assert_eq!(counts, [limiter.rule().total_timesteps(); 3]);
    }
}

/// A sampler that is killed at a point and has a successor, beside the learner.
fn sampler_dies(point: u32) -> bool {
    let run = Run::new(1, TOTAL);
    let sampler = thread::spawn({
        let run = Arc::clone(&run);
        move || run.sample_and_die(point)
    });
    run.learn(&run.limiter);
    let killed = sampler.join().unwrap();
    run.check_complete();
    killed
}

/// A learner that is killed at a point and has a successor, beside a sampler.
fn learner_dies(point: u32) -> bool {
    let run = Run::new(1, TOTAL);
    let sampler = thread::spawn({
        let run = Arc::clone(&run);
        move || run.sample(0, 1)
    });
    let killed = kill::run(point, || run.learn(&run.limiter)).is_err();
    if killed {
        run.limiter.reap(id(LEARNER)).unwrap();
        run.learn(&run.limiter.attach_model());
    }
    sampler.join().unwrap();
    run.check_complete();
    killed
}

/// Two samplers, one of which is killed at a point and has a successor, and the learner.
fn two_samplers(steps: u64, point: u32) -> bool {
    let run = Run::new(2, steps);
    let dying = thread::spawn({
        let run = Arc::clone(&run);
        move || run.sample_and_die(point)
    });
    let other = thread::spawn({
        let run = Arc::clone(&run);
        move || run.sample(1, 2)
    });
    run.learn(&run.limiter);
    let killed = dying.join().unwrap();
    other.join().unwrap();
    run.check_complete();
    killed
}

/// A sampler that gets leave for a step (not the last) from an update sees what was done in it. Nobody waits.
fn seen_by_sampler() {
    let run = Run::new(1, TOTAL + 1);
    let sampler = thread::spawn({
        let run = Arc::clone(&run);
        move || {
            let acquire = || run.limiter.acquire_steps(&[0], &mut [0], id(1), Some(Duration::ZERO), &mut || true);
            assert_eq!(acquire().unwrap(), 1);
            run.limiter.complete_step(0).unwrap();
            if acquire().is_ok() {
                assert_eq!(run.learnt.load(Ordering::Relaxed), 1, "leave from an update that is not to be seen");
            }
        }
    });
    if run.limiter.acquire_updates(1, id(LEARNER), Some(Duration::ZERO), &mut || true).is_ok() {
        run.learnt.store(1, Ordering::Relaxed);
        run.limiter.complete_updates(1).unwrap();
    }
    sampler.join().unwrap();
}

/// A learner that gives its place back, and its successor with a handle of its own. Nobody waits.
fn learners_in_turn() {
    let run = Run::new(1, TOTAL);
    run.limiter.acquire_steps(&[0], &mut [0], id(1), Some(Duration::ZERO), &mut || true).unwrap();
    run.limiter.complete_step(0).unwrap();
    let allowed = run.limiter.rule().updates_allowed(0, 1);
    let learn = |worker: u64, limiter: &Limiter| {
        while let Ok(count @ 1..) = limiter.acquire_updates(9, id(worker), Some(Duration::ZERO), &mut || true) {
            limiter.complete_updates(count).unwrap();
        }
    };
    let first = thread::spawn({
        let limiter = run.limiter.attach_model();
        move || learn(LEARNER, &limiter)
    });
    learn(LEARNER + 1, &run.limiter.attach_model());
    first.join().unwrap();
    assert!(run.limiter.updates().unwrap() <= allowed, "the successor did not see what was counted");
}

/// A sampler without a learner, or a learner without a sampler, waits; somebody ends the run, and is killed at a point
/// of that.
fn end(state: State, learner: bool, point: u32) -> bool {
    let run = Run::new(1, TOTAL);
    let reason = Arc::new(AtomicU64::new(0));
    let waiter = thread::spawn({
        let (run, reason) = (Arc::clone(&run), Arc::clone(&reason));
        move || {
            let limiter = &run.limiter;
            let ended = if learner {
                limiter.acquire_updates(1, id(LEARNER), None, &mut || true)
            } else {
                let acquire = || limiter.acquire_steps(&[0], &mut [0], id(1), None, &mut || true);
                match acquire() {
                    Ok(1) => limiter.complete_step(0).and_then(|()| acquire()), // the next needs an update
                    ended => ended,
                }
                .map(|steps| steps as u64)
            };
            match ended {
                Ok(count) => assert!(count == 0 && state != State::Closed),
                Err(error) => assert!(matches!(error, Error::Closed { .. }) && state == State::Closed),
            }
            assert_eq!(reason.load(Ordering::Relaxed), 1, "ended, and what was done before it is not to be seen");
        }
    });
    reason.store(1, Ordering::Relaxed);
    let end = || match state {
        State::Stopping => run.limiter.stop(),
        State::Finished => run.limiter.finish(),
        _ => run.limiter.close(),
    };
    let killed = kill::run(point, end).is_err();
    if killed {
        run.limiter.reap(id(3)).unwrap();
    }
    waiter.join().unwrap();
    killed
}

#[test]
fn a_sampler_killed_at_every_point() {
    assert_eq!(check_kills(1, sampler_dies), 24);
}

#[test]
fn a_learner_killed_at_every_point() {
    assert_eq!(check_kills(1, learner_dies), 8);
}

#[test]
#[ignore = "a minute"]
fn samplers_and_learners_killed_under_more_schedules() {
    check_kills(2, learner_dies);
    check_kills(2, sampler_dies);
}

#[test]
fn one_of_two_samplers_killed_at_every_point() {
    assert_eq!(check_kills(0, |point| two_samplers(TOTAL, point)), 16);
}

#[test]
fn one_of_two_samplers_killed_with_the_only_step() {
    assert_eq!(check_kills(1, |point| two_samplers(1, point)), 11);
}

#[test]
fn whoever_waits_is_told_of_the_end() {
    assert_eq!(check_kills(2, |point| end(State::Stopping, false, point)), 3);
    assert_eq!(check_kills(2, |point| end(State::Stopping, true, point)), 2);
}

#[test]
fn every_end_ends_every_wait() {
    for learner in [false, true] {
        for state in [State::Stopping, State::Finished, State::Closed] {
            check(2, move || _ = end(state, learner, u32::MAX));
        }
    }
}

#[test]
fn a_learner_goes_on_from_what_the_last_one_counted() {
    check_thoroughly(2, learners_in_turn);
}

#[test]
fn every_ordering_of_the_whole_is_needed() {
    let models: &[(usize, fn())] =
        &[(2, || _ = end(State::Stopping, true, u32::MAX)), (2, seen_by_sampler), (2, learners_in_turn)];
    // The fence of a learner's last wake releases too.
    let spare = ["let _ = place.compare_exchange(held, 0, Ordering::Release, Ordering::Relaxed);"];
    assert_eq!(unnoticed("limiter/mod.rs", models, &[]), spare);
}
