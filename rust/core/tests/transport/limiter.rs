use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rlz_core::limiter::rule::Rule;
use rlz_core::limiter::{Limiter, State};
use rlz_core::{Error, Result};

use crate::common::id;

const POLL: Option<Duration> = Some(Duration::ZERO);

fn limiter(total: u64, starts: u64, ratio: Option<(u64, u64)>, slack: f64, lanes: usize) -> Limiter {
    Limiter::create(Rule::new(total, starts, ratio, slack).unwrap(), lanes, 1, 0, 0).unwrap()
}

fn steps(limiter: &Limiter, lanes: &[usize], timeout: Option<Duration>) -> Result<Vec<i64>> {
    let mut tickets = vec![7; lanes.len()];
    let granted = limiter.acquire_steps(lanes, &mut tickets, id(2), timeout, &mut || true)?;
    assert_eq!(granted, tickets.iter().filter(|ticket| **ticket >= 0).count());
    Ok(tickets)
}

fn updates(limiter: &Limiter, most: u64, timeout: Option<Duration>) -> Result<u64> {
    limiter.acquire_updates(most, id(3), timeout, &mut || true)
}

#[test]
fn two_learners_never_exceed_the_bound_together() {
    let first = limiter(100, 0, Some((1, 1)), 1.0, 1);
    let second = Limiter::attach(first.as_fd()).unwrap();
    steps(&first, &[0], POLL).unwrap();
    first.complete_step(0).unwrap();
    let owed = updates(&first, 10, POLL).unwrap();
    for worker in [3, 4] {
        let refused = second.acquire_updates(10, id(worker), POLL, &mut || true);
        assert!(matches!(refused, Err(Error::Owned { owner: 3, .. })), "{refused:?}");
    }
    assert!(matches!(first.acquire_updates(1, id(4), POLL, &mut || true), Err(Error::Owned { .. })), "another thread");
    first.complete_updates(owed).unwrap();
    assert!(matches!(updates(&first, 1, POLL), Err(Error::Timeout { .. })), "its place stays its own");
    // A dead learner's place goes to its successor, as a closed one's does.
    first.reap(id(3)).unwrap();
    assert!(matches!(second.acquire_updates(1, id(4), POLL, &mut || true), Err(Error::Timeout { .. })));
    drop(second);
    assert!(matches!(updates(&first, 1, POLL), Err(Error::Timeout { .. })));
}

#[test]
fn a_small_run_step_by_step() {
    let limiter = limiter(4, 2, Some((1, 1)), 1.0, 2);
    assert_eq!(limiter.rule().target_updates(), Some(2));
    assert!(matches!(updates(&limiter, 1, POLL), Err(Error::Timeout { .. })));
    assert_eq!(steps(&limiter, &[0, 1], POLL).unwrap(), [0, 1]);
    assert_eq!(steps(&limiter, &[0, 1], POLL).unwrap(), [0, 1], "an open index is given again");
    assert!(matches!(updates(&limiter, 1, POLL), Err(Error::Timeout { .. })), "granted is not completed");
    limiter.complete_step(1).unwrap();
    assert!(limiter.complete_step(1).is_err());
    limiter.complete_step(0).unwrap();
    assert_eq!((limiter.env_steps().unwrap(), limiter.granted().unwrap()), (2, 2));
    assert_eq!(updates(&limiter, 5, POLL).unwrap(), 1, "as far ahead as the slack");
    assert!(limiter.complete_updates(2).is_err());
    assert_eq!(steps(&limiter, &[1, 0], POLL).unwrap(), [2, -1], "ahead by the slack, the update is not completed");
    limiter.complete_updates(1).unwrap();
    assert_eq!(steps(&limiter, &[1, 0], POLL).unwrap(), [2, 3]);
    assert_eq!(steps(&limiter, &[0], POLL).unwrap(), [3]);
    limiter.complete_step(0).unwrap();
    assert_eq!(steps(&limiter, &[0], None).unwrap(), [-1], "all indices are out");
    assert_eq!(updates(&limiter, 5, POLL).unwrap(), 1);
    limiter.complete_updates(1).unwrap();
    assert!(
        matches!(updates(&limiter, 1, POLL), Err(Error::Timeout { .. })),
        "at the target, but a step is open: an end now would cut it short"
    );
    limiter.complete_step(1).unwrap();
    assert_eq!(updates(&limiter, 1, None).unwrap(), 0);
    assert_eq!(limiter.lane_steps().unwrap(), [2, 2]);
    assert_eq!((limiter.env_steps().unwrap(), limiter.updates().unwrap()), (4, 2));
}

