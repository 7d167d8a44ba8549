//! Turns at the limiter: `cargo run --release --example limiter_turns`.
//!
//! Samplers (threads) that step at once and a learner whose update takes 100 us, one update per step: the samplers wait
//! nearly all the time. Prints one JSON line for each setting: wakes of samplers per env step, env steps of the lane
//! that got the fewest and of the one that got the most.

use std::time::{Duration, Instant};

use rlz_core::WorkerId;
use rlz_core::limiter::Limiter;
use rlz_core::limiter::rule::Rule;
use rlz_core::sync::{AtomicU64, Ordering, spin_loop};

const STEPS: u64 = 6_000;
const UPDATE: Duration = Duration::from_micros(100);

fn main() {
    for (samplers, lanes_each, slack) in [
        (16, 1, 1.0),
        (64, 1, 1.0),
        (128, 1, 1.0),
        (16, 1, 16.0),
        (64, 1, 64.0),
        (128, 1, 128.0),
        (1, 8, 1.0),
        (2, 8, 4.0),
    ] {
        measure(samplers, lanes_each, slack);
    }
}

fn measure(samplers: usize, lanes_each: usize, slack: f64) {
    let id = |number: usize| WorkerId::new(number as u64).expect("a small id");
    let rule = Rule::new(STEPS, 0, Some((1, 1)), slack).expect("a rule");
    let limiter = Limiter::create(rule, samplers * lanes_each, 1, 0, 0).expect("a limiter");
    let wakes = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for sampler in 0..samplers {
            let (limiter, wakes) = (&limiter, &wakes);
            scope.spawn(move || {
                let lanes: Vec<_> = (sampler * lanes_each..(sampler + 1) * lanes_each).collect();
                let mut tickets = vec![0; lanes_each];
                // Runs after every sleep.
                let mut awake = || {
                    wakes.fetch_add(1, Ordering::Relaxed);
                    true
                };
                while limiter.acquire_steps(&lanes, &mut tickets, id(sampler + 2), None, &mut awake).expect("a leave")
                    > 0
                {
                    for (lane, _) in lanes.iter().zip(&tickets).filter(|(_, ticket)| **ticket >= 0) {
                        limiter.complete_step(*lane).expect("an open step");
                    }
                }
            });
        }
        loop {
            let granted = limiter.acquire_updates(1, id(1), None, &mut || true).expect("a leave");
            if granted == 0 {
                break;
            }
            let end = Instant::now() + UPDATE;
            while Instant::now() < end {
                spin_loop();
            }
            limiter.complete_updates(granted).expect("open updates");
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let lanes = limiter.lane_steps().expect("counts");
    println!(
        "{{\"samplers\": {samplers}, \"lanes_each\": {lanes_each}, \"slack\": {slack}, \"wakes_per_step\": {:.2}, \
         \"least\": {}, \"most\": {}, \"even\": {}, \"seconds\": {seconds:.2}}}",
        wakes.load(Ordering::Relaxed) as f64 / STEPS as f64,
        lanes.iter().min().expect("a lane"),
        lanes.iter().max().expect("a lane"),
        STEPS / lanes.len() as u64,
    );
}
