use std::os::fd::AsFd;

use half::{bf16, f16};
use proptest::prelude::*;

use super::payload::load_bytes;
use super::*;
use crate::schema::Dtype;
use crate::sync::AtomicBool;

fn worker(id: u64) -> WorkerId {
    WorkerId::new(id).unwrap()
}

fn field(name: &str, dtype: Dtype, shape: &[usize]) -> Field {
    Field::new(name, dtype, shape).unwrap()
}

/// A store of `words` u64 whose content says which version it is.
fn words_store(words: usize, leases: usize) -> Arc<ParameterStore> {
    ParameterStore::create(&[field("w", Dtype::U64, &[words])], leases, 7).unwrap()
}

fn content(words: usize, version: u64) -> Vec<u8> {
    (0..words as u64).flat_map(|i| (version << 32 | i).to_le_bytes()).collect()
}

#[test]
fn newest_wins_and_carries_its_counters() {
    let store = ParameterStore::create(&[field("a", Dtype::F32, &[2, 3]), field("b", Dtype::U8, &[3])], 2, 1).unwrap();
    assert_eq!(store.nbytes(), 27);
    assert_eq!(store.manifest()[1].offset, 24);
    let mut publisher = store.publisher(worker(1)).unwrap();
    let mut reader = store.subscriber(worker(2));
    let mut buffer = vec![0; 27];
    assert_eq!(store.version(), 0);
    assert!(store.publication().is_none());
    assert!(matches!(reader.read(&mut buffer), Err(Error::Empty(_))));
    assert!(matches!(reader.lease(), Err(Error::Empty(_))));
    for version in 1..20_u8 {
        let bytes = vec![version; 27];
        assert_eq!(publisher.publish(&bytes, u64::from(version) * 10, u64::from(version)).unwrap(), version.into());
        let publication = reader.read(&mut buffer).unwrap();
        assert_eq!(buffer, bytes);
        let version = u64::from(version);
        assert_eq!(publication, Publication { version, env_steps: version * 10, updates: version });
        assert_eq!(store.publication(), Some(publication));
    }
}

#[test]
fn attached_subscribers_cannot_write() {
    let store = words_store(10, 1);
    let read_only = store.read_only_payload().unwrap();
    let other = ParameterStore::attach(store.control().as_fd(), read_only.as_fd(), false).unwrap();
    assert!(matches!(other.publisher(worker(3)), Err(Error::ReadOnly { .. })));
    assert!(ParameterStore::attach(store.control().as_fd(), read_only.as_fd(), true).is_err());
    let mut publisher = store.publisher(worker(1)).unwrap();
    publisher.publish(&content(10, 1), 0, 0).unwrap();
    let mut buffer = vec![0; 80];
    other.subscriber(worker(2)).read(&mut buffer).unwrap();
    assert_eq!(buffer, content(10, 1));
    assert_eq!(other.manifest(), store.manifest());
}

#[test]
fn who_looks_in_from_outside_copies_and_leaves_no_trace() {
    let store = words_store(10, 1);
    let fds = (store.control().read_only_fd().unwrap(), store.read_only_payload().unwrap());
    let outside = ParameterStore::attach(fds.0.as_fd(), fds.1.as_fd(), false).unwrap();
    assert!(matches!(outside.check_writable(), Err(Error::ReadOnly { .. })));
    assert!(
        ParameterStore::attach(fds.0.as_fd(), store.payload().as_fd(), true).unwrap().publisher(worker(3)).is_err()
    );
    let mut publisher = store.publisher(worker(1)).unwrap();
    let none = || None::<WorkerId>;
    for mut reader in [outside.subscriber(worker(2)), outside.subscriber(none()), store.subscriber(none())] {
        let before = store.version();
        let limit = Some(Duration::from_millis(1));
        assert!(matches!(reader.wait_newer(before, limit, &mut || true), Err(Error::Timeout { .. })));
        let version = publisher.publish(&content(10, before + 1), before + 1, 0).unwrap();
        assert_eq!(reader.wait_newer(before, None, &mut || true).unwrap(), version);
        assert_eq!(reader.wait_env_steps(version, None, &mut || true).unwrap(), version);
        let mut buffer = vec![0; 80];
        assert_eq!(reader.read(&mut buffer).unwrap().version, version);
        assert_eq!(buffer, content(10, version));
        assert!(reader.lease().is_err());
        assert_eq!(store.lease_holders(), Vec::<u64>::new());
    }
    assert_eq!(outside.version(), 3);
}

