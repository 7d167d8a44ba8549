//! The storm: starts processes on one stream, kills them at random instants and at exact kill points, reaps, starts
//! successors, and looks after each death and at the end whether anything is torn, stuck, leaked or lost.
//!
//! Half of the processes are killed by the parent at a random instant after they have done something; the others kill
//! themselves at a named kill point, at a random passage of it. Every point has its turn. Some reapings run in a
//! process of their own that is killed meanwhile, and are then repeated. The id of a dead worker goes to the very next
//! process.
//!
//! A process that sees a fault ends by itself, and that ends the storm: what is checked is in the scenes.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rlz_core::WorkerId;
use rlz_core::policy::Rng;

use crate::child::{Errand, Files, Process, REAPER, Report, Seat};
use crate::common::id;

/// Exit status of a process that has seen a torn row.
pub const TORN: i32 = 3;

/// How long a process may take to do one thing, and a storm to reach its last kill point, on a machine that does other
/// work.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one that is to die at a point may live without coming to it.
const POINT_PATIENCE: Duration = Duration::from_secs(1);

/// Nothing, or what is wrong.
pub type Verdict<T = ()> = Result<T, String>;

pub fn demand(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Processes that do the same.
pub struct Role {
    pub name: &'static str,
    pub seats: usize,
    /// Kill points that they pass.
    pub points: &'static [&'static str],
}

/// One stream and what is done to it.
pub trait Scene: Sized {
    const NAME: &'static str;
    const ROLES: &'static [Role];
    /// Kill points inside its reaping.
    const REAP_POINTS: &'static [&'static str] = &[];

    fn create() -> Self;

    /// The same stream in another process.
    fn attach(role: &str, files: &Files) -> Self;

    /// What another process attaches to.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// What a process does, for ever.
    fn play(&self, role: &str, seat: &Seat);

    /// Take back what a worker, proven dead, held.
    fn reap(&self, dead: WorkerId);

    /// Cells that this worker holds.
    fn held_by(&self, worker: WorkerId) -> usize;

    /// What must be true at any time.
    fn check(&self) -> Verdict;

    /// What must be true when everybody is dead and reaped; some figures.
    fn settle(&self, kills: &Kills) -> Verdict<String>;
}

/// How long a storm blows.
#[derive(Clone, Copy)]
pub enum Length {
    For(Duration),
    Kills(u64),
}

/// When the dead are reaped: rightly, or as a control.
#[derive(Clone, Copy, PartialEq)]
pub enum Reaping {
    AtOnce,
    Never,
}

/// Kills, counted.
#[derive(Default)]
pub struct Kills {
    pub by_role: BTreeMap<&'static str, u64>,
    pub by_point: BTreeMap<&'static str, u64>,
}

impl Kills {
    pub fn total(&self) -> u64 {
        self.by_role.values().sum()
    }

    pub fn of(&self, role: &str) -> u64 {
        self.by_role.get(role).copied().unwrap_or(0)
    }

    fn count(&mut self, role: &'static str, point: Option<&'static str>) {
        *self.by_role.entry(role).or_default() += 1;
        if let Some(point) = point {
            *self.by_point.entry(point).or_default() += 1;
        }
    }
}

/// What a storm did.
pub struct Summary {
    pub scene: &'static str,
    pub seconds: f64,
    pub kills: Kills,
    pub started: u64,
    pub checked: u64,
    pub figures: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scene, seconds, kills, started, checked, figures } = self;
        let list = |counts: &BTreeMap<_, u64>| {
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        let at_points: u64 = kills.by_point.values().sum();
        writeln!(
            f,
            "{scene}: {} kills in {seconds:.1} s ({at_points} at exact points), {started} processes started, {checked} \
             checked; {figures}",
            kills.total()
        )?;
        writeln!(f, "  by role: {}", list(&kills.by_role))?;
        write!(f, "  by point: {}", list(&kills.by_point))
    }
}

struct Member {
    role: &'static Role,
    index: usize,
    seat: usize,
    worker: WorkerId,
    process: Process,
    point: Option<&'static str>,
    born: Instant,
    /// Progress of the seat when this process got it, and last.
    at_first: u64,
    at_last: u64,
    moved: Instant,
}

