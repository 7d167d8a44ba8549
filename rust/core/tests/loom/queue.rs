//! Models of the trajectory queue: producers, consumers, kills, reaper. Payloads are cells that the checker watches: any
//! access by two at once is a failure by itself.

use std::sync::Arc;

use crate::model::{check_kills, check_thoroughly, fails, id, unnoticed, zeros};
use loom::cell::UnsafeCell;
use loom::thread;
use rlz_core::kill;
use rlz_core::queue::slots::Slots;
use rlz_core::queue::{Counter, Redelivery};
use rlz_core::sync::AtomicU64;

struct Queue {
    tickets: AtomicU64,
    counters: Vec<AtomicU64>,
    words: Vec<AtomicU64>,
    payload: Vec<UnsafeCell<u64>>,
}

#[allow(unsafe_code)]
// SAFETY: the protocol under test gives each cell to one thread at a time, and the checker sees to it.
unsafe impl Sync for Queue {}
#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Send for Queue {}

impl Queue {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            tickets: AtomicU64::new(0),
            counters: zeros(Counter::COUNT),
            words: zeros(slots),
            payload: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn slots(&self) -> Slots<'_> {
        Slots::new(&self.tickets, &self.counters, &self.words)
    }

    #[allow(unsafe_code)]
    fn write(&self, slot: usize, value: u64) {
        // SAFETY: checked by the model.
        self.payload[slot].with_mut(|cell| unsafe { *cell = value });
    }

    #[allow(unsafe_code)]
    fn read(&self, slot: usize) -> u64 {
        // SAFETY: checked by the model.
        self.payload[slot].with(|cell| unsafe { *cell })
    }

    /// Write and commit a value in a free slot; false when there is none.
    fn put(&self, worker: u64, value: u64) -> bool {
        let Some(slot) = self.slots().claim(id(worker), 0) else { return false };
        self.write(slot, value);
        self.slots().commit(id(worker), slot).unwrap();
        true
    }

    fn put_over_oldest(&self, worker: u64, value: u64) {
        let slots = self.slots();
        if let Some(slot) = slots.claim(id(worker), 0).or_else(|| slots.claim_oldest(id(worker))) {
            self.write(slot, value);
            slots.commit(id(worker), slot).unwrap();
        }
    }

    fn take(&self, worker: u64) -> Option<u64> {
        let delivery = self.slots().pop(id(worker))?;
        let value = self.read(delivery.slot);
        self.slots().release(delivery).unwrap();
        Some(value)
    }

    fn drain(&self) -> Vec<u64> {
        std::iter::from_fn(|| self.take(9)).collect()
    }

    fn all_free(&self) -> bool {
        self.slots().words().all(|word| word.owner() == 0 && word.ticket() == 0)
    }
}

/// A producer of two segments beside a consumer, one of them killed at a point; then the reaper, which is killed as well.
fn kill_one(kill_producer: bool, point: u32) -> bool {
    let queue = Queue::new(2);
    let consumer_point = if kill_producer { u32::MAX } else { point };
    let producer_point = if kill_producer { point } else { u32::MAX };
    let producer = thread::spawn({
        let queue = Arc::clone(&queue);
        move || kill::run(producer_point, || (1..=2).for_each(|value| assert!(queue.put(1, value))))
    });
    let consumer = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            let mut seen = Vec::new();
            let killed = kill::run(consumer_point, || {
                for _ in 0..2 {
                    seen.extend(queue.take(2));
                }
            });
            (killed, seen)
        }
    });
    let produced = producer.join().unwrap();
    let (consumed, mut seen) = consumer.join().unwrap();
    assert!(seen.is_sorted(), "{seen:?}: out of order");
    for worker in [1, 2] {
        let reap = || queue.slots().reap(id(worker), Redelivery::AtLeastOnce, 3);
        let _ = kill::run(0, reap);
        reap();
    }
    let left = queue.drain();
    assert!(left.is_sorted());
    seen.extend(left);
    seen.sort_unstable();
    match (produced, consumed) {
        (Ok(()), Ok(())) => assert_eq!(seen, [1, 2]),
        // At least once. (A consumer killed right after its release took the value with it: that one was consumed.)
        (Ok(()), Err(at)) => {
            seen.dedup();
            assert!(seen == [1, 2] || at == "queue: released", "{seen:?} after a kill at {at}");
        }
        (Err(_), _) => assert!([&[][..], &[1], &[1, 2]].contains(&&seen[..]), "{seen:?}"),
    }
    assert!(queue.all_free());
    produced.is_err() || consumed.is_err()
}

