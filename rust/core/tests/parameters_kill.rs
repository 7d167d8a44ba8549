//! The parameter store under SIGKILL: real processes, killed at random instants.
//!
//! Every version describes itself: word i holds a mix of the version and i. A subscriber that ever sees words of two
//! versions together exits with a status of its own, which fails the test. The processes are this test binary, started
//! again with `ROLE` set; they open the parent's descriptors through /proc.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rlz_core::memory::{PAGE, ReadWord};
use rlz_core::parameters::ParameterStore;
use rlz_core::policy::Rng;
use rlz_core::schema::{Dtype, Field};
use rlz_core::sync::Ordering;
use rlz_core::{Error, WorkerId};

/// Words of one version: large enough that most kills of the publisher fall into a copy.
const WORDS: usize = 8_192;
const LEASES: usize = 3;
const TORN: i32 = 3;
const RUN: Duration = Duration::from_secs(2);

const ROLE: &str = "RLZ_TEST_ROLE";
const PARENT: &str = "RLZ_TEST_PARENT";
const ID: &str = "RLZ_TEST_ID";

fn word(version: u64, index: usize) -> u64 {
    (version ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * index as u64 + 1)
}

fn content(version: u64) -> Vec<u8> {
    (0..WORDS).flat_map(|index| word(version, index).to_le_bytes()).collect()
}

fn worker(id: u64) -> WorkerId {
    WorkerId::new(id).unwrap()
}

/// A started process; it goes when the test fails, too.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Start this binary as a publisher or subscriber.
fn start(role: &str, id: u64, store: &ParameterStore, payload: &OwnedFd) -> Process {
    let payload = if role == "publisher" { store.payload().as_fd().as_raw_fd() } else { payload.as_raw_fd() };
    let control = store.control().as_fd().as_raw_fd();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(PARENT, format!("{} {control} {payload}", std::process::id()))
        .env(ID, id.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    Process(child.unwrap())
}

/// Not a test by itself: what the started processes do.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let parent = std::env::var(PARENT).unwrap();
    let numbers: Vec<i32> = parent.split(' ').map(|number| number.parse().unwrap()).collect();
    let id = worker(std::env::var(ID).unwrap().parse().unwrap());
    let open = |fd: i32, write: bool| {
        OpenOptions::new().read(true).write(write).open(format!("/proc/{}/fd/{fd}", numbers[0])).unwrap()
    };
    let (control, payload) = (open(numbers[1], true), open(numbers[2], role == "publisher"));
    let store = ParameterStore::attach(control.as_fd(), payload.as_fd(), role == "publisher").unwrap();
    match role.as_str() {
        "publisher" => publish(&store, id),
        "copier" => copy(&store, id),
        "careless" => copy_without_looking(&store),
        _ => lease(&store, id),
    }
}

fn publish(store: &Arc<ParameterStore>, id: WorkerId) {
    let mut publisher = store.publisher(id).unwrap();
    loop {
        let version = store.version() + 1;
        assert_eq!(publisher.publish(&content(version), 2 * version, 3 * version).unwrap(), version);
    }
}

fn copy(store: &Arc<ParameterStore>, id: WorkerId) {
    let mut reader = store.subscriber(id);
    let mut bytes = vec![0; 8 * WORDS];
    let mut last = 0;
    loop {
        let newest = reader.wait_newer(last, None, &mut || true).unwrap();
        let publication = reader.read(&mut bytes).unwrap();
        let version = publication.version;
        let counters = (publication.env_steps, publication.updates) == (2 * version, 3 * version);
        if bytes != content(version) || !counters || version < newest {
            std::process::exit(TORN);
        }
        last = version;
    }
}

