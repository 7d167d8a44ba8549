//! The queue against a model that anybody can check by eye, over random operations, kills included.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rlz_core::queue::{Counter, Options, Queue, ReadSlot, Redelivery, WhenFull, WriteSlot};
use rlz_core::schema::{Dtype, Field};
use rlz_core::{Error, WorkerId};

const WORKERS: u64 = 3;

#[derive(Debug, Clone, Copy)]
enum Op {
    Acquire(u64),
    Commit(u64),
    Abort(u64),
    Pop(u64),
    Release(u64),
    Kill(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let worker = || 1..=WORKERS;
    prop_oneof![
        4 => worker().prop_map(Op::Acquire),
        4 => worker().prop_map(Op::Commit),
        1 => worker().prop_map(Op::Abort),
        4 => worker().prop_map(Op::Pop),
        3 => worker().prop_map(Op::Release),
        1 => worker().prop_map(Op::Kill),
    ]
}

/// What should be there: committed values by ticket with their redeliveries, and what each worker holds.
#[derive(Default)]
struct Model {
    full: BTreeMap<u64, (u64, u64)>,
    writing: BTreeMap<u64, Vec<u64>>,
    reading: BTreeMap<u64, Vec<(u64, u64, u64)>>,
    tickets: u64,
    dropped: u64,
}

impl Model {
    fn used(&self) -> usize {
        let held: usize = self.writing.values().map(Vec::len).sum::<usize>();
        self.full.len() + held + self.reading.values().map(Vec::len).sum::<usize>()
    }
}

fn timed_out<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Timeout { .. }))
}

fn run(options: Options, ops: &[Op]) -> Result<(), TestCaseError> {
    let fields = [Field::new("value", Dtype::U64, &[9]).unwrap()];
    let queue = Queue::create(&fields, options, 1).unwrap();
    let id = |worker| WorkerId::new(worker).unwrap();
    let mut model = Model::default();
    let ends = |worker| (queue.producer(id(worker)).unwrap(), queue.consumer(id(worker)).unwrap());
    let mut ends_of: BTreeMap<u64, _> = (1..=WORKERS).map(|worker| (worker, ends(worker))).collect();
    let mut writing: BTreeMap<u64, Vec<WriteSlot>> = BTreeMap::new();
    let mut reading: BTreeMap<u64, Vec<ReadSlot>> = BTreeMap::new();
    let (zero, mut live) = (Some(Duration::ZERO), || true);
    for (step, op) in ops.iter().enumerate() {
        let value = step as u64 + 1;
        match *op {
            Op::Acquire(worker) => {
                let result = ends_of.get_mut(&worker).unwrap().0.acquire(zero, &mut live);
                let full = model.used() == options.slots;
                if full && options.when_full == WhenFull::DropOldest && !model.full.is_empty() {
                    model.full.pop_first();
                    model.dropped += 1;
                } else if full && options.when_full == WhenFull::DropNew {
                    prop_assert!(matches!(result, Ok(None)));
                    model.dropped += 1;
                    continue;
                } else if full {
                    prop_assert!(timed_out(&result));
                    continue;
                }
                let mut slot = result.unwrap().unwrap();
                for word in slot.bytes_mut().chunks_exact_mut(8) {
                    word.copy_from_slice(&value.to_le_bytes());
                }
                writing.entry(worker).or_default().push(slot);
                model.writing.entry(worker).or_default().push(value);
            }
            Op::Commit(worker) => {
                let Some(slot) = writing.entry(worker).or_default().pop() else { continue };
                let value = model.writing.get_mut(&worker).unwrap().pop().unwrap();
                model.tickets += 1;
                prop_assert_eq!(slot.commit().unwrap(), model.tickets);
                model.full.insert(model.tickets, (value, 0));
            }
            Op::Abort(worker) => {
                writing.entry(worker).or_default().pop();
                model.writing.entry(worker).or_default().pop();
            }
            Op::Pop(worker) => {
                let result = ends_of.get_mut(&worker).unwrap().1.pop(zero, &mut live);
                let Some((ticket, (value, redeliveries))) = model.full.pop_first() else {
                    prop_assert!(timed_out(&result));
                    continue;
                };
                let slot = result.unwrap();
                prop_assert_eq!((slot.ticket(), slot.redeliveries()), (ticket, redeliveries));
                prop_assert!(slot.bytes()[..72].chunks_exact(8).all(|word| word == value.to_le_bytes()));
                reading.entry(worker).or_default().push(slot);
                model.reading.entry(worker).or_default().push((ticket, value, redeliveries));
            }
            Op::Release(worker) => {
                let Some(slot) = reading.entry(worker).or_default().pop() else { continue };
                model.reading.get_mut(&worker).unwrap().pop();
                slot.release().unwrap();
            }
            Op::Kill(worker) => {
                writing.remove(&worker).into_iter().flatten().for_each(std::mem::forget);
                reading.remove(&worker).into_iter().flatten().for_each(std::mem::forget);
                let reclaimed = model.writing.remove(&worker).unwrap_or_default().len();
                let (mut redelivered, mut dropped) = (0, 0);
                for (ticket, value, redeliveries) in model.reading.remove(&worker).unwrap_or_default() {
                    let again = redeliveries + 1 < options.max_deliveries;
                    if again && options.redelivery == Redelivery::AtLeastOnce {
                        model.full.insert(ticket, (value, redeliveries + 1));
                        redelivered += 1;
                    } else {
                        dropped += 1;
                    }
                }
                model.dropped += dropped as u64;
                let reaped = queue.reap(id(worker)).unwrap();
                ends_of.insert(worker, ends(worker)); // a successor
                prop_assert_eq!(
                    (reaped.reclaimed, reaped.redelivered, reaped.dropped),
                    (reclaimed, redelivered, dropped)
                );
            }
        }
        let occupancy = queue.occupancy().unwrap();
        prop_assert_eq!(occupancy.free, options.slots - model.used());
        prop_assert_eq!(occupancy.full, model.full.len());
    }
    let counters =
        [Counter::DroppedNew, Counter::DroppedOldest, Counter::DroppedDeliveries, Counter::DroppedAtMostOnce];
    let dropped: u64 = counters.iter().map(|counter| queue.counter(*counter).unwrap()).sum();
    prop_assert_eq!(dropped, model.dropped);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn behaves_as_the_model(
        slots in 1usize..5,
        when_full in prop::sample::select(vec![WhenFull::Block, WhenFull::DropNew, WhenFull::DropOldest]),
        redelivery in prop::sample::select(vec![Redelivery::AtLeastOnce, Redelivery::AtMostOnce]),
        max_deliveries in 1u64..4,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        run(Options { slots, when_full, redelivery, max_deliveries }, &ops)?;
    }
}
