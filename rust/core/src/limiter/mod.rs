//! Replay-ratio limiter: counts env steps and updates, holds their ratio, hands out the index of every env step.
//!
//! [`rule`] says who may go on, in whole numbers; [`counters`] keeps step indices on shared words so that none is lost
//! when a process is killed; [`turns`] gives samplers that wait their turns; [`Limiter`] puts them into a segment.

pub mod counters;
pub mod rule;
pub mod turns;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::kill::{self, kill_point};
use crate::memory::{Access, Header, ReadWord, Segment, Stream};
use crate::owner::{Holder, MAX_LANES, WorkerId};
use crate::sync::{AtomicU64, Ordering};
use crate::wait::{Between, EventCount};

use counters::{Claim, Counters};
use rule::Rule;
use turns::Turns;

const NAME: &str = "limiter";

/// What the run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum State {
    /// Steps and updates are granted.
    Running = 0,
    /// No more grants; open steps may be completed.
    Stopping = 1,
    /// The learner is done.
    Finished = 2,
    /// Waits raise `Error::Closed`.
    Closed = 3,
}

impl State {
    fn from_word(word: u64) -> Self {
        match word {
            0 => Self::Running,
            1 => Self::Stopping,
            2 => Self::Finished,
            _ => Self::Closed,
        }
    }
}

/// Words of a pair of cache lines: each part of the data region has its own, because neighbours are fetched together.
const LINE: usize = 16;
const STATE: usize = 0;
/// No step index from this one on is granted. Beside the state, for both are read by every claim.
const LIMIT: usize = 1;
const UPDATES: usize = LINE;
const WANTED: usize = 2 * LINE;
/// Who may ask for updates: a [`Holder`]. Beside what is written with it.
const PLACE: usize = WANTED + 1;
const SAMPLERS: usize = 3 * LINE;
const LEARNER: usize = SAMPLERS + Turns::WORDS.next_multiple_of(LINE);
const COUNTERS: usize = LEARNER + EventCount::WORDS;

/// A limiter in shared memory. Cheap to clone; clones share the learner's open updates.
#[derive(Debug, Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    segment: Segment,
    rule: Rule,
    lanes: usize,
    data: usize,
    first_step: u64,
    /// Updates granted to this handle and not completed. Private: a learner that is started again has none.
    open_updates: AtomicU64,
    /// The word by which this handle holds the learner's place, 0 when it does not.
    held: AtomicU64,
}