#[test]
fn versions_go_on_after_those_of_an_earlier_store() {
    let store = ParameterStore::create_after(41, &[field("w", Dtype::F32, &[1])], 1, 7).unwrap();
    assert_eq!((store.version(), store.publication()), (0, None), "nothing has been published here");
    for version in [42, 43] {
        let mut publisher = store.publisher(worker(1)).unwrap();
        assert_eq!(publisher.publish(&[0; 4], 0, 0).unwrap(), version);
        assert_eq!(store.version(), version);
    }
    assert!(ParameterStore::create_after(1 << 52, &[field("w", Dtype::F32, &[1])], 1, 7).is_err());
}

#[test]
fn mismatched_segments_are_refused() {
    let (a, b) = (words_store(10, 1), words_store(11, 1));
    let mixed = ParameterStore::attach(a.control().as_fd(), b.payload().as_fd(), true);
    assert!(mixed.unwrap_err().to_string().contains("different stores"));
    assert!(ParameterStore::attach(a.payload().as_fd(), a.control().as_fd(), true).is_err());
    assert!(ParameterStore::create(&[], 1, 0).is_err());
    let twice = [field("x", Dtype::F32, &[1]), field("x", Dtype::F32, &[1])];
    assert!(ParameterStore::create(&twice, 1, 0).is_err());
    assert!(ParameterStore::create(&twice[..1], 254, 0).is_err());
}