struct Storm<'a, S> {
    /// First, so that they are gone before what they attach to.
    members: Vec<Member>,
    scene: &'a S,
    report: Report,
    reaping: Reaping,
    random: Rng,
    /// Ids that nobody has, the last one given back on top.
    ids: Vec<WorkerId>,
    kills: Kills,
    started: u64,
}

/// Let a storm blow over a new stream.
pub fn storm<S: Scene>(length: Length, reaping: Reaping) -> Verdict<Summary> {
    let seed = u64::from(std::process::id());
    println!("{}: seed {seed}", S::NAME);
    let scene = S::create();
    let mut storm = Storm {
        scene: &scene,
        report: Report::new(),
        reaping,
        random: Rng::new([seed, 2, 3, 4]),
        ids: (1..=WorkerId::MAX).rev().map(id).collect(),
        members: Vec::new(),
        kills: Kills::default(),
        started: 0,
    };
    let begin = Instant::now();
    for role in S::ROLES {
        for index in 0..role.seats {
            let seat = storm.members.len();
            let member = storm.start(role, index, seat);
            storm.members.push(member);
        }
    }
    storm.blow(length)?;
    storm.calm()?;
    let Storm { report, kills, started, .. } = storm;
    let figures = scene.settle(&kills)?;
    let checked = report.checked();
    Ok(Summary { scene: S::NAME, seconds: begin.elapsed().as_secs_f64(), kills, started, checked, figures })
}

/// Negative control: beside the scene's processes one in `role`, which looks at no stamps, soon sees something torn.
pub fn torn_is_seen<S: Scene>(role: &str) {
    let (scene, report) = (S::create(), Report::new());
    let others = S::ROLES.iter().map(|other| (other.name, other.seats));
    let start = |(seat, (role, index)): (usize, (&str, usize))| {
        Process::start(&scene, &report, &Errand { role, index, seat, worker: id(seat as u64 + 1), plan: None })
    };
    let crew = others.flat_map(|(name, seats)| (0..seats).map(move |index| (name, index)));
    let _crew: Vec<_> = crew.enumerate().map(start).collect();
    let mut careless = start((50, (role, 0)));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = careless.ended() {
            break status;
        }
        assert!(begin.elapsed() < PATIENCE, "nothing torn was seen: the storms find nothing");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(TORN));
}

