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
    queue.producer(id(worker)).unwrap().put(&segment(queue, value), u64::from(value), ZERO, &mut live)
}

fn pop(queue: &Queue, worker: u64) -> Result<u8> {
    let slot = queue.consumer(id(worker)).unwrap().pop(ZERO, &mut live)?;
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
    let reading = queue.consumer(id(2)).unwrap().pop(ZERO, &mut live).unwrap();
    let mut producer = queue.producer(id(1)).unwrap();
    let writing = producer.acquire(ZERO, &mut live).unwrap().unwrap();
    assert!(matches!(producer.acquire(ZERO, &mut live), Err(Error::Timeout { .. })));
    assert_eq!(reading.bytes()[0], 1, "never overwritten while it is read");
    drop(writing);
    assert!(producer.acquire(ZERO, &mut live).unwrap().is_some());
}

#[test]
fn an_uncommitted_slot_is_given_back() {
    let queue = queue(Options::new(1));
    let mut producer = queue.producer(id(1)).unwrap();
    drop(producer.acquire(ZERO, &mut live).unwrap().unwrap());
    assert_eq!(queue.occupancy().unwrap(), Occupancy { free: 1, ..Occupancy::default() });
    assert!(matches!(pop(&queue, 2), Err(Error::Timeout { .. })));
}

#[allow(unsafe_code)]
fn seen_at(at: *const u8, queue: &Queue) -> Vec<u8> {
    // SAFETY: a segment that a view shows.
    unsafe { std::slice::from_raw_parts(at, queue.schema().stride()) }.to_vec()
}

#[allow(unsafe_code)]
fn write_at(at: *mut u8, value: u8, queue: &Queue) {
    // SAFETY: as above, of a writer.
    unsafe { std::ptr::write_bytes(at, value, queue.schema().stride()) };
}

#[test]
fn views_outlive_their_slots_and_take_none() {
    for slots in [1, 2] {
        let queue = queue(Options::new(slots));
        let mut producer = queue.producer(id(1)).unwrap();
        let mut consumer = queue.consumer(id(2)).unwrap();
        let (mut written, mut read) = (Vec::new(), Vec::new());
        for value in 0..20 {
            let mut slot = producer.acquire(ZERO, &mut live).unwrap().expect("never waits for a view");
            slot.set_note(u64::from(value)).unwrap();
            let (at, memory) = slot.view().unwrap();
            write_at(at, value, &queue);
            slot.commit().unwrap();
            write_at(at, 0xff, &queue); // late: nobody else sees it
            let mut slot = consumer.pop(ZERO, &mut live).unwrap();
            assert_eq!((slot.bytes()[0], slot.note().unwrap()), (value, u64::from(value)));
            let (shown, kept) = slot.view().unwrap();
            slot.release().unwrap();
            read.push((shown, kept));
            written.push((at, memory));
        }
        for (value, ((at, _), (shown, _))) in (0..).zip(written.iter().zip(&read)) {
            assert_eq!(seen_at(*at, &queue), segment(&queue, 0xff));
            assert_eq!(seen_at(*shown, &queue), segment(&queue, value));
        }
        assert_eq!(queue.counter(Counter::Copied).unwrap(), 40);
        assert_eq!(queue.occupancy().unwrap().free, slots);
        drop(queue); // the memory of views is their own
        drop((producer, consumer));
        let like = super::tests::queue(Options::new(1));
        assert_eq!(seen_at(read[3].0, &like), segment(&like, 3));
    }
}

#[test]
fn views_that_go_in_time_cost_no_copy() {
    let queue = queue(Options::new(2));
    let mut producer = queue.producer(id(1)).unwrap();
    let mut addresses = BTreeSet::new();
    for value in 0..10 {
        let mut slot = producer.acquire(ZERO, &mut live).unwrap().unwrap();
        let (at, memory) = slot.view().unwrap();
        assert_eq!(slot.view().unwrap().0, at);
        write_at(at, value, &queue);
        slot.set_note(u64::from(value)).unwrap();
        addresses.insert(at as usize);
        drop(memory);
        slot.commit().unwrap();
        assert_eq!(pop(&queue, 2).unwrap(), value);
    }
    assert_eq!((queue.counter(Counter::Copied).unwrap(), addresses.len()), (0, 1), "one mapping, kept");
    let mut slot = producer.acquire(ZERO, &mut live).unwrap().unwrap();
    let (at, memory) = slot.view().unwrap();
    drop(slot); // given back, and the view with memory of its own
    write_at(at, 77, &queue);
    drop(memory);
    assert_eq!(queue.occupancy().unwrap().free, 2);
}