#[test]
fn free_running_ends_with_the_steps() {
    let limiter = limiter(3, 1, None, 1.0, 1);
    for step in 0..3 {
        if step < 2 {
            assert!(matches!(updates(&limiter, 8, POLL), Err(Error::Timeout { .. })), "{step}");
        } else {
            assert_eq!(updates(&limiter, 8, POLL).unwrap(), 8);
            limiter.complete_updates(8).unwrap();
        }
        assert_eq!(steps(&limiter, &[0], POLL).unwrap(), [step]);
        limiter.complete_step(0).unwrap();
    }
    assert_eq!(updates(&limiter, 8, POLL).unwrap(), 0);
}

#[test]
fn lanes_that_are_not_active_wait_and_go_on() {
    let limiter = limiter(6, 0, None, 1.0, 3);
    assert_eq!(limiter.active_lanes().unwrap(), 3);
    assert_eq!(steps(&limiter, &[2], POLL).unwrap(), [0]);
    limiter.set_active_lanes(1).unwrap();
    assert_eq!(steps(&limiter, &[0, 1, 2], POLL).unwrap(), [1, -1, 0], "an open index is given, active or not");
    limiter.complete_step(2).unwrap();
    assert!(matches!(steps(&limiter, &[1, 2], POLL), Err(Error::Timeout { .. })));
    let other = Limiter::attach(limiter.as_fd()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| steps(&other, &[1, 2], None));
        std::thread::sleep(Duration::from_millis(20));
        limiter.set_active_lanes(2).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), [2, -1]);
    });
    assert_eq!(other.active_lanes().unwrap(), 2);
    for wrong in [0, 4] {
        assert!(limiter.set_active_lanes(wrong).unwrap_err().to_string().contains("1 to 3"));
    }
}

#[test]
fn lanes_that_are_not_active_see_the_end() {
    let limiter = limiter(2, 0, None, 1.0, 2);
    limiter.set_active_lanes(1).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| steps(&limiter, &[1], None));
        for step in 0..2 {
            assert_eq!(steps(&limiter, &[0], None).unwrap(), [step]);
            limiter.complete_step(0).unwrap();
        }
        assert_eq!(steps(&limiter, &[0], None).unwrap(), [-1]);
        assert_eq!(waiting.join().unwrap().unwrap(), [-1]);
    });
    assert_eq!(limiter.missed_wakeups().unwrap(), 0);
}

#[test]
fn warm_up_longer_than_the_run_ends_too() {
    let limiter = limiter(2, 100, Some((4, 1)), 4.0, 1);
    for step in 0..2 {
        assert_eq!(steps(&limiter, &[0], POLL).unwrap(), [step]);
        limiter.complete_step(0).unwrap();
    }
    assert_eq!(updates(&limiter, 1, POLL).unwrap(), 0);
    assert_eq!(limiter.updates().unwrap(), 0);
}

#[test]
fn states_end_waits() {
    let running = limiter(10, 5, Some((1, 1)), 1.0, 1);
    let other = Limiter::attach(running.as_fd()).unwrap();
    assert_eq!(other.rule(), running.rule());
    std::thread::scope(|scope| {
        let learner = scope.spawn(|| updates(&running, 1, None));
        std::thread::sleep(Duration::from_millis(20));
        other.stop().unwrap();
        assert_eq!(learner.join().unwrap().unwrap(), 0);
    });
    assert_eq!(steps(&running, &[0], None).unwrap(), [-1]);
    other.finish().unwrap();
    other.stop().unwrap();
    assert_eq!(running.state().unwrap(), State::Finished, "states go forward only");
    other.close().unwrap();
    assert!(matches!(steps(&running, &[0], None), Err(Error::Closed { .. })));
    assert!(matches!(updates(&running, 1, None), Err(Error::Closed { .. })));
}

