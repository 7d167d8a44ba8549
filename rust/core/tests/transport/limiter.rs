use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rlz_core::limiter::rule::Rule;
use rlz_core::limiter::{Limiter, State};
use rlz_core::sync::{AtomicU64, Ordering};
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
    assert_eq!(
        steps(&limiter, &[1, 0], POLL).unwrap(),
        [-1, 2],
        "ahead by the slack, the update is not completed; lane 0 has waited longer"
    );
    limiter.complete_updates(1).unwrap();
    assert_eq!(steps(&limiter, &[1, 0], POLL).unwrap(), [3, 2]);
    assert_eq!(steps(&limiter, &[0], POLL).unwrap(), [2]);
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
fn steps_beyond_the_limit_wait_until_it_moves() {
    let limiter = limiter(6, 0, None, 1.0, 3);
    assert_eq!(limiter.step_limit().unwrap(), u64::MAX);
    assert_eq!(steps(&limiter, &[2], POLL).unwrap(), [0]);
    limiter.set_step_limit(2).unwrap();
    assert_eq!(
        steps(&limiter, &[0, 1, 2], POLL).unwrap(),
        [1, -1, 0],
        "an open index is given again, whatever the limit"
    );
    limiter.complete_step(2).unwrap();
    assert!(matches!(steps(&limiter, &[1, 2], POLL), Err(Error::Timeout { .. })));
    let other = Limiter::attach(limiter.as_fd()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| steps(&other, &[1, 2], None));
        std::thread::sleep(Duration::from_millis(20));
        limiter.set_step_limit(3).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), [2, -1], "the lane that has waited longest");
    });
    assert_eq!(other.step_limit().unwrap(), 3);
}

#[test]
fn who_waits_at_the_limit_sees_the_end() {
    let limiter = limiter(2, 0, None, 1.0, 2);
    limiter.set_step_limit(1).unwrap();
    assert_eq!(steps(&limiter, &[0], None).unwrap(), [0]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| steps(&limiter, &[1], None));
        std::thread::sleep(Duration::from_millis(20));
        limiter.stop().unwrap();
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

/// Steps of lanes that have only a few indices to share, given out to one worker.
fn share(lanes: &[usize], ratio: (u64, u64), slack: f64, total: u64) -> Limiter {
    let limiter = limiter(total, 0, Some(ratio), slack, lanes.len());
    while limiter.env_steps().unwrap() < total {
        if let Ok(tickets) = steps(&limiter, lanes, POLL) {
            for (lane, _) in lanes.iter().zip(&tickets).filter(|(_, ticket)| **ticket >= 0) {
                limiter.complete_step(*lane).unwrap();
            }
        }
        if let Ok(granted) = updates(&limiter, 1, POLL) {
            limiter.complete_updates(granted).unwrap();
        }
    }
    limiter
}

#[test]
fn lanes_of_a_worker_take_turns() {
    let lanes: Vec<_> = (0..8).collect();
    for (ratio, slack) in [((1, 1), 1.0), ((1, 1), 2.0), ((4, 1), 4.0), ((1, 2), 1.0), ((1, 1), 7.0)] {
        let by_lane = share(&lanes, ratio, slack, 2_000).lane_steps().unwrap();
        let (least, most) = (by_lane.iter().min().unwrap(), by_lane.iter().max().unwrap());
        assert!(most - least <= 1, "{ratio:?} {slack}: {by_lane:?}");
    }
    let limiter = share(&lanes, (1, 1), 1.0, 20);
    assert_eq!(limiter.lane_steps().unwrap(), [3, 3, 3, 3, 2, 2, 2, 2]);
}

#[test]
fn where_there_is_room_for_all_indices_follow_the_list() {
    let limiter = limiter(100, 0, Some((1, 1)), 4.0, 4);
    for round in 0..3 {
        let tickets = steps(&limiter, &[0, 1, 2, 3], POLL).unwrap();
        assert_eq!(tickets, [0, 1, 2, 3].map(|lane| 4 * round + lane));
        (0..4).for_each(|lane| limiter.complete_step(lane).unwrap());
        let granted = updates(&limiter, 4, POLL).unwrap();
        limiter.complete_updates(granted).unwrap();
    }
    // Room for three: those that waited longest, which are again the first of the list.
    limiter.complete_updates(0).unwrap();
    assert_eq!(steps(&limiter, &[3, 0], POLL).unwrap(), [12, 13]);
    [3, 0].into_iter().for_each(|lane| limiter.complete_step(lane).unwrap());
    assert_eq!(steps(&limiter, &[0, 1, 2, 3], POLL).unwrap(), [-1, 14, 15, -1]);
}

/// Run `samplers` threads with a lane each beside a learner: how often one was woken, and the steps of each lane.
fn wakes(samplers: usize, total: u64) -> (u64, Vec<u64>) {
    let limiter = limiter(total, 0, Some((1, 1)), 1.0, samplers);
    let wakes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for lane in 0..samplers {
            let (limiter, wakes) = (&limiter, &wakes);
            scope.spawn(move || {
                let mut woken = || {
                    wakes.fetch_add(1, Ordering::Relaxed);
                    true
                };
                let me = id(10 + lane as u64);
                while limiter.acquire_steps(&[lane], &mut [0], me, None, &mut woken).unwrap() > 0 {
                    limiter.complete_step(lane).unwrap();
                }
            });
        }
        loop {
            let granted = updates(&limiter, 1, None).unwrap();
            if granted == 0 {
                break;
            }
            limiter.complete_updates(granted).unwrap();
        }
    });
    assert_eq!(limiter.missed_wakeups().unwrap(), 0);
    (wakes.into_inner(), limiter.lane_steps().unwrap())
}

#[test]
fn workers_take_turns_and_one_is_woken_for_a_step() {
    let (wakes, by_lane) = wakes(12, 1_200);
    assert!(wakes < 3 * 1_200, "{wakes} wakes for 1200 steps");
    assert!(by_lane.iter().all(|steps| (50..200).contains(steps)), "{by_lane:?}");
}

#[test]
fn one_that_is_called_and_does_not_come_holds_the_others_up_for_a_slice_only() {
    let limiter = limiter(20, 0, Some((1, 1)), 1.0, 2);
    let (asleep, stopped) = (AtomicU64::new(0), AtomicU64::new(1));
    std::thread::scope(|scope| {
        assert_eq!(steps(&limiter, &[1], POLL).unwrap(), [0]);
        limiter.complete_step(1).unwrap();
        let first = scope.spawn(|| {
            let mut stop = || {
                asleep.store(1, Ordering::Release);
                while stopped.load(Ordering::Acquire) == 1 {
                    std::thread::yield_now();
                }
                true
            };
            limiter.acquire_steps(&[0], &mut [0], id(5), None, &mut stop).unwrap()
        });
        while asleep.load(Ordering::Acquire) == 0 {
            std::thread::yield_now(); // it has waited for a slice, and is stopped in its seat
        }
        for index in 1..4 {
            let granted = updates(&limiter, 1, None).unwrap();
            limiter.complete_updates(granted).unwrap();
            let limit = Some(Duration::from_secs(60));
            assert_eq!(steps(&limiter, &[1], limit).unwrap(), [index], "an index was set aside for a stopped sampler");
            limiter.complete_step(1).unwrap();
        }
        stopped.store(0, Ordering::Release);
        let granted = updates(&limiter, 1, None).unwrap();
        limiter.complete_updates(granted).unwrap();
        assert_eq!(first.join().unwrap(), 1);
    });
    assert_eq!(limiter.missed_wakeups().unwrap(), 0);
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