impl<S: Scene> Storm<'_, S> {
    fn blow(&mut self, length: Length) -> Verdict {
        let begin = Instant::now();
        loop {
            let (over, limit) = match length {
                Length::For(time) => (begin.elapsed() >= time, time + PATIENCE),
                Length::Kills(kills) => (self.kills.total() >= kills, Duration::from_secs(3600)),
            };
            let roles = S::ROLES.iter().flat_map(|role| role.points);
            let left = roles.chain(S::REAP_POINTS).find(|point| !self.kills.by_point.contains_key(**point));
            if over && left.is_none() {
                return Ok(());
            }
            demand(begin.elapsed() < limit, || format!("nobody came to the kill point {left:?}"))?;
            let nap = self.random.below(2_000);
            std::thread::sleep(Duration::from_micros(nap));
            self.look()?;
            self.strike()?;
        }
    }

    /// See who died at its point, and whether somebody is stuck.
    fn look(&mut self) -> Verdict {
        for seat in 0..self.members.len() {
            let member = &mut self.members[seat];
            if let Some(status) = member.process.ended() {
                let point = member.point.filter(|_| status.signal() == Some(9));
                demand(point.is_some(), || by_itself(member.role.name, status))?;
                self.fallen(seat, point)?;
                continue;
            }
            let now = self.report.progress(seat);
            if now != member.at_last {
                (member.at_last, member.moved) = (now, Instant::now());
            }
            let patience = if self.reaping == Reaping::AtOnce { PATIENCE } else { Duration::from_secs(2) };
            let name = member.role.name;
            demand(member.moved.elapsed() < patience, || format!("a {name} is stuck"))?;
        }
        Ok(())
    }

    /// Kill one of those that wait for it, or have waited long for their point, and have done something.
    fn strike(&mut self) -> Verdict {
        let waits = |member: &Member| member.point.is_none() || member.born.elapsed() > POINT_PATIENCE;
        let ripe = |member: &&Member| waits(member) && member.at_last > member.at_first;
        let ripe: Vec<_> = self.members.iter().filter(ripe).map(|member| member.seat).collect();
        let Some(&seat) = ripe.get(usize::try_from(self.random.below(ripe.len() as u64)).unwrap()) else {
            return Ok(());
        };
        let member = &mut self.members[seat];
        let status = member.process.kill();
        demand(status.signal() == Some(9), || by_itself(member.role.name, status))?;
        self.fallen(seat, None)
    }

    /// Reap the dead one, whose death is proven, and give its seat to a successor.
    fn fallen(&mut self, seat: usize, point: Option<&'static str>) -> Verdict {
        let Member { role, index, worker, .. } = self.members[seat];
        self.kills.count(role.name, point);
        if self.reaping == Reaping::AtOnce {
            if self.random.below(4) == 0 {
                self.reap_in_a_process(worker)?;
            }
            self.reap(role.name, worker, point)?;
            self.ids.push(worker); // only now
        }
        self.scene.check()?;
        self.members[seat] = self.start(role, index, seat);
        Ok(())
    }

    /// Reap in a process which is killed at that, perhaps: the parent does it once more.
    fn reap_in_a_process(&mut self, dead: WorkerId) -> Verdict {
        let exact = !S::REAP_POINTS.is_empty() && self.random.below(2) == 0;
        let point = exact.then(|| self.next_point(S::REAP_POINTS));
        let plan = point.map(|point| (point, 1 + self.random.below(2)));
        let errand = Errand { role: REAPER, index: 0, seat: self.members.len(), worker: dead, plan };
        let mut process = Process::start(self.scene, &self.report, &errand);
        self.started += 1;
        let status = if exact {
            process.wait()
        } else {
            let nap = self.random.below(4_000);
            std::thread::sleep(Duration::from_micros(nap));
            process.kill()
        };
        match status.signal() {
            Some(9) => self.kills.count(REAPER, point),
            _ => demand(status.success(), || by_itself(REAPER, status))?,
        }
        Ok(())
    }

    fn start(&mut self, role: &'static Role, index: usize, seat: usize) -> Member {
        let worker = self.ids.pop().expect("ids come back at reaping");
        let exact = !role.points.is_empty() && self.random.below(2) == 0;
        let point = exact.then(|| self.next_point(role.points));
        // Mostly soon, sometimes late.
        let passage = self.random.below(8);
        let passage = 1 + self.random.below(1 << passage);
        let plan = point.map(|point| (point, passage));
        let at_first = self.report.progress(seat);
        let process = Process::start(self.scene, &self.report, &Errand { role: role.name, index, seat, worker, plan });
        self.started += 1;
        let born = Instant::now();
        Member { role, index, seat, worker, process, point, born, at_first, at_last: at_first, moved: born }
    }

    /// A point at random, rather one that was seldom reached.
    fn next_point(&mut self, points: &[&'static str]) -> &'static str {
        let mut pick = || points[usize::try_from(self.random.below(points.len() as u64)).unwrap()];
        let reached = |point| self.kills.by_point.get(point).copied().unwrap_or(0);
        std::cmp::min_by_key(pick(), pick(), |point| reached(*point))
    }

    /// Take back what a worker, proven dead, held.
    fn reap(&self, role: &str, dead: WorkerId, point: Option<&str>) -> Verdict {
        self.scene.reap(dead);
        let held = self.scene.held_by(dead);
        demand(held == 0, || format!("{held} cells of a {role} leaked: it died at {point:?}"))
    }

    /// Kill everybody.
    fn calm(&mut self) -> Verdict {
        while let Some(mut member) = self.members.pop() {
            let status = member.process.kill();
            demand(status.signal() == Some(9), || by_itself(member.role.name, status))?;
            self.kills.count(member.role.name, None);
            self.reap(member.role.name, member.worker, None)?;
            self.scene.check()?;
        }
        Ok(())
    }
}

fn by_itself(role: &str, status: ExitStatus) -> String {
    format!("a {role} ended by itself ({status}; {TORN} says torn content, else its words are above)")
}