#[test]
fn waits_can_be_interrupted_and_time_out() {
    let limiter = limiter(10, 5, Some((1, 1)), 1.0, 1);
    let start = Instant::now();
    let interrupted = limiter.acquire_updates(1, id(3), None, &mut || false);
    assert!(matches!(interrupted, Err(Error::Interrupted)));
    let timed_out = updates(&limiter, 1, Some(Duration::from_millis(50))).unwrap_err();
    assert!(timed_out.to_string().contains("0.050 s"), "{timed_out}");
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn behind_a_read_only_descriptor_counts_can_be_read_and_nothing_changed() {
    let limiter = limiter(10, 0, None, 1.0, 2);
    let path = format!("/proc/self/fd/{}", limiter.as_fd().as_raw_fd());
    let seen = Limiter::attach(File::open(path).unwrap().as_fd()).unwrap();
    steps(&limiter, &[0, 1], None).unwrap();
    limiter.complete_step(1).unwrap();
    assert_eq!((seen.granted().unwrap(), seen.env_steps().unwrap(), seen.updates().unwrap()), (2, 1, 0));
    assert_eq!((seen.lane_steps().unwrap(), seen.state().unwrap()), (vec![0, 1], State::Running));
    assert_eq!(seen.rule(), limiter.rule());
    let refused = [
        seen.stop(),
        seen.complete_step(0),
        seen.complete_updates(0),
        seen.reap(id(1)),
        steps(&seen, &[0], None).map(drop),
        updates(&seen, 1, None).map(drop),
        seen.missed_wakeups().map(drop),
    ];
    assert!(refused.iter().all(|result| matches!(result, Err(Error::ReadOnly { .. }))), "{refused:?}");
    assert_eq!(limiter.state().unwrap(), State::Running);
}

#[test]
fn a_resumed_run_goes_on() {
    let rule = Rule::new(20, 4, Some((1, 2)), 1.0).unwrap();
    let limiter = Limiter::create(rule, 2, 1, 10, 3).unwrap();
    assert_eq!((limiter.env_steps().unwrap(), limiter.updates().unwrap(), limiter.granted().unwrap()), (10, 3, 10));
    assert_eq!(steps(&limiter, &[1], POLL).unwrap(), [10]);
    limiter.complete_step(1).unwrap();
    assert_eq!(limiter.env_steps().unwrap(), 11);
    assert_eq!(limiter.lane_steps().unwrap(), [0, 1]);
}

/// Free lanes and a learner in threads: exact at the end, within the bound in between, no wake missed.
#[test]
fn ratios_hold_with_one_and_four_samplers() {
    for (ratio, samplers, total) in [
        ((1, 4), 1, 4_001),
        ((1, 4), 4, 4_001),
        ((1, 1), 1, 2_000),
        ((1, 1), 4, 2_000),
        ((4, 1), 1, 503),
        ((4, 1), 4, 503),
    ] {
        const LANES: usize = 4;
        let slack = 4.0;
        let limiter = limiter(total, 100, Some(ratio), slack, LANES);
        let line = |steps: u64| steps.saturating_sub(100) as f64 * ratio.0 as f64 / ratio.1 as f64;
        std::thread::scope(|scope| {
            for sampler in 0..samplers {
                let (limiter, lanes) = (&limiter, (0..LANES).filter(move |lane| lane % samplers == sampler));
                scope.spawn(move || {
                    let lanes: Vec<_> = lanes.collect();
                    let mut tickets = vec![0; lanes.len()];
                    let me = id(10 + sampler as u64);
                    while limiter.acquire_steps(&lanes, &mut tickets, me, None, &mut || true).unwrap() > 0 {
                        for (lane, ticket) in lanes.iter().zip(&tickets) {
                            if *ticket >= 0 {
                                limiter.complete_step(*lane).unwrap();
                            }
                        }
                    }
                });
            }
            loop {
                let granted = updates(&limiter, 2, None).unwrap();
                if granted == 0 {
                    break;
                }
                limiter.complete_updates(granted).unwrap();
                // Read in the order that can only understate each distance.
                let (done, steps) = (limiter.updates().unwrap(), limiter.env_steps().unwrap());
                assert!(done as f64 - line(steps) <= slack, "{done} {steps}");
                let (steps, done) = (limiter.env_steps().unwrap(), limiter.updates().unwrap());
                assert!(line(steps) - done as f64 <= slack, "{done} {steps}");
            }
        });
        assert_eq!(limiter.env_steps().unwrap(), total);
        assert_eq!(limiter.lane_steps().unwrap().iter().sum::<u64>(), total);
        assert_eq!(Some(limiter.updates().unwrap()), limiter.rule().target_updates());
        assert_eq!(limiter.missed_wakeups().unwrap(), 0);
    }
}