#[test]
fn floats_that_are_not_finite_are_refused_before_anything_is_written() {
    let tensors = [
        field("half", Dtype::F16, &[4]),
        field("brain", Dtype::Bf16, &[4]),
        field("double", Dtype::F64, &[2]),
        field("count", Dtype::I64, &[1]),
        field("single", Dtype::F32, &[20]),
    ];
    let store = ParameterStore::create(&tensors, 1, 0).unwrap();
    let mut publisher = store.publisher(worker(1)).unwrap();
    let good = vec![0; store.nbytes()];
    publisher.publish(&good, 0, 0).unwrap();
    for (name, index, bytes) in [
        ("half", 2, f16::NAN.to_le_bytes().to_vec()),
        ("brain", 3, bf16::INFINITY.to_le_bytes().to_vec()),
        ("double", 1, f64::NEG_INFINITY.to_le_bytes().to_vec()),
        ("single", 19, f32::NAN.to_le_bytes().to_vec()),
    ] {
        let place = store.manifest().iter().find(|placed| placed.field.name == name).unwrap();
        let at = place.offset + index * place.field.dtype.size();
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(&bytes);
        match publisher.publish(&bad, 0, 0) {
            Err(Error::NonFinite { what, index: found }) => assert_eq!((what.as_str(), found), (name, index)),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(store.version(), 1);
    }
    let mut all_ones = good;
    all_ones[32..40].fill(0xff); // an integer may have any bits
    publisher.publish(&all_ones, 0, 0).unwrap();
}

#[test]
fn one_publisher_at_a_time() {
    let store = words_store(4, 1);
    let first = store.publisher(worker(1)).unwrap();
    match store.publisher(worker(2)) {
        Err(Error::Owned { owner: 1, worker: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(first);
    let mut second = store.publisher(worker(2)).unwrap();
    second.publish(&content(4, 1), 0, 0).unwrap();
    store.reap(worker(2)); // declared dead, although it is not
    assert!(matches!(second.publish(&content(4, 2), 0, 0), Err(Error::LeaseLost { owner: 0, .. })));
    let mut third = store.publisher(worker(3)).unwrap();
    assert!(matches!(second.publish(&content(4, 2), 0, 0), Err(Error::LeaseLost { owner: 3, .. })));
    drop(second);
    assert_eq!(third.publish(&content(4, 2), 0, 0).unwrap(), 2);
}

#[test]
fn a_leased_version_stays_while_the_publisher_goes_on() {
    let store = words_store(100, 3);
    let mut publisher = store.publisher(worker(1)).unwrap();
    let mut readers: Vec<_> = (2..5).map(|id| store.subscriber(worker(id))).collect();
    let mut held = Vec::new();
    for (i, reader) in readers.iter_mut().enumerate() {
        publisher.publish(&content(100, i as u64 + 1), 0, 0).unwrap();
        held.push(reader.lease().unwrap());
    }
    for version in 4..50 {
        assert_eq!(publisher.publish(&content(100, version), 0, 0).unwrap(), version);
    }
    for (i, lease) in held.iter().enumerate() {
        assert_eq!(lease.publication().version, i as u64 + 1);
        let mut bytes = vec![0; 800];
        load_bytes(lease.words(), &mut bytes);
        assert_eq!(bytes, content(100, i as u64 + 1));
    }
    drop(held);
    let mut bytes = vec![0; 800];
    assert_eq!(readers[0].read(&mut bytes).unwrap().version, 49);
}

#[test]
fn cells_come_back() {
    let store = words_store(4, 2);
    let mut publisher = store.publisher(worker(1)).unwrap();
    publisher.publish(&content(4, 1), 0, 0).unwrap();
    let a = store.subscriber(worker(2));
    let mut b = store.subscriber(worker(3));
    let mut without = store.subscriber(worker(4));
    assert!(without.lease().unwrap_err().to_string().contains("none of the 2 lease cells"));
    without.read(&mut [0; 32]).unwrap();
    assert_eq!(store.lease_holders(), [2, 3]);
    drop(a);
    std::mem::forget(b.lease().unwrap()); // killed while it reads
    store.reap(worker(3));
    assert_eq!(store.lease_holders(), [0_u64; 0]);
    assert!(matches!(b.lease(), Err(Error::LeaseLost { .. })));
    let c = store.subscriber(worker(5));
    drop(b); // must not take the cell of its successor along
    assert_eq!(store.lease_holders(), [5]);
    drop(c);
}

#[test]
fn waiting_for_versions_and_steps() {
    let store = words_store(4, 2);
    let reader = store.subscriber(worker(2));
    let poll = Some(Duration::ZERO);
    assert!(matches!(reader.wait_newer(0, poll, &mut || true), Err(Error::Timeout { .. })));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut publisher = store.publisher(worker(1)).unwrap();
            for version in 1..=3 {
                std::thread::sleep(Duration::from_millis(20));
                publisher.publish(&content(4, version), version * 100, version).unwrap();
            }
        });
        assert!(reader.wait_newer(0, None, &mut || true).unwrap() >= 1);
        assert_eq!(reader.wait_env_steps(201, None, &mut || true).unwrap(), 3);
    });
    assert_eq!(reader.wait_newer(2, poll, &mut || true).unwrap(), 3);
    assert!(matches!(reader.wait_newer(3, poll, &mut || true), Err(Error::Timeout { .. })));
    let interrupted = reader.wait_newer(3, None, &mut || false);
    assert!(matches!(interrupted, Err(Error::Interrupted)));
    assert_eq!(store.missed_wakeups(), 0);
}