impl Inner {
    fn place(&self) -> Result<&AtomicU64> {
        self.segment.check_fork(NAME)?;
        Ok(&self.segment.words(self.data + PLACE * 8, 1)?[0])
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if kill::killed() {
            return; // the reaper gives the place back
        }
        // In a forked child, or read-only, there is nothing to give back.
        let held = self.held.load(Ordering::Relaxed);
        if held != 0
            && let Ok(place) = self.place()
        {
            // Release, pairs with the Acquire exchange in `take_place`: the successor sees what this one counted. It
            // fails when this handle was taken for dead.
            let _ = place.compare_exchange(held, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

impl Limiter {
    /// Create a limiter. `env_steps` and `updates` are the counts that a resumed run goes on from.
    pub fn create(rule: Rule, lanes: usize, run_id: u64, env_steps: u64, updates: u64) -> Result<Self> {
        if lanes == 0 || lanes > MAX_LANES {
            return Err(Error::invalid("lanes", lanes, format!("1 to {MAX_LANES} (one per environment)")));
        }
        for (what, count) in [("env_steps", env_steps), ("updates", updates)] {
            if count > rule::MAX_COUNT {
                return Err(Error::invalid(what, count, format!("at most {}", rule::MAX_COUNT)));
            }
        }
        let [total, learning_starts, numerator, denominator, slack] = rule.to_words();
        let params = [lanes as u64, total, learning_starts, numerator, denominator, slack, env_steps, updates];
        let header = Header::new(Stream::Limiter, run_id, &params, Vec::new());
        let data = header.data_offset()?;
        let segment = Segment::create(NAME, Self::bytes(data, lanes))?;
        header.write(&segment)?;
        let limiter = Self::open(segment, rule, lanes, data, env_steps);
        limiter.word(UPDATES).store(updates, Ordering::Relaxed);
        limiter.word(LIMIT).store(u64::MAX, Ordering::Relaxed);
        limiter.counters().initialise(env_steps);
        Header::publish(&limiter.inner.segment)?;
        Ok(limiter)
    }

    /// Attach to the limiter behind a descriptor, which stays the caller's. One that was opened read-only gives a
    /// limiter whose counts can only be read.
    pub fn attach(fd: BorrowedFd<'_>) -> Result<Self> {
        let segment = Segment::attach(fd, Access::of(fd)?)?;
        let header = Header::read(&segment, Stream::Limiter)?;
        let bad = |reason: String| Error::BadSegment { stream: NAME, reason };
        let [lanes, rule @ .., first_step, first_update] = &header.params[..] else {
            unreachable!("checked by Header::read")
        };
        for (name, count) in [("first env step", first_step), ("first update", first_update)] {
            if *count > rule::MAX_COUNT {
                return Err(bad(format!("{name} {count}, expected at most {}", rule::MAX_COUNT)));
            }
        }
        let rule = rule.try_into().expect("eight parameters");
        let rule = Rule::from_words(rule).map_err(|e| bad(e.to_string()))?;
        let lanes = usize::try_from(*lanes).ok().filter(|lanes| (1..=MAX_LANES).contains(lanes));
        let lanes = lanes.ok_or_else(|| bad(format!("{} lanes", header.params[0])))?;
        let data = header.data_offset()?;
        if segment.len() < Self::bytes(data, lanes) {
            return Err(bad(format!("{} bytes are too few for {lanes} lanes", segment.len())));
        }
        Ok(Self::open(segment, rule, lanes, data, *first_step))
    }

    /// What [`Limiter::attach`] gives another process: models have no descriptors.
    #[cfg(any(loom, shuttle))]
    #[must_use]
    pub fn attach_model(&self) -> Self {
        let Inner { segment, rule, lanes, data, first_step, .. } = &*self.inner;
        Self::open(segment.clone(), *rule, *lanes, *data, *first_step)
    }

    fn open(segment: Segment, rule: Rule, lanes: usize, data: usize, first_step: u64) -> Self {
        let (open_updates, held) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { inner: Arc::new(Inner { segment, rule, lanes, data, first_step, open_updates, held }) }
    }

    fn bytes(data: usize, lanes: usize) -> usize {
        data + (COUNTERS + Counters::words(lanes)) * 8
    }

    fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        let Inner { segment, data, .. } = &*self.inner;
        segment.words(data + at * 8, count).expect("writable: see `enter`; the size was checked when it was opened")
    }

    /// Words for loads, which a limiter attached read-only has as well.
    fn read_words(&self, at: usize, count: usize) -> &[ReadWord] {
        let Inner { segment, data, .. } = &*self.inner;
        segment.read_words(data + at * 8, count).expect("the size was checked when the segment was opened")
    }

    /// What every call that changes something asks first.
    fn enter(&self) -> Result<()> {
        self.inner.segment.check_fork(NAME)?;
        match self.inner.segment.access() {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly { what: NAME }),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words(at, 1)[0]
    }

    fn counters(&self) -> Counters<'_> {
        Counters::new(self.words(COUNTERS, Counters::words(self.inner.lanes)))
    }

    fn counts(&self) -> Counters<'_, ReadWord> {
        Counters::new(self.read_words(COUNTERS, Counters::words(self.inner.lanes)))
    }

    fn samplers(&self) -> Turns<'_> {
        Turns::new(self.words(SAMPLERS, Turns::WORDS))
    }

