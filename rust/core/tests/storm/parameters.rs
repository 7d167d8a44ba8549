//! Parameter store: a publisher, a reader that copies and one that leases.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rlz_core::memory::{PAGE, ReadWord, Segment};
use rlz_core::parameters::ParameterStore;
use rlz_core::sync::Ordering;
use rlz_core::{Error, WorkerId};

use crate::child::{Files, Seat};
use crate::common::{id, pattern, words_field};
use crate::harness::{Kills, Role, Scene, TORN, Verdict, demand};

/// Words of one version: large enough that most kills of the publisher fall into a copy.
const WORDS: usize = 8_192;

/// The ledger has the last version that a publisher knows to be published.
pub struct Parameters {
    store: Arc<ParameterStore>,
    read_only: OwnedFd,
    ledger: Segment,
}

impl Scene for Parameters {
    const NAME: &'static str = "parameter store";
    const ROLES: &'static [Role] = &[
        Role {
            name: "publisher",
            seats: 1,
            points: &[
                "parameters: looking for leases",
                "parameters: claimed",
                "parameters: written",
                "parameters: stamped",
                "parameters: published",
                "event: before the wake",
            ],
        },
        Role { name: "copier", seats: 1, points: &["event: announced"] },
        Role { name: "leaser", seats: 1, points: &["parameters: leased, not checked"] },
    ];

    fn create() -> Self {
        let store = ParameterStore::create(&words_field(WORDS), 3, 7).unwrap();
        let read_only = store.read_only_payload().unwrap();
        Self { store, read_only, ledger: Segment::create("ledger", 8).unwrap() }
    }

    fn attach(role: &str, files: &Files) -> Self {
        let publishing = role == "publisher";
        let payload = files.open(if publishing { 1 } else { 2 }, publishing);
        let store = ParameterStore::attach(files.open(0, true).as_fd(), payload.as_fd(), publishing).unwrap();
        Self { store, read_only: payload.into(), ledger: files.segment(3) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let Self { store, read_only, ledger } = self;
        vec![store.control().as_fd(), store.payload().as_fd(), read_only.as_fd(), ledger.as_fd()]
    }

    fn play(&self, role: &str, seat: &Seat) {
        match role {
            "publisher" => self.publish(seat),
            "copier" => self.copy(seat),
            "leaser" => self.lease(seat),
            _ => self.copy_carelessly(),
        }
    }

    fn reap(&self, dead: WorkerId) {
        self.store.reap(dead);
    }

    fn held_by(&self, worker: WorkerId) -> usize {
        self.store.lease_holders().into_iter().filter(|holder| *holder == worker.get()).count()
    }

    fn check(&self) -> Verdict {
        let published = self.ledger.words(0, 1).unwrap()[0].load(Ordering::Acquire);
        let version = self.store.version();
        demand(version >= published, || format!("version {published} was published, the newest is {version}"))
    }

    fn settle(&self, _: &Kills) -> Verdict<String> {
        let leases = self.store.lease_holders();
        demand(leases.is_empty(), || format!("lease cells leaked: {leases:?}"))?;
        let mut bytes = vec![0; 8 * WORDS];
        let version = self.store.subscriber(id(1021)).read(&mut bytes).unwrap().version;
        demand(bytes == content(version), || format!("version {version} is torn"))?;
        let mut next = self.store.publisher(id(1022)).map_err(|error| error.to_string())?;
        let published = next.publish(&content(version + 1), 0, 0).map_err(|error| error.to_string())?;
        demand(published == version + 1, || format!("version {published} came after {version}"))?;
        demand(version > 20, || format!("{version} versions only"))?;
        Ok(format!("{version} versions published"))
    }
}

fn content(version: u64) -> Vec<u8> {
    (0..WORDS).flat_map(|i| pattern(0, version, i).to_le_bytes()).collect()
}

impl Parameters {
    fn publish(&self, seat: &Seat) {
        let mut publisher = self.store.publisher(seat.worker).unwrap();
        loop {
            let version = self.store.version() + 1;
            assert_eq!(publisher.publish(&content(version), 2 * version, 3 * version).unwrap(), version);
            self.ledger.words(0, 1).unwrap()[0].store(version, Ordering::Release);
            seat.tick(0);
        }
    }

    fn copy(&self, seat: &Seat) {
        let mut reader = self.store.subscriber(seat.worker);
        let mut bytes = vec![0; 8 * WORDS];
        let mut last = 0;
        loop {
            let newest = match last % 2 {
                0 => reader.wait_newer(last, None, &mut || true).unwrap(),
                _ => reader.wait_env_steps(2 * (last + 1), None, &mut || true).unwrap(),
            };
            let publication = reader.read(&mut bytes).unwrap();
            let version = publication.version;
            let figures = (publication.env_steps, publication.updates) == (2 * version, 3 * version);
            if bytes != content(version) || !figures || version < newest || newest <= last {
                std::process::exit(TORN);
            }
            last = version;
            seat.tick(1);
        }
    }

    /// A slow reader: the publisher passes it many times.
    fn lease(&self, seat: &Seat) {
        let mut reader = self.store.subscriber(seat.worker);
        let nap = |time| std::thread::sleep(Duration::from_millis(time));
        loop {
            let lease = match reader.lease() {
                Ok(lease) => lease,
                Err(Error::Empty(_)) => {
                    nap(1);
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let version = lease.publication().version;
            let whole =
                || lease.words().iter().enumerate().all(|(i, w)| w.load(Ordering::Relaxed) == pattern(0, version, i));
            let at_first = whole();
            nap(2);
            if !at_first || !whole() {
                std::process::exit(TORN);
            }
            seat.tick(1);
        }
    }

    /// A slot without its stamp.
    fn copy_carelessly(&self) {
        let slot: &[ReadWord] = self.store.payload().read_words(PAGE, WORDS).unwrap();
        loop {
            let words: Vec<u64> = slot.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            if words.iter().enumerate().any(|(i, word)| *word != words[0].wrapping_add(i as u64)) && words[0] != 0 {
                std::process::exit(TORN);
            }
        }
    }
}
