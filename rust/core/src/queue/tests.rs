use std::collections::BTreeSet;
use std::time::Instant;

use super::*;
use crate::kill;
use crate::schema::Dtype;

const ZERO: Option<Duration> = Some(Duration::ZERO);

fn id(worker: u64) -> WorkerId {
    WorkerId::new(worker).unwrap()
}

fn live() -> bool {
    true
}

fn queue(options: Options) -> Queue {
    let fields = [
        Field::new("obs", Dtype::F32, &[4, 3]).unwrap(),
        Field::new("image", Dtype::U8, &[4, 2, 2]).unwrap(),
        Field::new("done", Dtype::Bool, &[4]).unwrap(),
    ];
    Queue::create(&fields, options, 9).unwrap()
}

fn segment(queue: &Queue, value: u8) -> Vec<u8> {
    vec![value; queue.schema().stride()]
}

fn put(queue: &Queue, worker: u64, value: u8) -> Result<Option<u64>> {
    queue.producer(id(worker)).put(&segment(queue, value), u64::from(value), ZERO, &mut live)
}

fn pop(queue: &Queue, worker: u64) -> Result<u8> {
    let slot = queue.consumer(id(worker)).pop(ZERO, &mut live)?;
    assert!(slot.bytes().iter().all(|byte| *byte == slot.bytes()[0]));
    assert_eq!(slot.note().unwrap(), u64::from(slot.bytes()[0]));
    Ok(slot.bytes()[0])
}

#[test]
fn in_order_across_two_mappings() {
    let there = queue(Options::new(3));
    let here = Queue::attach(there.as_fd()).unwrap();
    assert_eq!((here.options(), here.schema()), (there.options(), there.schema()));
    for round in 0..5 {
        for value in 0..3 {
            assert_eq!(put(&there, 1, value).unwrap(), Some(u64::from(3 * round + value + 1)));
        }
        assert!(matches!(put(&there, 1, 9), Err(Error::Timeout { .. })));
        for value in 0..3 {
            assert_eq!(pop(&here, 2).unwrap(), value);
        }
        assert!(matches!(pop(&here, 2), Err(Error::Timeout { .. })));
    }
    assert_eq!(there.counter(Counter::Consumed).unwrap(), 15);
    assert_eq!(there.missed_wakeups().unwrap(), 0);
}

#[test]
fn drop_new_and_drop_oldest_are_counted() {
    let new = queue(Options { when_full: WhenFull::DropNew, ..Options::new(2) });
    let oldest = queue(Options { when_full: WhenFull::DropOldest, ..Options::new(2) });
    for value in 0..5 {
        assert_eq!(put(&new, 1, value).unwrap().is_some(), value < 2);
        assert!(put(&oldest, 1, value).unwrap().is_some());
    }
    assert_eq!([pop(&new, 2).unwrap(), pop(&new, 2).unwrap()], [0, 1]);
    assert_eq!([pop(&oldest, 2).unwrap(), pop(&oldest, 2).unwrap()], [3, 4]);
    assert_eq!(new.counter(Counter::DroppedNew).unwrap(), 3);
    assert_eq!(oldest.counter(Counter::DroppedOldest).unwrap(), 3);
}

#[test]
fn drop_oldest_waits_while_everything_is_held() {
    let queue = queue(Options { when_full: WhenFull::DropOldest, ..Options::new(2) });
    put(&queue, 1, 1).unwrap();
    let reading = queue.consumer(id(2)).pop(ZERO, &mut live).unwrap();
    let mut producer = queue.producer(id(1));
    let writing = producer.acquire(ZERO, &mut live).unwrap().unwrap();
    assert!(matches!(producer.acquire(ZERO, &mut live), Err(Error::Timeout { .. })));
    assert_eq!(reading.bytes()[0], 1, "never overwritten while it is read");
    drop(writing);
    assert!(producer.acquire(ZERO, &mut live).unwrap().is_some());
}

#[test]
fn an_uncommitted_slot_is_given_back() {
    let queue = queue(Options::new(1));
    let mut producer = queue.producer(id(1));
    drop(producer.acquire(ZERO, &mut live).unwrap().unwrap());
    assert_eq!(queue.occupancy().unwrap(), Occupancy { free: 1, ..Occupancy::default() });
    assert!(matches!(pop(&queue, 2), Err(Error::Timeout { .. })));
}

