//! Limiter: samplers that step lanes, and a learner.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rlz_core::limiter::Limiter;
use rlz_core::limiter::rule::Rule;
use rlz_core::memory::Segment;
use rlz_core::sync::{AtomicU64, Ordering};
use rlz_core::{Error, WorkerId};

use crate::child::{Files, Seat};
use crate::common::id;
use crate::harness::{Kills, Role, Scene, Verdict, demand};

const LANES_EACH: usize = 2;
const SAMPLERS: usize = 3;
const LANES: usize = SAMPLERS * LANES_EACH;
const LEARNING_STARTS: u64 = 100;
const SLACK: f64 = 8.0;
/// Steps that the ledger has room for.
const MOST: u64 = 1 << 28;
const BITMAP: usize = (MOST / 64) as usize;

/// The ledger says which indices were stepped; its last word counts those that were stepped again.
pub struct Steps {
    limiter: Limiter,
    ledger: Segment,
}

impl Scene for Steps {
    const NAME: &'static str = "limiter";
    const ROLES: &'static [Role] = &[
        Role {
            name: "sampler",
            seats: SAMPLERS,
            points: &[
                "limiter: loaded",
                "limiter: helped",
                "limiter: claimed",
                "limiter: raised",
                "limiter: completing",
                "limiter: completed",
                "event: before the wake",
                "turns: seated",
                "turns: left",
                "turns: before the call",
                "turns: called, not woken",
            ],
        },
        Role {
            name: "learner",
            seats: 1,
            points: &[
                "limiter: updates counted",
                "event: announced",
                "turns: before the call",
                "turns: called, not woken",
            ],
        },
    ];

    fn create() -> Self {
        let rule = Rule::new(MOST, LEARNING_STARTS, Some((1, 2)), SLACK).unwrap();
        let limiter = Limiter::create(rule, LANES, 1, 0, 0).unwrap();
        Self { limiter, ledger: Segment::create("ledger", (BITMAP + 1) * 8).unwrap() }
    }

    fn attach(_: &str, files: &Files) -> Self {
        Self { limiter: Limiter::attach(files.open(0, true).as_fd()).unwrap(), ledger: files.segment(1) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.limiter.as_fd(), self.ledger.as_fd()]
    }

    fn play(&self, role: &str, seat: &Seat) {
        match role {
            "sampler" => self.step(seat),
            _ => self.learn(seat),
        }
    }

    fn reap(&self, dead: WorkerId) {
        self.limiter.reap(dead).unwrap();
    }

    fn held_by(&self, _: WorkerId) -> usize {
        0 // an open index belongs to its lane
    }

    /// The distance from the line. Each side is read in the order that can only understate it.
    fn check(&self) -> Verdict {
        let line = |steps: u64| steps.saturating_sub(LEARNING_STARTS) as f64 / 2.0;
        let (updates, steps) = (self.limiter.updates().unwrap(), self.limiter.env_steps().unwrap());
        demand(updates as f64 - line(steps) <= SLACK, || format!("{updates} updates are ahead of {steps} steps"))?;
        let (steps, updates) = (self.limiter.env_steps().unwrap(), self.limiter.updates().unwrap());
        demand(line(steps) - updates as f64 <= SLACK, || format!("{steps} steps are ahead of {updates} updates"))
    }

    fn settle(&self, kills: &Kills) -> Verdict<String> {
        // The successors of all lanes get their open indices again (and perhaps new ones), and close them.
        let lanes: Vec<_> = (0..LANES).collect();
        let mut tickets = [-1; LANES];
        match self.limiter.acquire_steps(&lanes, &mut tickets, id(1022), Some(Duration::ZERO), &mut || true) {
            Ok(_) => self.complete(&lanes, &tickets),
            Err(Error::Timeout { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
        let (granted, steps) = (self.limiter.granted().unwrap(), self.limiter.env_steps().unwrap());
        demand(granted == steps, || format!("{granted} indices are out, {steps} steps are counted"))?;
        let by_lane: u64 = self.limiter.lane_steps().unwrap().iter().sum();
        demand(by_lane == steps, || format!("the lanes count {by_lane} steps of {steps}"))?;
        let stepped: u64 = self.bits().iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum();
        let beyond = (steps..steps.next_multiple_of(64)).filter(|index| self.bit(*index)).count();
        demand(stepped == steps && beyond == 0, || format!("{stepped} indices were stepped of {steps}"))?;
        let (again, most) = (self.again().load(Ordering::Relaxed), kills.of("sampler") * LANES_EACH as u64);
        demand(again <= most, || format!("{again} indices were stepped again, by {most} lanes that lost their owner"))?;
        demand(steps > 20, || format!("{steps} steps only"))?;
        Ok(format!("{steps} steps, {} updates, {again} steps done again", self.limiter.updates().unwrap()))
    }
}

impl Steps {
    fn bits(&self) -> &[AtomicU64] {
        self.ledger.words(0, BITMAP).unwrap()
    }

    fn again(&self) -> &AtomicU64 {
        &self.ledger.words(BITMAP * 8, 1).unwrap()[0]
    }

    fn bit(&self, index: u64) -> bool {
        self.bits()[usize::try_from(index / 64).unwrap()].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }

    fn complete(&self, lanes: &[usize], tickets: &[i64]) {
        for (lane, ticket) in lanes.iter().zip(tickets) {
            let Ok(index) = u64::try_from(*ticket) else { continue };
            let bit = 1 << (index % 64);
            let before = self.bits()[usize::try_from(index / 64).unwrap()].fetch_or(bit, Ordering::Relaxed);
            if before & bit != 0 {
                self.again().fetch_add(1, Ordering::Relaxed);
            }
            self.limiter.complete_step(*lane).unwrap();
        }
    }

    fn step(&self, seat: &Seat) {
        let lanes: Vec<_> = (0..LANES_EACH).map(|lane| seat.index * LANES_EACH + lane).collect();
        let mut tickets = [0; LANES_EACH];
        loop {
            let granted = self.limiter.acquire_steps(&lanes, &mut tickets, seat.worker, None, &mut || true).unwrap();
            assert!(granted > 0, "the ledger is full");
            self.complete(&lanes, &tickets);
            seat.tick(granted as u64);
        }
    }

    fn learn(&self, seat: &Seat) {
        loop {
            let granted = self.limiter.acquire_updates(3, seat.worker, None, &mut || true).unwrap();
            assert!(granted > 0, "the ledger is full");
            self.limiter.complete_updates(granted).unwrap();
            self.check().unwrap();
            seat.tick(0);
        }
    }
}