    fn learner(&self) -> EventCount<'_> {
        EventCount::new(self.words(LEARNER, EventCount::WORDS))
    }

    /// The rule that is held.
    #[must_use]
    pub fn rule(&self) -> &Rule {
        &self.inner.rule
    }

    /// Number of lanes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.inner.lanes
    }

    /// Bytes of shared memory.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.inner.segment.len()
    }

    /// What the run is doing.
    pub fn state(&self) -> Result<State> {
        self.inner.segment.check_fork(NAME)?;
        // Acquire, pairs with the Release of `advance`.
        Ok(State::from_word(self.read_words(STATE, 1)[0].load(Ordering::Acquire)))
    }

    /// Completed env steps.
    pub fn env_steps(&self) -> Result<u64> {
        self.inner.segment.check_fork(NAME)?;
        Ok(self.completed())
    }

    fn completed(&self) -> u64 {
        self.inner.first_step + self.counts().done()
    }

    /// Step indices handed out, those before a resume included.
    pub fn granted(&self) -> Result<u64> {
        self.inner.segment.check_fork(NAME)?;
        Ok(self.counts().granted())
    }

    /// Completed updates.
    pub fn updates(&self) -> Result<u64> {
        self.inner.segment.check_fork(NAME)?;
        Ok(self.updates_now())
    }

    /// Env steps that each lane completed since the limiter was made.
    pub fn lane_steps(&self) -> Result<Vec<u64>> {
        self.inner.segment.check_fork(NAME)?;
        let counters = self.counts();
        Ok((0..self.lanes()).map(|lane| counters.lane_done(lane)).collect())
    }

    /// First step index that is not granted, whatever the rule says; [`u64::MAX`] at first.
    pub fn step_limit(&self) -> Result<u64> {
        self.inner.segment.check_fork(NAME)?;
        Ok(self.limit())
    }

    /// Grant step indices below `index` only; samplers wait for the others as they do for the ratio, until this is
    /// called again. An index that is open stays with its lane, so none is lost.
    pub fn set_step_limit(&self, index: u64) -> Result<()> {
        self.enter()?;
        // Relaxed: nothing else is told by it, and `call_samplers` has the fence.
        self.word(LIMIT).store(index, Ordering::Relaxed);
        self.call_samplers();
        Ok(())
    }

    fn limit(&self) -> u64 {
        self.read_words(LIMIT, 1)[0].load(Ordering::Relaxed)
    }

    fn may_step(&self, index: u64) -> bool {
        index < self.limit() && self.inner.rule.may_step(index, self.updates_now())
    }

    /// Waits that a slice's end helped on (see [`EventCount::missed_wakeups`], [`Turns::missed_wakeups`]).
    pub fn missed_wakeups(&self) -> Result<u64> {
        self.enter()?;
        Ok(self.samplers().missed_wakeups() + self.learner().missed_wakeups())
    }

    /// Take the next step index for each lane, as many as the rule allows now; waits while that is none.
    ///
    /// `tickets[i]` = index for `lanes[i]`, or -1. The result is how many were granted; 0 when the caller gets no more:
    /// all indices are out, or the state is not running. A lane with an open index gets that one again. Only the owner
    /// of a lane may ask for it.
    ///
    /// Where there are fewer indices than lanes that want one, the lanes that got none for longest come first: among
    /// those asked for here, and among those of all workers that wait.
    pub fn acquire_steps(
        &self,
        lanes: &[usize],
        tickets: &mut [i64],
        worker: WorkerId,
        timeout: Option<Duration>,
        between: Between<'_>,
    ) -> Result<usize> {
        self.enter()?;
        if lanes.is_empty() || lanes.len() != tickets.len() {
            let given = format!("{} lanes, {} tickets", lanes.len(), tickets.len());
            return Err(Error::invalid("lanes and tickets", given, "one ticket per lane, at least one lane"));
        }
        for lane in lanes {
            self.check_lane(*lane)?;
        }
        let counters = self.counters();
        let mut looked = false;
        let ready = |ahead| {
            match self.state()? {
                State::Running => {}
                State::Closed => return Err(Error::Closed { stream: NAME }),
                State::Stopping | State::Finished => {
                    tickets.fill(-1);
                    return Ok(Some(0));
                }
            }
            let index = counters.granted();
            let below = self.limit().saturating_sub(index + ahead);
            let room = self.inner.rule.steps_allowed(index + ahead, self.updates_now()).min(below);
            // No lane had an open index at the first look, and only its owner opens one.
            if looked && room == 0 && index < self.inner.rule.total_timesteps() {
                return Ok(None);
            }
            looked = true;
            let (granted, over) = self.claim(lanes, tickets, ahead, room);
            Ok((granted > 0 || over).then_some(granted))
        };
        let place = || self.place(lanes);
        let granted = self.samplers().wait(worker, timeout, between, place, ready, || self.call_samplers())?;
        if counters.granted() >= self.inner.rule.total_timesteps() {
            // Whoever waits for the ratio must see that nothing is left. Repeated by every later call: if this process
            // is killed here, the next one calls them (and slices do).
            self.call_all();
        }
        granted.ok_or_else(|| timed_out("leave for an env step", timeout))
    }

    /// Give indices to lanes, as long as the rule allows one `ahead` of the next; `room` is how many that is, by a
    /// look. How many were granted, and whether all indices are out.
    fn claim(&self, lanes: &[usize], tickets: &mut [i64], ahead: u64, room: u64) -> (usize, bool) {
        let counters = self.counters();
        // Too little room for all: the lanes that got their last index longest ago, in the order of the list.
        let due = |position: usize, lane: usize| counters.last(lane) << 16 | position as u64;
        let until = match usize::try_from(room) {
            Ok(room) if room < lanes.len() => {
                let mut order: Vec<_> = lanes.iter().enumerate().map(|(position, lane)| due(position, *lane)).collect();
                *order.select_nth_unstable(room).1
            }
            _ => u64::MAX,
        };
        let (mut granted, mut over) = (0, false);
        for (position, (lane, ticket)) in lanes.iter().zip(tickets.iter_mut()).enumerate() {
            // Updates only grow, so an old value is on the safe side. Read anew for every lane.
            let chosen = until == u64::MAX || due(position, *lane) < until;
            let may = |index| chosen && self.may_step(index + ahead);
            let claim = counters.claim(*lane, may);
            *ticket = match claim {
                Claim::Index(index) => {
                    granted += 1;
                    index.cast_signed()
                }
                Claim::Refused { index } => {
                    over |= index >= self.inner.rule.total_timesteps();
                    -1
                }
            };
        }
        (granted, over)
    }

    /// Place of who waits for some lanes.
    fn place(&self, lanes: &[usize]) -> u64 {
        let counters = self.counters();
        let last = lanes.iter().map(|lane| counters.last(*lane)).min().expect("at least one lane");
        turns::place(last, lanes.len())
    }

    /// Call the samplers that may go on now, in order.
    fn call_samplers(&self) {
        let (turns, rule) = (self.samplers(), &self.inner.rule);
        if turns.anyone() {
            let index = self.counters().granted();
            if index >= rule.total_timesteps() {
                turns.call_all();
            } else {
                turns.call(|ahead| self.may_step(index + ahead));
            }
        }
    }

    fn call_all(&self) {
        let turns = self.samplers();
        if turns.anyone() {
            turns.call_all();
        }
    }

    /// Count the env step whose transition is in the replay buffer.
    pub fn complete_step(&self, lane: usize) -> Result<()> {
        self.enter()?;
        self.check_lane(lane)?;
        if !self.counters().complete(lane) {
            return Err(Error::invalid("complete_step", format!("lane {lane}"), "a lane with an open step index"));
        }
        // Through the warm-up, and for ratios below 1, most steps change nothing for the learner: let it sleep. It
        // stores what it waits for before it announces itself, so who sees it waiting sees that too.
        self.learner().notify_if(|| {
            let wanted = self.word(WANTED).load(Ordering::Relaxed);
            self.counters().reached(wanted, self.inner.first_step, lane)
        });
        Ok(())
    }

    /// Leave for 1 to `most` updates; waits while the rule allows none. 0: no more, the run is over or stopping.
    ///
    /// For one learner thread of one handle, which holds the learner's place until it is dropped or reaped;
    /// [`Error::Owned`] for any other: open updates are known to their handle only, so two would exceed the bound.
    /// 0 comes only after the last env step was completed, so whoever ends the run on it cuts no sampler short.
    pub fn acquire_updates(
        &self,
        most: u64,
        worker: WorkerId,
        timeout: Option<Duration>,
        between: Between<'_>,
    ) -> Result<u64> {
        self.enter()?;
        if most == 0 {
            return Err(Error::invalid("most", 0, "at least 1"));
        }
        self.take_place(worker)?;
        let open = || self.updates_now() + self.inner.open_updates.load(Ordering::Relaxed);
        let wanted = self.inner.rule.steps_needed(open());
        self.word(WANTED).store(wanted, Ordering::Relaxed);
        let granted = self.learner().wait(worker, timeout, between, || {
            match self.state()? {
                State::Running => {}
                State::Closed => return Err(Error::Closed { stream: NAME }),
                State::Stopping | State::Finished => return Ok(Some(0)),
            }
            if self.counts().granted() < wanted {
                return Ok(None); // no need to look at the lanes
            }
            let (open, steps) = (open(), self.completed());
            let allowed = self.inner.rule.updates_allowed(open, steps).min(most);
            if allowed > 0 {
                self.inner.open_updates.fetch_add(allowed, Ordering::Relaxed);
                return Ok(Some(allowed));
            }
            Ok(self.inner.rule.no_more_updates(open, steps).then_some(0))
        })?;
        granted.ok_or_else(|| timed_out("leave for an update", timeout))
    }

    /// Become the learner, or stay it.
    fn take_place(&self, worker: WorkerId) -> Result<()> {
        let (place, mine) = (self.inner.place()?, self.inner.held.load(Ordering::Relaxed));
        if mine != 0 && place.load(Ordering::Relaxed) == mine && Holder::from_word(mine).worker() == worker.get() {
            return Ok(());
        }
        let holder = Holder::new(worker);
        // Acquire, pairs with the Release exchange at the end of the last learner's handle, and with that in `reap`.
        match place.compare_exchange(0, holder.word(), Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                self.inner.held.store(holder.word(), Ordering::Relaxed);
                Ok(())
            }
            Err(owner) => Err(Error::Owned {
                what: "the learner's place at the limiter (one learner at a time)".to_owned(),
                worker: worker.get(),
                owner: Holder::from_word(owner).worker(),
            }),
        }
    }

    /// Count updates that are done; they were granted, unless the run is free: what is learned from there may come
    /// through a queue, which holds the learner by itself.
    pub fn complete_updates(&self, count: u64) -> Result<()> {
        self.enter()?;
        let open = self.inner.open_updates.load(Ordering::Relaxed); // one learner thread
        if count > open && self.inner.rule.target_updates().is_some() {
            return Err(Error::invalid("complete_updates", count, format!("at most the {open} that are open")));
        }
        // Count first: a kill in between leaves nothing behind, for the open count is private. Release, pairs with the
        // Acquire in `updates`.
        self.word(UPDATES).fetch_add(count, Ordering::Release);
        kill_point("limiter: updates counted");
        self.inner.open_updates.fetch_sub(count.min(open), Ordering::Relaxed);
        self.call_samplers();
        Ok(())
    }

    /// No more grants; wakes everyone.
    pub fn stop(&self) -> Result<()> {
        self.advance(State::Stopping)
    }

    /// The learner is done; wakes everyone.
    pub fn finish(&self) -> Result<()> {
        self.advance(State::Finished)
    }

    /// Every present and later wait raises `Error::Closed`.
    pub fn close(&self) -> Result<()> {
        self.advance(State::Closed)
    }

    /// Forget a worker that is proven dead. Its open step indices stay with their lanes.
    pub fn reap(&self, dead: WorkerId) -> Result<()> {
        self.enter()?;
        let place = self.inner.place()?;
        let owner = place.load(Ordering::Relaxed);
        if Holder::from_word(owner).worker() == dead.get() {
            // Release, as if the dead one had given it back; its proof of death orders what it did before. Fails when
            // another reaper was here.
            let _ = place.compare_exchange(owner, 0, Ordering::Release, Ordering::Relaxed);
        }
        self.samplers().reap(dead);
        self.learner().reap(dead);
        Ok(())
    }

    /// States only go forward, so the order of concurrent calls does not matter.
    fn advance(&self, state: State) -> Result<()> {
        self.enter()?;
        // Release, pairs with the Acquire in `state`.
        self.word(STATE).fetch_max(state as u64, Ordering::Release);
        self.call_all();
        self.learner().notify();
        Ok(())
    }

    fn updates_now(&self) -> u64 {
        // Acquire, pairs with the Release in `complete_updates`.
        self.read_words(UPDATES, 1)[0].load(Ordering::Acquire)
    }

    fn check_lane(&self, lane: usize) -> Result<()> {
        if lane < self.lanes() {
            return Ok(());
        }
        Err(Error::invalid("lane", lane, format!("0 to {}", self.lanes() - 1)))
    }
}

impl AsFd for Limiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.segment.as_fd()
    }
}

fn timed_out(what: &'static str, timeout: Option<Duration>) -> Error {
    Error::Timeout { what, seconds: timeout.unwrap_or_default().as_secs_f64() }
}