#[test]
fn a_copy_is_committed_while_views_live() {
    let queue = queue(Options::new(3));
    let mut producer = queue.producer(id(1));
    let mut viewed = producer.acquire(ZERO, &mut live).unwrap().unwrap();
    viewed.bytes_mut().fill(7);
    viewed.set_note(7).unwrap();
    producer.commit_copy(&viewed, ZERO, &mut live).unwrap().unwrap();
    viewed.bytes_mut().fill(8); // a late write through a view changes nothing that was committed
    assert_eq!(pop(&queue, 2).unwrap(), 7);
    assert_eq!(queue.counter(Counter::Copied).unwrap(), 1);
    assert_eq!(queue.occupancy().unwrap().writing, 1);
    drop(viewed);
    assert_eq!(queue.occupancy().unwrap().free, 3);
}

#[test]
fn a_batch_is_gathered_and_short_at_the_end() {
    let queue = queue(Options::new(4));
    for value in 0..3 {
        put(&queue, 1, value).unwrap();
    }
    let stride = queue.schema().stride();
    let mut batch = vec![255; 4 * stride];
    let mut consumer = queue.consumer(id(2));
    assert_eq!(consumer.pop_batch(&mut batch, ZERO, &mut live).unwrap(), 3);
    for (value, bytes) in batch.chunks(stride).enumerate() {
        let value = if value < 3 { u8::try_from(value).unwrap() } else { 255 };
        assert!(bytes.iter().all(|byte| *byte == value));
    }
    assert!(matches!(consumer.pop_batch(&mut batch, ZERO, &mut live), Err(Error::Timeout { .. })));
    assert!(consumer.pop_batch(&mut batch[1..], ZERO, &mut live).is_err());
    assert_eq!(queue.occupancy().unwrap().free, 4);
}

#[test]
fn closing_lets_consumers_drain() {
    let queue = queue(Options::new(2));
    put(&queue, 1, 3).unwrap();
    queue.close().unwrap();
    assert!(matches!(put(&queue, 1, 4), Err(Error::Closed { .. })));
    assert_eq!(pop(&queue, 2).unwrap(), 3);
    assert!(matches!(pop(&queue, 2), Err(Error::Closed { .. })));
}

#[test]
fn ages_count_from_the_commit() {
    let queue = queue(Options::new(2));
    assert_eq!(queue.oldest_age().unwrap(), None);
    put(&queue, 1, 0).unwrap();
    let committed = Instant::now();
    std::thread::sleep(Duration::from_millis(20));
    let oldest = queue.oldest_age().unwrap().unwrap();
    let age = queue.consumer(id(2)).pop(ZERO, &mut live).unwrap().age().unwrap();
    assert!(age >= oldest && oldest >= Duration::from_millis(20), "{oldest:?} {age:?}");
    assert!(age < committed.elapsed() + Duration::from_millis(50));
}

#[test]
fn a_waiting_end_is_woken() {
    let queue = queue(Options::new(1));
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let mut consumer = queue.consumer(id(2));
            let mut sum = 0;
            while let Ok(slot) = consumer.pop(None, &mut live) {
                sum += u64::from(slot.bytes()[0]);
            }
            sum
        });
        let mut producer = queue.producer(id(1));
        for value in 0..200 {
            producer.put(&segment(&queue, value), 0, None, &mut live).unwrap();
        }
        queue.close().unwrap();
        assert_eq!(consumer.join().unwrap(), 199 * 100);
    });
    assert_eq!(queue.missed_wakeups().unwrap(), 0);
}

