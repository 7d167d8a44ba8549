//! The processes of a storm: this test binary, started again with an errand in its environment.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use rlz_core::memory::{Access, Segment};
use rlz_core::policy::Rng;
use rlz_core::sync::Ordering;
use rlz_core::{WorkerId, kill};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::common::id;
use crate::harness::Scene;

const ERRAND: &str = "RLZ_TEST_STORM";

/// Role of a process that reaps a dead worker, so that it can be killed at that.
pub const REAPER: &str = "reaper";

/// Words of the report: what was checked, and then how far each seat has come.
const CHECKED: usize = 0;
const PROGRESS: usize = 1;

/// The segment in which processes report.
pub struct Report(Segment);

impl Report {
    pub fn new() -> Self {
        Self(Segment::create("report", 4096).unwrap())
    }

    fn add(&self, word: usize, count: u64) {
        self.0.words(word * 8, 1).unwrap()[0].fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self, word: usize) -> u64 {
        self.0.words(word * 8, 1).unwrap()[0].load(Ordering::Relaxed)
    }

    /// Rows, segments and versions that were looked at and found whole.
    pub fn checked(&self) -> u64 {
        self.get(CHECKED)
    }

    /// Operations that the holders of a seat have finished.
    pub fn progress(&self, seat: usize) -> u64 {
        self.get(PROGRESS + seat)
    }
}

/// What one process is to do.
pub struct Errand<'a> {
    pub role: &'a str,
    /// Number among the processes of this role.
    pub index: usize,
    /// Number among all processes of the storm.
    pub seat: usize,
    pub worker: WorkerId,
    /// Kill point at which it ends itself, and at which passage.
    pub plan: Option<(&'a str, u64)>,
}

/// A started process, which goes when the test fails, too.
pub struct Process(Child);

impl Process {
    pub fn start<S: Scene>(scene: &S, report: &Report, errand: &Errand<'_>) -> Self {
        let Errand { role, index, seat, worker, plan } = errand;
        let (point, passage) = plan.unwrap_or_default();
        let mut fields = vec![S::NAME.to_owned(), (*role).to_owned(), point.to_owned(), passage.to_string()];
        fields.extend([*index as u64, *seat as u64, worker.get()].map(|number| number.to_string()));
        fields.push(std::process::id().to_string());
        let descriptors = std::iter::once(report.0.as_fd()).chain(scene.descriptors());
        fields.extend(descriptors.map(|fd| fd.as_raw_fd().to_string()));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(ERRAND, fields.join("|"));
        command.env("RUST_BACKTRACE", "0"); // in controls, processes fail as they should
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Kill and wait: now its death is proven.
    pub fn kill(&mut self) -> ExitStatus {
        self.0.kill().unwrap();
        self.0.wait().unwrap()
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Descriptors of the parent, by their number in [`Scene::descriptors`].
pub struct Files {
    parent: String,
    numbers: Vec<String>,
}

impl Files {
    pub fn open(&self, number: usize, writable: bool) -> File {
        let path = format!("/proc/{}/fd/{}", self.parent, self.numbers[number]);
        File::options().read(true).write(writable).open(path).unwrap()
    }

    pub fn segment(&self, number: usize) -> Segment {
        Segment::attach(self.open(number, true).as_fd(), Access::ReadWrite).unwrap()
    }
}

/// Where a process works.
pub struct Seat {
    pub index: usize,
    pub worker: WorkerId,
    number: usize,
    report: Report,
}

impl Seat {
    /// Say that an operation is done, in which `checked` rows (segments, versions) were found whole.
    pub fn tick(&self, checked: u64) {
        self.report.add(PROGRESS + self.number, 1);
        if checked > 0 {
            self.report.add(CHECKED, checked);
        }
    }

    /// A random stream of this process.
    pub fn random(&self) -> Rng {
        Rng::new([u64::from(std::process::id()), self.number as u64, 1, 2])
    }
}

/// The errand of this process as its parent wrote it; None in the parent.
pub fn errand() -> Option<Vec<String>> {
    Some(std::env::var(ERRAND).ok()?.split('|').map(str::to_owned).collect())
}

/// Run the errand if it belongs to this scene.
pub fn run<S: Scene>(errand: &[String]) {
    let [scene, role, point, passage, index, seat, worker, parent, report, numbers @ ..] = errand else {
        panic!("{errand:?}")
    };
    if scene != S::NAME {
        return;
    }
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    if !point.is_empty() {
        kill::arm(point, passage.parse().unwrap());
    }
    let files = |numbers: &[String]| Files { parent: parent.clone(), numbers: numbers.to_vec() };
    let report = Report(files(std::slice::from_ref(report)).segment(0));
    let worker = id(worker.parse().unwrap());
    let seat = Seat { index: index.parse().unwrap(), worker, number: seat.parse().unwrap(), report };
    let scene = S::attach(role, &files(numbers));
    match role.as_str() {
        REAPER => {
            seat.tick(0);
            scene.reap(worker);
        }
        _ => scene.play(role, &seat),
    }
}
