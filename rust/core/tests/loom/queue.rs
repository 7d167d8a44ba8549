//! Models of the trajectory queue: producers, consumers, kills, reaper. Payloads are cells that the checker watches:
//! any access by two at once is a failure by itself.

use std::sync::Arc;

use crate::model::{check, check_kills, check_thoroughly, fails, id, unnoticed, zeros};
use loom::cell::UnsafeCell;
use loom::thread;
use rlz_core::kill;
use rlz_core::owner::Holder;
use rlz_core::queue::slots::Slots;
use rlz_core::queue::{Counter, Options, Queue as Whole, Redelivery};
use rlz_core::schema::{Dtype, Field};
use rlz_core::sync::AtomicU64;
use rlz_core::{Error, Result};

struct Queue {
    tickets: AtomicU64,
    closed: AtomicU64,
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
            closed: AtomicU64::new(0),
            counters: zeros(Counter::COUNT),
            words: zeros(slots),
            payload: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn slots(&self) -> Slots<'_> {
        Slots::new(&self.tickets, &self.closed, &self.counters, &self.words)
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
        let me = Holder::new(id(worker));
        let Some(slot) = self.slots().claim(me, 0) else { return false };
        self.write(slot, value);
        self.slots().commit(me, slot).unwrap();
        true
    }

    fn put_over_oldest(&self, worker: u64, value: u64) {
        let (slots, me) = (self.slots(), Holder::new(id(worker)));
        if let Some(slot) = slots.claim(me, 0).or_else(|| slots.claim_oldest(me)) {
            self.write(slot, value);
            slots.commit(me, slot).unwrap();
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

/// A producer of two segments beside a consumer, one of them killed at a point; then the reaper, which is killed as
/// well.
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

/// The queue itself, with its waits; what is in the segments does not matter.
fn whole(slots: usize) -> Whole {
    let fields = [Field::new("x", Dtype::U64, &[1]).unwrap()];
    Whole::create(&fields, Options::new(slots), 1).unwrap()
}

/// Commit `count` segments; how many it was. Closed is an end like another.
fn produce(queue: &Whole, worker: u64, count: usize) -> usize {
    let mut producer = queue.producer(id(worker)).unwrap();
    for number in 0..count {
        match producer.acquire(None, &mut || true) {
            Ok(slot) => _ = slot.unwrap().commit().unwrap(),
            Err(Error::Closed { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    count
}

/// Take segments until there can be no more; tickets.
fn consume(queue: &Whole, worker: u64, seen: &mut Vec<u64>) {
    let mut consumer = queue.consumer(id(worker)).unwrap();
    loop {
        match consumer.pop(None, &mut || true) {
            Ok(slot) => {
                seen.push(slot.ticket());
                slot.release().unwrap();
            }
            Err(Error::Closed { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A producer, a consumer and somebody who closes the queue, one of them killed at a point and reaped. What was
/// committed has been consumed when the consumer is told of the end; and it is told.
fn closing(kill: Option<usize>, point: u32) -> bool {
    let queue = whole(1);
    let point = |who| if kill == Some(who) { point } else { u32::MAX };
    let (at_producer, at_consumer, at_closer) = (point(0), point(1), point(2));
    let producer = thread::spawn({
        let queue = queue.clone();
        move || {
            let committed = kill::run(at_producer, || produce(&queue, 1, 1));
            if committed.is_err() {
                queue.reap(id(1)).unwrap();
            }
            committed
        }
    });
    let consumer = thread::spawn({
        let queue = queue.clone();
        move || {
            let mut seen = Vec::new();
            let killed = kill::run(at_consumer, || consume(&queue, 2, &mut seen));
            if killed.is_err() {
                queue.reap(id(2)).unwrap();
                consume(&queue, 2, &mut seen);
            }
            seen.dedup(); // at least once
            (seen.len(), killed)
        }
    });
    let closed = kill::run(at_closer, || queue.close().unwrap());
    if closed.is_err() {
        queue.reap(id(3)).unwrap();
    }
    let committed = producer.join().unwrap();
    let (consumed, killed) = consumer.join().unwrap();
    match committed {
        Ok(committed) => assert_eq!(consumed, committed),
        Err(at) => assert_eq!(consumed == 1, at.ends_with("committed") || at.ends_with("wake"), "{at}"),
    }
    assert_eq!(queue.occupancy().unwrap().free, 1);
    committed.is_err() || killed.is_err() || closed.is_err()
}

/// A consumer dies with the last segment, beside another one and the closing: the other one gets it before it ends.
fn redelivered_at_the_end(point: u32) -> bool {
    let queue = whole(1);
    assert_eq!(produce(&queue, 1, 1), 1);
    let dying = thread::spawn({
        let queue = queue.clone();
        move || {
            let mut seen = Vec::new();
            let killed = kill::run(point, || {
                let mut consumer = queue.consumer(id(2)).unwrap();
                if let Ok(slot) = consumer.pop(Some(std::time::Duration::ZERO), &mut || true) {
                    slot.release().unwrap();
                    seen.push(1);
                }
            });
            if killed.is_err() {
                queue.reap(id(2)).unwrap();
            }
            // Killed right after the release it is consumed.
            (!seen.is_empty() || matches!(killed, Err(at) if at.ends_with("released") || at.ends_with("wake")), killed)
        }
    });
    let other = thread::spawn({
        let queue = queue.clone();
        move || {
            let mut seen = Vec::new();
            consume(&queue, 3, &mut seen);
            seen.len()
        }
    });
    queue.close().unwrap();
    let (consumed, killed) = dying.join().unwrap();
    assert_eq!(usize::from(consumed) + other.join().unwrap(), 1);
    killed.is_err()
}

/// Two consumers, each holding a segment, ask for more: they do not wait for each other.
fn both_hold_one() {
    let queue = whole(2);
    assert_eq!(produce(&queue, 1, 2), 2);
    queue.close().unwrap();
    let ends = [2, 3].map(|worker| {
        let mut consumer = queue.consumer(id(worker)).unwrap();
        let held = consumer.pop(None, &mut || true).unwrap();
        (consumer, held)
    });
    let ends = ends.map(|(mut consumer, held)| {
        thread::spawn(move || {
            let end = consumer.pop(None, &mut || true);
            assert!(matches!(end, Err(Error::Closed { .. })), "{end:?}");
            held.release().unwrap();
        })
    });
    ends.into_iter().for_each(|end| end.join().unwrap());
    let left: Result<_> = queue.consumer(id(4)).unwrap().pop(None, &mut || true);
    assert!(matches!(left, Err(Error::Closed { .. })));
}

#[test]
fn nothing_is_lost_at_the_end() {
    assert!(check_kills(1, |point| closing(Some(0), point)) > 4);
    assert!(check_kills(1, |point| closing(Some(1), point)) > 4);
    assert_eq!(check_kills(1, |point| closing(Some(2), point)), 2);
}

#[test]
fn what_a_dead_consumer_held_comes_before_the_end() {
    assert!(check_kills(1, redelivered_at_the_end) > 3);
}

#[test]
fn two_consumers_do_not_wait_for_each_other() {
    check(2, both_hold_one);
}

#[test]
#[ignore = "minutes"]
fn the_end_under_more_schedules() {
    check_kills(2, |point| closing(Some(0), point));
    check_kills(2, |point| closing(Some(1), point));
    check_kills(2, |point| closing(Some(2), point));
    check_kills(2, redelivered_at_the_end);
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
    // The exchange that seals a slot sees a commit in time by itself; the closing is ordered for what callers do before
    // it. What a popper or dropper reads lies before the ticket, too, whose addition is a Release that `oldest`
    // acquires: the exchange's own Acquire is there for readers of the code. And the proof of a death orders what the
    // dead one did.
    let spare = [
        "self.closed.load(Ordering::Acquire) != 0 // pairs with the Release store in `close`",
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