#[test]
fn one_id_has_one_end_of_each_kind() {
    let queue = queue(Options::new(4));
    let other = Queue::attach(queue.as_fd()).unwrap();
    let mut producer = queue.producer(id(5)).unwrap();
    for refused in [queue.producer(id(5)).map(drop), other.producer(id(5)).map(drop)] {
        assert!(matches!(refused, Err(Error::Owned { worker: 5, owner: 5, .. })), "{refused:?}");
    }
    let consumer = queue.consumer(id(5)).unwrap();
    assert!(matches!(other.consumer(id(5)), Err(Error::Owned { .. })));
    let mut held = producer.acquire(ZERO, &mut live).unwrap().unwrap();
    drop(producer);
    assert!(queue.producer(id(5)).is_err(), "what it acquired is still its own");
    held.bytes_mut().fill(1);
    // "Its process died": what it holds becomes free, and its id another's. It cannot commit what that one writes.
    queue.reap(id(5)).unwrap();
    let mut successor = other.producer(id(5)).unwrap();
    let slot = successor.acquire(ZERO, &mut live).unwrap().unwrap();
    assert!(matches!(held.commit(), Err(Error::LeaseLost { .. })));
    slot.commit().unwrap();
    drop(consumer);
    assert!(other.producer(id(5)).is_err(), "the seat of the living is not given away by one that was reaped");
    drop(successor);
    other.producer(id(5)).unwrap();
}

#[test]
fn a_reaped_end_is_told() {
    let queue = queue(Options::new(2));
    let (mut producer, mut consumer) = (queue.producer(id(1)).unwrap(), queue.consumer(id(2)).unwrap());
    queue.reap(id(1)).unwrap();
    queue.reap(id(2)).unwrap();
    assert!(matches!(producer.acquire(None, &mut live), Err(Error::LeaseLost { worker: 1, .. })));
    assert!(matches!(consumer.pop(None, &mut live), Err(Error::LeaseLost { worker: 2, .. })));
}

#[test]
fn an_interrupted_batch_keeps_what_it_took() {
    let queue = queue(Options::new(2));
    put(&queue, 1, 1).unwrap();
    put(&queue, 1, 2).unwrap();
    let stride = queue.schema().stride();
    let mut consumer = queue.consumer(id(2)).unwrap();
    let mut batch = vec![0; 4 * stride];
    let stop = consumer.pop_batch(&mut batch, None, &mut || false);
    assert!(matches!(stop, Err(Error::Interrupted)));
    assert!(batch.iter().all(|byte| *byte == 0));
    assert_eq!(queue.occupancy().unwrap().free, 2, "nothing is held meanwhile");
    put(&queue, 1, 3).unwrap();
    let first = consumer.pop(ZERO, &mut live).unwrap();
    assert_eq!((first.bytes()[0], first.note().unwrap(), first.ticket()), (1, 1, 1));
    assert!(first.age().unwrap() < Duration::from_secs(60));
    first.release().unwrap();
    assert_eq!(consumer.pop_batch(&mut batch, ZERO, &mut live).unwrap(), 2);
    assert_eq!([batch[0], batch[stride], batch[2 * stride]], [2, 3, 0]);
}

#[test]
fn what_is_there_already_comes_with_the_next_batch() {
    let queue = queue(Options::new(4));
    let mut consumer = queue.consumer(id(2)).unwrap();
    assert!(!consumer.has_ready(1).unwrap());
    for value in 1..=3 {
        put(&queue, 1, value).unwrap();
    }
    assert!(consumer.has_ready(2).unwrap() && consumer.has_ready(3).unwrap());
    assert!(!consumer.has_ready(4).unwrap());
    let mut seen = Vec::new();
    let visit = |_, slot: &ReadSlot| seen.push(slot.bytes()[0]);
    assert_eq!(consumer.pop_each(2, ZERO, &mut || panic!("it waits"), visit).unwrap(), 2);
    assert_eq!((seen, pop(&queue, 3).is_err()), (vec![1, 2], true));
    assert_eq!(consumer.pop(ZERO, &mut live).unwrap().bytes()[0], 3);
    queue.close().unwrap();
    assert!(!consumer.has_ready(1).unwrap());
    assert_eq!(queue.occupancy().unwrap().free, 4);
}