fn lease(store: &Arc<ParameterStore>, id: WorkerId) {
    let mut reader = store.subscriber(id);
    loop {
        match reader.lease() {
            Ok(lease) => {
                let whole = |words: &[ReadWord], version| {
                    words.iter().enumerate().all(|(i, w)| w.load(Ordering::Relaxed) == word(version, i))
                };
                let version = lease.publication().version;
                if !whole(lease.words(), version) {
                    std::process::exit(TORN);
                }
                std::thread::sleep(Duration::from_millis(3)); // a slow reader: the publisher passes it many times
                if !whole(lease.words(), version) {
                    std::process::exit(TORN);
                }
            }
            Err(Error::Empty(_)) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// What the protocol is for: a slot read without its stamp.
fn copy_without_looking(store: &ParameterStore) {
    let slot = store.payload().read_words(PAGE, WORDS).unwrap();
    loop {
        let words: Vec<u64> = slot.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let version = words[0] ^ 0x9e37_79b9_7f4a_7c15;
        if words[0] != 0 && (0..WORDS).any(|index| words[index] != word(version, index)) {
            std::process::exit(TORN);
        }
    }
}

/// Negative control: with these processes and this content, a reader that looks at no stamp does see torn versions.
#[test]
fn without_the_stamps_torn_versions_are_seen() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let store = ParameterStore::create(&[Field::new("w", Dtype::U64, &[WORDS]).unwrap()], LEASES, 7).unwrap();
    let payload = store.read_only_payload().unwrap();
    let _publisher = start("publisher", 1, &store, &payload);
    let mut careless = start("careless", 2, &store, &payload);
    let limit = Instant::now() + Duration::from_secs(30);
    while careless.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < limit, "no torn version was seen: this test finds nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(careless.0.wait().unwrap().code(), Some(TORN));
}

#[test]
fn random_kills_leave_the_store_whole() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let store = ParameterStore::create(&[Field::new("w", Dtype::U64, &[WORDS]).unwrap()], LEASES, 7).unwrap();
    let payload = store.read_only_payload().unwrap();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut rng = Rng::new([seed, 2, 3, 4]);
    let mut next_id = 0;
    let mut begin = |role: &'static str| {
        next_id += 1;
        (role, next_id, start(role, next_id, &store, &payload))
    };
    let mut processes: Vec<_> = ["publisher", "copier", "leaser"].into_iter().map(&mut begin).collect();
    let (mut kills, mut publisher_kills, mut last) = (0, 0, 0);
    let deadline = Instant::now() + RUN;
    while Instant::now() < deadline || kills < 20 {
        std::thread::sleep(Duration::from_micros(1_000 + rng.below(30_000)));
        let version = store.version();
        assert!(version >= last, "the newest version went back");
        let victim = rng.below(3) as usize;
        let (role, id, process) = &mut processes[victim];
        let status = process.0.try_wait().unwrap();
        assert!(status.is_none(), "a {role} ended by itself ({TORN} says torn content): {status:?}");
        process.0.kill().unwrap();
        assert_eq!(process.0.wait().unwrap().signal(), Some(9), "a {role} ended by itself");
        store.reap(worker(*id));
        kills += 1;
        if *role == "publisher" {
            publisher_kills += 1;
            last = store.version();
        }
        processes[victim] = begin(role);
    }
    // Whatever was killed where: the last publisher goes on, and a fresh reader gets a whole version.
    let before = store.version();
    let limit = Instant::now() + Duration::from_secs(20);
    while store.version() < before + 100 {
        assert!(Instant::now() < limit, "the publisher is stuck at version {}", store.version());
        std::thread::sleep(Duration::from_millis(5));
    }
    for (role, id, mut process) in processes {
        let status = process.0.try_wait().unwrap();
        assert!(status.is_none(), "a {role} ended by itself ({TORN} says torn content): {status:?}");
        drop(process);
        store.reap(worker(id));
    }
    assert_eq!(store.lease_holders(), [0_u64; 0], "lease cells leaked");
    let mut bytes = vec![0; 8 * WORDS];
    let publication = store.subscriber(worker(1022)).read(&mut bytes).unwrap();
    assert!(bytes == content(publication.version));
    println!("{kills} kills ({publisher_kills} of the publisher), {} versions", store.version());
    assert!(publisher_kills > 0);
}