/// Two consumers never get the same segment, and a producer reuses the slot of one.
fn two_consumers() {
    let queue = Queue::new(1);
    assert!(queue.put(1, 1));
    let consumers = [2, 3].map(|worker| {
        let queue = Arc::clone(&queue);
        thread::spawn(move || queue.take(worker))
    });
    let second = queue.put(1, 2);
    let mut seen: Vec<_> = consumers.into_iter().filter_map(|consumer| consumer.join().unwrap()).collect();
    seen.extend(queue.drain());
    seen.sort_unstable();
    assert_eq!(seen, if second { vec![1, 2] } else { vec![1] });
}

/// Producers that write over the oldest, beside a consumer.
fn drop_oldest() {
    let queue = Queue::new(1);
    queue.put_over_oldest(1, 1);
    let other = thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.put_over_oldest(2, 2)
    });
    let consumer = thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.take(3)
    });
    queue.put_over_oldest(1, 3);
    other.join().unwrap();
    let mut seen: Vec<_> = consumer.join().unwrap().into_iter().collect();
    seen.extend(queue.drain());
    let dropped = queue.slots().counter(Counter::DroppedOldest);
    let committed = queue.slots().tickets();
    assert_eq!(seen.len() as u64 + dropped, committed, "{seen:?}: consumed or counted");
    assert!(queue.all_free());
}

/// A consumer dies while it reads; its slot is reaped beside a producer that takes it.
fn reap_beside_producer() {
    let queue = Queue::new(1);
    assert!(queue.put(1, 1));
    let dying = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            let delivery = queue.slots().pop(id(2)).unwrap();
            assert_eq!(queue.read(delivery.slot), 1);
        }
    });
    let reaper = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            dying.join().unwrap();
            assert_eq!(queue.slots().reap(id(2), Redelivery::AtMostOnce, 3).dropped, 1);
        }
    });
    let second = queue.put(1, 2);
    reaper.join().unwrap();
    assert_eq!(queue.drain(), if second { vec![2] } else { vec![] });
}

#[test]
fn producer_killed_at_every_point() {
    assert_eq!(check_kills(2, |point| kill_one(true, point)), 8);
}

#[test]
fn consumer_killed_at_every_point() {
    assert_eq!(check_kills(2, |point| kill_one(false, point)), 6);
}

#[test]
fn each_segment_has_one_reader() {
    check_thoroughly(2, two_consumers);
}

#[test]
fn a_slot_of_the_dead_is_written_after_they_read_it() {
    check_thoroughly(2, reap_beside_producer);
}

#[test]
fn the_oldest_is_dropped_or_read_never_both() {
    check_thoroughly(1, drop_oldest);
}

#[test]
fn every_ordering_is_needed() {
    let plain = || _ = kill_one(true, u32::MAX);
    let reaped = || _ = kill_one(false, 0);
    let left = unnoticed(
        "queue/slots.rs",
        &[(2, reap_beside_producer)],
        &[(2, plain), (2, two_consumers), (2, drop_oldest), (2, reaped)],
    );
    // What a popper or dropper reads lies before the ticket, too, whose addition is a Release that `oldest` acquires: the
    // exchange's own Acquire is there for readers of the code. And the proof of a death orders what the dead one did.
    let spare = [
        "if self.swap(slot, word, Word::writing(me), Ordering::Acquire) {",
        "if self.swap(slot, word, reading, Ordering::Acquire) {",
        "let word = Word(self.words[slot].load(Ordering::Acquire));",
    ];
    assert_eq!(left, spare);
}

/// Negative control: taking the lowest ticket of a scan without the bound misses a segment filled behind the scan.
#[test]
fn without_the_bound_order_is_lost() {
    fn model() {
        let queue = Queue::new(2);
        let producer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || (1..=2).for_each(|value| assert!(queue.put(1, value)))
        });
        let tickets: Vec<_> = queue.slots().words().map(|word| word.ticket()).collect();
        assert_ne!(tickets, [0, 2], "the second is seen, the first is not");
        producer.join().unwrap();
    }
    assert!(fails(2, model));
}
