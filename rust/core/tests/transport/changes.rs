//! Who writes and who reads may change while the streams live on; a slow one keeps what is its own only.

use std::time::Duration;

use rlz_core::parameters::ParameterStore;
use rlz_core::queue::{Occupancy, Options, Queue};
use rlz_core::replay::{Batch, Replay};

use crate::common::{id, pattern, words_field};

const POLL: Option<Duration> = Some(Duration::ZERO);
const WORDS: usize = 8;

fn bytes(number: u64) -> Vec<u8> {
    (0..WORDS).flat_map(|i| pattern(0, number, i).to_le_bytes()).collect()
}

/// One writer with four lanes dies; two take three of them over, and nobody the last: its rows age out.
#[test]
fn lanes_change_owner_and_old_rows_age_out() {
    const SIZE: usize = 40;
    let replay = Replay::create(&words_field(WORDS), SIZE, 4, 1).unwrap();
    let mut sampler = replay.sampler([1, 2, 3, 4]);
    let mut drawn = || {
        let (mut rows, mut ids) = (vec![0; 1000 * WORDS], vec![0; 3000]);
        sampler.sample(Batch { rows: &mut rows, meta: None, ids: Some(&mut ids) }, 1).unwrap();
        let mut lanes: Vec<_> = ids.chunks_exact(3).map(|id| id[0]).collect();
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    };
    let mut first = replay.writer(&[0, 1, 2, 3], id(1)).unwrap();
    for _ in 0..5 {
        (0..4).for_each(|lane| _ = first.append_packed(lane, &[0; WORDS], 1, 0).unwrap());
    }
    std::mem::forget(first); // killed
    assert_eq!(replay.reap(id(1)).unwrap(), 4);
    let mut second = replay.writer(&[0, 1], id(2)).unwrap();
    let mut third = replay.writer(&[2], id(3)).unwrap();
    assert_eq!(replay.owners().unwrap(), [2, 2, 3, 0]);
    assert_eq!(drawn(), [0, 1, 2, 3], "what the dead one wrote is drawn");
    for round in 0..SIZE as u64 {
        assert_eq!(second.append_packed(0, &[0; WORDS], 1, 0).unwrap(), 6 + round, "goes on where the dead one ended");
        second.append_packed(1, &[0; WORDS], 1, 0).unwrap();
        third.append_packed(2, &[0; WORDS], 1, 0).unwrap();
        drawn(); // a sampler that looks sees lanes age
    }
    assert_eq!(drawn(), [0, 1, 2], "rows of a lane that stopped age out");
}

#[test]
fn ends_of_a_queue_come_and_go() {
    let queue = Queue::create(&words_field(WORDS), Options::new(8), 1).unwrap();
    let mut next = 0;
    for worker in (1..40).step_by(2) {
        let mut producers = [queue.producer(id(worker)).unwrap(), queue.producer(id(worker + 1)).unwrap()];
        for producer in &mut producers[..1 + worker as usize / 2 % 2] {
            producer.put(&bytes(next), next, POLL, &mut || true).unwrap().unwrap();
            next += 1;
        }
        let mut read = next - queue.occupancy().unwrap().full as u64;
        let mut consumers = [queue.consumer(id(worker)).unwrap(), queue.consumer(id(100 + worker)).unwrap()];
        for consumer in &mut consumers[..1 + worker as usize / 2 % 2] {
            let slot = consumer.pop(POLL, &mut || true).unwrap();
            assert_eq!((slot.note().unwrap(), slot.bytes()), (read, &bytes(read)[..]));
            read += 1;
        }
        assert_eq!(read, next, "nothing stays behind");
    }
    assert_eq!(queue.occupancy().unwrap().free, 8);
}

#[test]
fn a_slow_consumer_keeps_its_own_slot_only() {
    let queue = Queue::create(&words_field(WORDS), Options::new(3), 1).unwrap();
    let mut producer = queue.producer(id(1)).unwrap();
    let mut put = |number| producer.put(&bytes(number), number, POLL, &mut || true).unwrap().unwrap();
    put(0);
    let mut slow = queue.consumer(id(2)).unwrap();
    let held = slow.pop(POLL, &mut || true).unwrap();
    let mut quick = queue.consumer(id(3)).unwrap();
    for number in 1..1000 {
        put(number);
        assert_eq!(quick.pop(POLL, &mut || true).unwrap().note().unwrap(), number);
    }
    assert_eq!(held.bytes(), bytes(0));
    assert_eq!(queue.occupancy().unwrap(), Occupancy { free: 2, writing: 0, full: 0, reading: 1 });
}

#[test]
fn ends_of_a_parameter_store_come_and_go() {
    let store = ParameterStore::create(&words_field(WORDS), 2, 1).unwrap();
    let mut into = [0; 8 * WORDS];
    for version in 1..100 {
        let mut publisher = store.publisher(id(1 + version % 3)).unwrap();
        assert_eq!(publisher.publish(&bytes(version), version, version).unwrap(), version);
        // More readers than leases, from time to time.
        for reader in 0..version % 5 {
            let mut reader = store.subscriber(id(10 + reader));
            assert_eq!(reader.read(&mut into).unwrap().version, version);
            assert_eq!(into[..], bytes(version));
        }
    }
    assert!(store.lease_holders().is_empty());
}