#[test]
fn readers_and_publisher_at_full_speed() {
    const WORDS: usize = 500;
    let store = words_store(WORDS, 2);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for id in 2..5 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut reader = store.subscriber(worker(id)); // one of the three has no lease cell
                let mut bytes = vec![0; WORDS * 8];
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let Ok(publication) = reader.read(&mut bytes) else { continue };
                    assert!(bytes == content(WORDS, publication.version), "torn version {}", publication.version);
                    assert_eq!(publication.env_steps, publication.version * 3);
                    assert!(publication.version >= last);
                    last = publication.version;
                    if let Ok(lease) = reader.lease() {
                        let mut leased = vec![0; WORDS * 8];
                        load_bytes(lease.words(), &mut leased);
                        assert!(leased == content(WORDS, lease.publication().version));
                    }
                }
            });
        }
        let mut publisher = store.publisher(worker(1)).unwrap();
        for version in 1..=20_000 {
            publisher.publish(&content(WORDS, version), version * 3, 0).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// What may happen to a store, one thing at a time.
#[derive(Debug, Clone)]
enum Step {
    Publish,
    /// The publisher dies with its stamp odd and half of the content written.
    DieWriting,
    /// The publisher dies after its stamp, before `latest`.
    DieStamped,
    Lease(usize),
    Release(usize),
    DieReading(usize),
    Read(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Publish),
        1 => Just(Step::DieWriting),
        1 => Just(Step::DieStamped),
        2 => (0_usize..3).prop_map(Step::Lease),
        1 => (0_usize..3).prop_map(Step::Release),
        1 => (0_usize..3).prop_map(Step::DieReading),
        2 => (0_usize..3).prop_map(Step::Read),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Whatever dies where: the newest complete version is read, leased ones stay, the publisher finds a slot.
    #[test]
    fn kills_against_a_model(steps in prop::collection::vec(step(), 1..60)) {
        const WORDS: usize = 6;
        let store = words_store(WORDS, 3);
        let mut next_id = 10;
        let mut id = || { next_id += 1; worker(next_id) };
        let mut publisher = store.publisher(id()).unwrap();
        let mut readers: Vec<_> = (0..3).map(|_| store.subscriber(id())).collect();
        let mut leased: [Option<(u64, usize)>; 3] = [None; 3];
        let mut version = 0;
        for step in steps {
            match step {
                Step::Publish => {
                    version += 1;
                    prop_assert_eq!(publisher.publish(&content(WORDS, version), version, 0).unwrap(), version);
                }
                Step::DieWriting | Step::DieStamped => {
                    let view = store.view();
                    let latest = view.latest.load(Ordering::Relaxed);
                    let writing = (version + 1) << VERSION_SHIFT | publisher.worker.get() << WORKER_SHIFT | WRITING;
                    let (slot, words) = publisher.claim(&view, latest, writing);
                    let garbage = store.payload.words(store.payload_offset(slot), WORDS / 2).unwrap();
                    garbage.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
                    if matches!(step, Step::DieStamped) {
                        words[0].store(writing & !WRITING, Ordering::Release);
                    }
                    store.reap(publisher.worker);
                    publisher = store.publisher(id()).unwrap();
                }
                Step::Lease(i) => {
                    if version > 0 && leased[i].is_none() {
                        let lease = readers[i].lease().unwrap();
                        prop_assert_eq!(lease.version, version);
                        leased[i] = Some((lease.version, lease.slot));
                        std::mem::forget(lease);
                    }
                }
                Step::Release(i) => {
                    if let Some((version, slot)) = leased[i].take() {
                        drop(Lease { subscriber: &mut readers[i], version, slot });
                    }
                }
                Step::DieReading(i) => {
                    store.reap(readers[i].worker().unwrap());
                    readers[i] = store.subscriber(id());
                    leased[i] = None;
                }
                Step::Read(i) => {
                    let mut bytes = vec![0; WORDS * 8];
                    match readers[i].read(&mut bytes) {
                        Ok(publication) => {
                            prop_assert_eq!(publication.version, version);
                            prop_assert_eq!(bytes, content(WORDS, version));
                        }
                        Err(_) => prop_assert_eq!(version, 0),
                    }
                }
            }
            for (version, slot) in leased.iter().flatten() {
                let mut bytes = vec![0; WORDS * 8];
                load_bytes(store.payload_words(*slot), &mut bytes);
                prop_assert_eq!(bytes, content(WORDS, *version));
            }
        }
    }
}