#[test]
fn a_batch_larger_than_the_queue() {
    let queue = queue(Options::new(2));
    let stride = queue.schema().stride();
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let mut producer = queue.producer(id(1)).unwrap();
            for value in 0..40 {
                producer.put(&segment(&queue, value), 0, None, &mut live).unwrap();
            }
        });
        let mut consumer = queue.consumer(id(2)).unwrap();
        let mut batch = vec![0; 8 * stride];
        for round in 0..5_u8 {
            assert_eq!(consumer.pop_batch(&mut batch, None, &mut live).unwrap(), 8);
            for (number, bytes) in (0..).zip(batch.chunks(stride)) {
                assert!(bytes.iter().all(|byte| *byte == 8 * round + number));
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_batch_is_gathered_and_short_at_the_end() {
    let queue = queue(Options::new(4));
    for value in 0..3 {
        put(&queue, 1, value).unwrap();
    }
    let stride = queue.schema().stride();
    let mut batch = vec![255; 4 * stride];
    let mut consumer = queue.consumer(id(2)).unwrap();
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
    let mut producer = queue.producer(id(1)).unwrap();
    let mut writing = producer.acquire(ZERO, &mut live).unwrap().unwrap();
    queue.close().unwrap();
    assert!(matches!(producer.acquire(None, &mut live), Err(Error::Closed { .. })));
    assert_eq!(pop(&queue, 2).unwrap(), 3);
    assert!(matches!(pop(&queue, 2), Err(Error::Timeout { .. })), "a segment may still come");
    writing.bytes_mut().fill(4);
    writing.set_note(4).unwrap();
    writing.commit().unwrap();
    assert_eq!(pop(&queue, 2).unwrap(), 4);
    assert!(matches!(pop(&queue, 2), Err(Error::Closed { .. })));
    assert_eq!(queue.occupancy().unwrap(), Occupancy { free: 2, ..Occupancy::default() });
}

#[test]
fn what_may_be_delivered_again_is_waited_for() {
    for (redelivery, max_deliveries, again) in
        [(Redelivery::AtLeastOnce, 3, true), (Redelivery::AtLeastOnce, 1, false), (Redelivery::AtMostOnce, 3, false)]
    {
        let queue = queue(Options { redelivery, max_deliveries, ..Options::new(3) });
        put(&queue, 1, 6).unwrap();
        let mut dying = queue.consumer(id(2)).unwrap();
        std::mem::forget(dying.pop(ZERO, &mut live).unwrap());
        queue.close().unwrap();
        assert_eq!(matches!(pop(&queue, 3), Err(Error::Closed { .. })), !again, "{redelivery:?} {max_deliveries}");
        queue.reap(id(2)).unwrap();
        assert_eq!(pop(&queue, 3).is_ok(), again);
        assert!(matches!(pop(&queue, 3), Err(Error::Closed { .. })));
    }
}

#[test]
fn the_end_wakes_whoever_waits_for_it() {
    type Last = fn(&Queue, WriteSlot, ReadSlot);
    let ways: [Last; 3] = [
        |_, writing, reading| drop((writing, reading)),
        |_, writing, reading| {
            reading.release().unwrap();
            drop(writing);
        },
        |queue, writing, reading| {
            std::mem::forget((writing, reading));
            queue.reap(id(1)).unwrap();
            queue.reap(id(2)).unwrap();
        },
    ];
    for last in ways {
        let queue = queue(Options { max_deliveries: 2, ..Options::new(2) });
        put(&queue, 3, 1).unwrap();
        let reading = queue.consumer(id(2)).unwrap().pop(ZERO, &mut live).unwrap();
        let writing = queue.producer(id(1)).unwrap().acquire(ZERO, &mut live).unwrap().unwrap();
        queue.close().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut consumer = queue.consumer(id(4)).unwrap();
                while consumer.pop(None, &mut live).is_ok() {}
            });
            std::thread::sleep(Duration::from_millis(20));
            last(&queue, writing, reading);
            waiting.join().unwrap();
        });
        assert_eq!(queue.missed_wakeups().unwrap(), 0);
    }
}

#[test]
fn a_watch_sees_what_a_pop_would_get() {
    let queue = queue(Options::new(2));
    let mut consumer = queue.consumer(id(2)).unwrap();
    let watch = consumer.watch();
    assert!(!watch.ready(ZERO, &mut live).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| watch.ready(None, &mut live).unwrap());
        put(&queue, 1, 1).unwrap();
        assert!(waiting.join().unwrap());
    });
    drop(consumer.pop(ZERO, &mut live).unwrap());
    assert!(!watch.ready(ZERO, &mut live).unwrap());
    queue.close().unwrap();
    assert!(watch.ready(ZERO, &mut live).unwrap(), "a pop would say that it is the end");
}

#[test]
fn ages_count_from_the_commit() {
    let queue = queue(Options::new(2));
    assert_eq!(queue.oldest_age().unwrap(), None);
    put(&queue, 1, 0).unwrap();
    let committed = Instant::now();
    std::thread::sleep(Duration::from_millis(20));
    let oldest = queue.oldest_age().unwrap().unwrap();
    let age = queue.consumer(id(2)).unwrap().pop(ZERO, &mut live).unwrap().age().unwrap();
    assert!(age >= oldest && oldest >= Duration::from_millis(20), "{oldest:?} {age:?}");
    assert!(age < committed.elapsed() + Duration::from_millis(50));
}

#[test]
fn a_waiting_end_is_woken() {
    let queue = queue(Options::new(1));
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let mut consumer = queue.consumer(id(2)).unwrap();
            let mut sum = 0;
            while let Ok(slot) = consumer.pop(None, &mut live) {
                sum += u64::from(slot.bytes()[0]);
            }
            sum
        });
        let mut producer = queue.producer(id(1)).unwrap();
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
            let slot = queue.consumer(id(2)).unwrap().pop(ZERO, &mut live).unwrap();
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
    let mut slot = queue.producer(id(1)).unwrap().acquire(ZERO, &mut live).unwrap().unwrap();
    slot.bytes_mut().fill(1);
    queue.reap(id(1)).unwrap();
    assert!(matches!(slot.commit(), Err(Error::LeaseLost { worker: 1, owner: 0, .. })));
    put(&queue, 1, 2).unwrap();
    let slot = queue.consumer(id(2)).unwrap().pop(ZERO, &mut live).unwrap();
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
