//! Models of the parameter store: publishers and their successors, readers that copy, lease or look, lease cells that
//! change owner, kills, reaper. There are as few slots as the protocol allows, so a publisher comes round soon.

use std::mem::{ManuallyDrop, forget};
use std::sync::Arc;

use loom::thread;
use rlz_core::kill;
use rlz_core::parameters::{Lease, ParameterStore, Publication, Publisher};
use rlz_core::schema::{Dtype, Field};

use crate::model::{check, check_kills, id, unnoticed};

/// Two words that say the same: version and publisher.
fn content(version: u64, worker: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.as_chunks_mut::<8>().0.fill((version << 8 | worker).to_le_bytes());
    bytes
}

/// With 3 slots if there is a lease, else 2.
fn store(leases: usize) -> Arc<ParameterStore> {
    ParameterStore::create(&[Field::new("w", Dtype::U64, &[2]).unwrap()], leases, 1).unwrap()
}

fn publish(publisher: &mut Publisher, worker: u64, version: u64) {
    let published = publisher.publish(&content(version, worker), version, worker).unwrap();
    assert_eq!(published, version);
}

/// A publisher whose process has no destructors to run when it is killed.
fn publisher(store: &Arc<ParameterStore>) -> ManuallyDrop<Publisher> {
    let mut publisher = ManuallyDrop::new(store.publisher(id(1)).unwrap());
    publish(&mut publisher, 1, 1);
    publisher
}

/// A store that runs beside these loads, or is not ordered before them, is a failure.
fn check_alone(lease: &Lease<'_>) {
    let Publication { version, env_steps, updates } = lease.publication();
    assert_eq!(env_steps, version, "torn");
    for word in lease.words() {
        assert_eq!(word.load_alone(), version << 8 | updates, "torn");
    }
}

#[derive(Clone, Copy)]
enum Reader {
    Copies,
    Leases,
    Looks,
}

/// Read once, in one way; what it was.
fn read(store: &Arc<ParameterStore>, reader: Reader) -> Publication {
    let mut subscriber = store.subscriber(id(2));
    match reader {
        Reader::Copies => {
            let mut bytes = [0; 16];
            let publication = subscriber.read(&mut bytes).unwrap();
            let Publication { version, env_steps, updates } = publication;
            assert_eq!((bytes, env_steps), (content(version, updates), version), "torn");
            publication
        }
        Reader::Leases => {
            let lease = subscriber.lease().unwrap();
            check_alone(&lease);
            lease.publication()
        }
        Reader::Looks => {
            let publication = store.publication().unwrap();
            assert_eq!(publication.env_steps, publication.version, "torn");
            publication
        }
    }
}

/// A publisher of the versions 2 to `last`, killed at a point, beside a reader; its successor goes on.
fn publish_and_reap(point: u32, last: u64, reader: Reader) -> bool {
    let store = store(matches!(reader, Reader::Leases).into());
    let mut first = publisher(&store);
    let reader = thread::spawn({
        let store = Arc::clone(&store);
        move || read(&store, reader)
    });
    let killed = kill::run(point, || (2..=last).for_each(|version| publish(&mut first, 1, version))).is_err();
    store.reap(id(1));
    let version = store.version();
    assert!((1..=last).contains(&version) && (killed || version == last));
    let mut next = store.publisher(id(3)).unwrap();
    publish(&mut next, 3, version + 1);
    // What the dead one had written and not published was seen by nobody.
    let seen = reader.join().unwrap();
    assert_eq!(seen.updates, if seen.version <= version { 1 } else { 3 }, "version {} of the wrong one", seen.version);
    let newest = read(&store, Reader::Copies);
    assert_eq!((newest.version, newest.updates), (version + 1, 3));
    killed
}

/// A publisher that lets go, or dies after its last version, beside one that tries to follow it.
fn hand_over(reaped: bool) {
    let store = store(0);
    let mut first = publisher(&store);
    let old = thread::spawn(move || {
        publish(&mut first, 1, 2);
        if !reaped {
            drop(ManuallyDrop::into_inner(first));
        }
    });
    let reaper = thread::spawn({
        let store = Arc::clone(&store);
        move || {
            old.join().unwrap();
            if reaped {
                store.reap(id(1));
            }
        }
    });
    if let Ok(mut next) = store.publisher(id(3)) {
        publish(&mut next, 3, 3); // sees what the one before did
    }
    reaper.join().unwrap();
}