#[test]
fn a_segment_that_kills_its_consumers_is_dropped() {
    for (redelivery, max_deliveries, deliveries) in
        [(Redelivery::AtLeastOnce, 3, 3), (Redelivery::AtLeastOnce, 1, 1), (Redelivery::AtMostOnce, 3, 1)]
    {
        let queue = queue(Options { redelivery, max_deliveries, ..Options::new(2) });
        put(&queue, 1, 6).unwrap();
        put(&queue, 1, 7).unwrap();
        for delivery in 0..deliveries {
            let slot = queue.consumer(id(2)).pop(ZERO, &mut live).unwrap();
            assert_eq!((slot.bytes()[0], slot.redeliveries(), slot.ticket()), (6, delivery, 1));
            std::mem::forget(slot); // killed
            let reaped = queue.reap(id(2)).unwrap();
            let again = usize::from(delivery + 1 < deliveries);
            assert_eq!(reaped, Reaped { reclaimed: 0, redelivered: again, dropped: 1 - again });
        }
        assert_eq!(pop(&queue, 3).unwrap(), 7);
        assert_eq!(queue.occupancy().unwrap().free, 2);
        let dropped = [Counter::DroppedDeliveries, Counter::DroppedAtMostOnce].map(|c| queue.counter(c).unwrap());
        assert_eq!(dropped.iter().sum::<u64>(), 1);
        assert_eq!(queue.counter(Counter::Redelivered).unwrap(), deliveries - 1);
    }
}

#[test]
fn killed_at_every_point_and_reaped() {
    // A producer and then a consumer are killed at each of their points, the reaper once as well; a second one repeats.
    let mut seen = BTreeSet::new();
    for point in 0.. {
        let queue = queue(Options { when_full: WhenFull::DropOldest, ..Options::new(2) });
        put(&queue, 3, 1).unwrap();
        put(&queue, 3, 2).unwrap();
        let producer = kill::run(point, || forget_on_kill(put(&queue, 1, 3)));
        let committed = match producer {
            Ok(_) => true,
            Err(name) => {
                seen.insert(name);
                name.ends_with("committed") || name == "event: before the wake"
            }
        };
        let consumer = kill::run(point, || {
            let view = queue.view().unwrap();
            let delivery = view.slots.pop(id(2)).unwrap();
            view.slots.release(delivery).unwrap();
        });
        let released = match consumer {
            Ok(()) => true,
            Err(name) => {
                seen.insert(name);
                name.ends_with("released")
            }
        };
        for worker in [1, 2] {
            if let Err(name) = kill::run(0, || queue.reap(id(worker)).unwrap()) {
                seen.insert(name);
            }
            queue.reap(id(worker)).unwrap();
        }
        let mut left = Vec::new();
        while let Ok(value) = pop(&queue, 4) {
            left.push(value);
        }
        let mut expected = vec![2];
        if released {
            expected.clear();
        }
        if committed {
            expected.push(3);
        }
        assert_eq!(left, expected, "point {point}: {producer:?} {consumer:?}");
        assert_eq!(queue.occupancy().unwrap().free, 2, "point {point}");
        if producer.is_ok() && consumer.is_ok() {
            break;
        }
    }
    assert_eq!(seen.len(), 9, "{seen:?}");
}

fn forget_on_kill<T>(result: Result<T>) -> bool {
    result.is_ok()
}

#[test]
fn a_fenced_worker_is_told() {
    let queue = queue(Options::new(2));
    let mut slot = queue.producer(id(1)).acquire(ZERO, &mut live).unwrap().unwrap();
    slot.bytes_mut().fill(1);
    queue.reap(id(1)).unwrap();
    assert!(matches!(slot.commit(), Err(Error::LeaseLost { worker: 1, owner: 0, .. })));
    put(&queue, 1, 2).unwrap();
    let slot = queue.consumer(id(2)).pop(ZERO, &mut live).unwrap();
    queue.reap(id(2)).unwrap();
    assert!(matches!(slot.release(), Err(Error::LeaseLost { worker: 2, owner: 0, .. })));
    assert_eq!(pop(&queue, 3).unwrap(), 2);
}

#[test]
fn unusable_options_are_refused() {
    let fields = [Field::new("x", Dtype::U8, &[1]).unwrap()];
    for options in [
        Options::new(0),
        Options::new(MAX_SLOTS + 1),
        Options { max_deliveries: 0, ..Options::new(1) },
        Options { max_deliveries: 16, ..Options::new(1) },
    ] {
        assert!(matches!(Queue::create(&fields, options, 1), Err(Error::Invalid { .. })), "{options:?}");
    }
}