/// A lease cell that goes from one subscriber to another, by letting go or by death, while the publisher comes round to
/// what the first one read.
fn cells_change_owner(reaped: bool) {
    let store = store(1);
    let mut publisher = publisher(&store);
    let first = thread::spawn({
        let store = Arc::clone(&store);
        move || {
            let mut subscriber = store.subscriber(id(2));
            let Ok(lease) = subscriber.lease() else { return }; // the other has the cell
            check_alone(&lease);
            if reaped {
                forget(lease);
                forget(subscriber);
            }
        }
    });
    let second = thread::spawn({
        let store = Arc::clone(&store);
        move || {
            if reaped {
                first.join().unwrap();
                store.reap(id(2));
            } else if let Ok(lease) = store.subscriber(id(3)).lease() {
                check_alone(&lease);
            }
        }
    });
    (2..=4).for_each(|version| publish(&mut publisher, 1, version));
    second.join().unwrap();
}

/// A subscriber leases one version and then another, beside a publisher that comes round to the first.
fn lease_twice() {
    let store = store(1);
    let mut publisher = publisher(&store);
    let publisher = thread::spawn(move || (2..=4).for_each(|version| publish(&mut publisher, 1, version)));
    let mut subscriber = store.subscriber(id(2));
    check_alone(&subscriber.lease().unwrap());
    let lease = subscriber.lease().unwrap();
    check_alone(&lease);
    publisher.join().unwrap();
    check_alone(&lease);
}

#[test]
fn a_publisher_killed_at_every_point() {
    for reader in [Reader::Copies, Reader::Leases, Reader::Looks] {
        assert_eq!(check_kills(2, move |point| publish_and_reap(point, 2, reader)), 6);
    }
}

#[test]
fn a_publisher_comes_round_to_a_copying_reader() {
    check(1, || _ = publish_and_reap(u32::MAX, 3, Reader::Copies));
}

#[test]
fn a_publisher_comes_round_to_a_looking_reader() {
    check(1, || _ = publish_and_reap(u32::MAX, 3, Reader::Looks));
}

#[test]
fn a_publisher_comes_round_to_a_leasing_reader() {
    check(1, || _ = publish_and_reap(u32::MAX, 4, Reader::Leases));
}

#[test]
fn a_publisher_comes_round_to_what_was_leased_before() {
    check(2, lease_twice);
}

#[test]
fn the_publishers_place_is_handed_over() {
    check(2, || hand_over(false));
    check(2, || hand_over(true));
}

#[test]
fn lease_cells_change_owner() {
    check(1, || cells_change_owner(false));
}

#[test]
fn lease_cells_of_the_dead_change_owner() {
    check(1, || cells_change_owner(true));
}

#[test]
#[ignore = "ten seconds"]
fn every_ordering_is_needed() {
    let handed_over: &[(usize, fn())] = &[(2, || hand_over(false)), (2, || hand_over(true))];
    let read: &[(usize, fn())] = &[
        (2, lease_twice),
        (2, || cells_change_owner(false)),
        (2, || cells_change_owner(true)),
        (1, || _ = publish_and_reap(u32::MAX, 4, Reader::Leases)),
        (1, || _ = publish_and_reap(u32::MAX, 3, Reader::Looks)),
        (1, || _ = publish_and_reap(u32::MAX, 3, Reader::Copies)),
    ];
    // The fence of the publisher's last `notify` releases before it lets go. A lease that failed its check has read
    // nothing, and the end of the lease before it was seen by the publisher, or it would not have come round. Letting
    // go of the cell is a read-modify-write, which goes on with the release sequence of the lease's end.
    let spare = [
        "let _ = place.compare_exchange(self.worker.get(), 0, Ordering::Release, Ordering::Relaxed);",
        "cell.store(mine, Ordering::Release);",
        "let _ = cell.compare_exchange(now, 0, Ordering::Release, Ordering::Relaxed);",
    ];
    assert_eq!(unnoticed("src/parameters", handed_over, read), spare);
}
