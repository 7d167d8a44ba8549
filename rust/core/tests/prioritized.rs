//! The prioritised sampler against a plain list of rows and priorities.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rlz_core::replay::{LaneWeights, Priorities, PrioritizedBatch, PrioritizedSampler, Replay, Writer};
use rlz_core::schema::{Dtype, Field};
use rlz_core::{Error, WorkerId};

const LANES: usize = 3;
const WORDS: usize = 8;
const SEED: [u64; 4] = [1, 2, 3, 4];

fn replay(size: usize, lanes: usize) -> (Replay, Writer) {
    let replay = Replay::create(&[Field::new("x", Dtype::U64, &[WORDS]).unwrap()], size, lanes, 1).unwrap();
    let lanes: Vec<_> = (0..lanes).collect();
    let writer = replay.writer(&lanes, WorkerId::new(1).unwrap()).unwrap();
    (replay, writer)
}

struct Drawn {
    rows: Vec<u64>,
    meta: Vec<u64>,
    ids: Vec<u64>,
    weights: Vec<f32>,
}

fn sample(sampler: &mut PrioritizedSampler, size: usize, threads: usize) -> Result<Drawn, Error> {
    let mut drawn =
        Drawn { rows: vec![0; size * WORDS], meta: vec![0; size], ids: vec![0; size * 3], weights: vec![0.0; size] };
    let batch = PrioritizedBatch {
        rows: &mut drawn.rows,
        meta: Some(&mut drawn.meta),
        ids: &mut drawn.ids,
        weights: &mut drawn.weights,
    };
    sampler.sample(batch, threads).map(|()| drawn)
}

fn value(lane: usize, ticket: u64) -> u64 {
    (lane as u64) << 32 | ticket
}

#[derive(Debug, Clone)]
enum Op {
    Append(usize),
    Sample(usize),
    /// New errors for the rows drawn last.
    Update(Vec<f32>),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..LANES).prop_map(Op::Append),
        2 => (1usize..9).prop_map(Op::Sample),
        2 => prop::collection::vec(-3.0f32..3.0, 8).prop_map(Op::Update),
    ]
}

/// Rows in order with their priority to the power of alpha.
#[derive(Default)]
struct Model {
    rows: Vec<(usize, u64)>,
    counts: [u64; LANES],
    weights: BTreeMap<(usize, u64), f64>,
}

impl Model {
    /// The newest rows, and of each lane no more than its share.
    fn window(&self, size: usize) -> BTreeMap<(usize, u64), f64> {
        let share = size.div_ceil(LANES) as u64;
        let newest = self.rows.iter().rev().take(size);
        let newest = newest.filter(|(lane, ticket)| ticket + share > self.counts[*lane]);
        newest.map(|id| (*id, self.weights[id])).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn agrees_with_a_plain_list(
        size in 3usize..40, alpha in 0.0..=1.0f64, beta in 0.0..=1.0f64, ops in prop::collection::vec(op(), 1..200),
    ) {
        let (replay, mut writer) = replay(size, LANES);
        let options = Priorities { alpha, beta, eps: 1e-3 };
        let mut sampler = replay.prioritized_sampler(SEED, options).unwrap();
        let mut model = Model::default();
        let (mut largest, mut stale, mut last) = (1.0f64, 0, Vec::new());
        for op in ops {
            match op {
                Op::Append(lane) => {
                    model.counts[lane] += 1;
                    let ticket = model.counts[lane];
                    writer.append_packed(lane, &[value(lane, ticket); WORDS], 0, 0).unwrap();
                    model.rows.push((lane, ticket));
                    model.weights.insert((lane, ticket), largest.powf(alpha));
                }
                Op::Sample(count) => {
                    let window = model.window(size);
                    let result = sample(&mut sampler, count, 1);
                    if window.is_empty() {
                        prop_assert!(result.is_err());
                        continue;
                    }
                    let drawn = result.unwrap();
                    let ids: Vec<_> = drawn.ids.chunks_exact(3).map(|id| (id[0] as usize, id[2])).collect();
                    let smallest = ids.iter().map(|id| window[id]).fold(f64::INFINITY, f64::min);
                    for (i, id) in ids.iter().enumerate() {
                        prop_assert_eq!(&drawn.rows[i * WORDS..(i + 1) * WORDS], &[value(id.0, id.1); WORDS]);
                        let total: f64 = window.values().sum();
                        let raw = |p: f64| (window.len() as f64 * p / total).powf(-beta);
                        let weight = raw(window[id]) / raw(smallest);
                        prop_assert!((f64::from(drawn.weights[i]) - weight).abs() < 1e-5);
                    }
                    last = drawn.ids;
                }
                Op::Update(errors) => {
                    let count = last.len() / 3;
                    let window = model.window(size);
                    let mut expected = 0;
                    for (id, error) in last.chunks_exact(3).zip(&errors) {
                        let key = (id[0] as usize, id[2]);
                        if !window.contains_key(&key) {
                            expected += 1;
                            continue;
                        }
                        let priority = f64::from(error.abs()) + options.eps;
                        largest = largest.max(priority);
                        model.weights.insert(key, priority.powf(alpha));
                    }
                    prop_assert_eq!(sampler.update_priorities(&last, &errors[..count]).unwrap(), expected);
                    stale += expected as u64;
                }
            }
            let mut window = model.window(size);
            prop_assert_eq!(sampler.available().unwrap(), window.len() as u64);
            for lane in 0..LANES {
                let LaneWeights { first, weights, .. } = sampler.weights(lane).unwrap();
                for (ticket, weight) in (first..).zip(weights) {
                    prop_assert_eq!(window.remove(&(lane, ticket)), Some(weight), "lane {} ticket {}", lane, ticket);
                }
            }
            prop_assert!(window.is_empty());
            prop_assert_eq!((sampler.largest(), sampler.stale()), (largest, stale));
        }
    }
}

#[test]
fn draws_in_proportion() {
    let (replay, mut writer) = replay(64, 2);
    let mut sampler = replay.prioritized_sampler(SEED, Priorities { alpha: 0.7, beta: 1.0, eps: 1e-6 }).unwrap();
    for ticket in 1..=20 {
        writer.append_packed(0, &[value(0, ticket); WORDS], 0, 0).unwrap();
        writer.append_packed(1, &[value(1, ticket); WORDS], 0, 0).unwrap();
    }
    let drawn = sample(&mut sampler, 2_000, 1).unwrap();
    assert!(drawn.weights.iter().all(|weight| *weight == 1.0), "all rows are new: uniform");
    let error = |lane: u64, ticket: u64| (1 + lane * 7 + ticket % 5) as f32;
    let errors: Vec<f32> = drawn.ids.chunks_exact(3).map(|id| error(id[0], id[2])).collect();
    assert_eq!(sampler.update_priorities(&drawn.ids, &errors).unwrap(), 0);
    let p = |lane, ticket| (f64::from(error(lane, ticket)) + 1e-6).powf(0.7);
    let total: f64 = (0..2).flat_map(|lane| (1..=20).map(move |ticket| p(lane, ticket))).sum();
    let size = 40_000;
    for threads in [1, 2] {
        let drawn = sample(&mut sampler, size, threads).unwrap();
        let mut counts = BTreeMap::new();
        for id in drawn.ids.chunks_exact(3) {
            *counts.entry((id[0], id[2])).or_insert(0u32) += 1;
        }
        for ((lane, ticket), count) in counts {
            // One draw in each of `size` equal parts: a row's count is its expectation but for the two parts at its
            // ends.
            let expected = size as f64 * p(lane, ticket) / total;
            assert!((f64::from(count) - expected).abs() <= 2.0, "{lane} {ticket}: {count} for {expected}");
        }
    }
}

#[test]
fn the_same_seed_draws_the_same_rows_and_goes_on_after_a_restore() {
    let (replay, mut writer) = replay(100, 2);
    for ticket in 1..=50 {
        writer.append_packed(0, &[value(0, ticket); WORDS], 0, 0).unwrap();
        writer.append_packed(1, &[value(1, ticket); WORDS], 0, 0).unwrap();
    }
    let options = Priorities::default();
    let mut a = replay.prioritized_sampler(SEED, options).unwrap();
    let drawn = sample(&mut a, 64, 1).unwrap();
    let errors: Vec<f32> = (0..64).map(|i| i as f32 / 10.0).collect();
    a.update_priorities(&drawn.ids, &errors).unwrap();
    let mut b = replay.prioritized_sampler([9; 4], options).unwrap();
    for lane in 0..2 {
        let saved = a.weights(lane).unwrap();
        assert_eq!(b.restore_weights(lane, &saved, a.largest()).unwrap(), saved.weights.len());
    }
    b.set_state(&a.state()).unwrap();
    let (a, b) = (sample(&mut a, 256, 1).unwrap(), sample(&mut b, 256, 2).unwrap());
    assert_eq!((a.ids, a.rows, a.weights), (b.ids, b.rows, b.weights));
}

#[test]
fn a_buffer_that_counts_its_rows_anew_draws_the_same_rows() {
    // Lanes that have gone round: what is left of them is copied to a new buffer, as a resumed run does.
    let (old, mut writer) = replay(60, 2);
    for ticket in 1..=100 {
        writer.append_packed(0, &[value(0, ticket); WORDS], 0, 0).unwrap();
        writer.append_packed(1, &[value(1, ticket); WORDS], 0, 0).unwrap();
    }
    let options = Priorities::default();
    let mut a = old.prioritized_sampler(SEED, options).unwrap();
    let drawn = sample(&mut a, 64, 1).unwrap();
    a.update_priorities(&drawn.ids, &(0..64).map(|i| i as f32 / 10.0).collect::<Vec<_>>()).unwrap();
    let (new, mut successor) = replay(60, 2);
    for lane in 0..2 {
        for ticket in 71..=100 {
            successor.append_packed(lane, &[value(lane, ticket); WORDS], 0, 0).unwrap();
        }
    }
    let mut b = new.prioritized_sampler(SEED, options).unwrap();
    for lane in 0..2 {
        let saved = a.weights(lane).unwrap();
        assert_eq!((saved.first, saved.weights.len()), (71, 30));
        assert_eq!(b.restore_weights(lane, &LaneWeights { first: 1, ..saved }, a.largest()).unwrap(), 30);
    }
    b.set_state(&a.state()).unwrap();
    for ticket in 101..=200 {
        let (ours, theirs) = (sample(&mut a, 64, 1).unwrap(), sample(&mut b, 64, 1).unwrap());
        assert_eq!((&ours.rows, &ours.weights), (&theirs.rows, &theirs.weights), "ticket {ticket}");
        let errors: Vec<f32> = (0..64).map(|i| ((i * 7 + ticket) % 64) as f32 / 10.0).collect();
        a.update_priorities(&ours.ids, &errors).unwrap();
        b.update_priorities(&theirs.ids, &errors).unwrap();
        for writer in [&mut writer, &mut successor] {
            for lane in 0..2 {
                writer.append_packed(lane, &[value(lane, ticket); WORDS], 0, 0).unwrap();
            }
        }
    }
}

#[test]
fn restored_weights_must_be_usable() {
    let (replay, mut writer) = replay(10, 1);
    writer.append_packed(0, &[1; WORDS], 0, 0).unwrap();
    let mut sampler = replay.prioritized_sampler(SEED, Priorities::default()).unwrap();
    let saved = |first, weights: &[f64]| LaneWeights { first, position: 0, weights: weights.to_vec() };
    assert!(sampler.restore_weights(0, &saved(1, &[f64::NAN]), 1.0).is_err());
    assert!(sampler.restore_weights(0, &saved(1, &[-1.0]), 1.0).is_err());
    assert!(sampler.restore_weights(0, &saved(1, &[1.0]), f64::INFINITY).is_err());
    assert!(sampler.restore_weights(0, &saved(0, &[1.0]), 1.0).is_err());
    assert_eq!(sampler.restore_weights(0, &saved(5, &[1.0, 2.0]), 1.0).unwrap(), 0, "no such rows");
    assert!(sampler.update_priorities(&[0, 0, 1], &[f32::NAN]).is_err());
    assert!(sampler.update_priorities(&[1, 0, 1], &[1.0]).is_err());
    assert!(sampler.update_priorities(&[0, 1 << 40, 1], &[1.0]).is_err());
    assert!(replay.prioritized_sampler(SEED, Priorities { eps: 0.0, ..Priorities::default() }).is_err());
}

#[test]
fn rows_stay_whole_beside_a_fast_writer() {
    let (replay, mut writer) = replay(64, 2);
    let stop = Instant::now() + Duration::from_millis(700);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut ticket = 0;
            while Instant::now() < stop {
                ticket += 1;
                for lane in 0..2 {
                    writer.append_packed(lane, &[value(lane, ticket); WORDS], 0, 0).unwrap();
                }
            }
        });
        let mut sampler = replay.prioritized_sampler(SEED, Priorities::default()).unwrap();
        let mut batches = 0;
        while Instant::now() < stop {
            let Ok(drawn) = sample(&mut sampler, 32, 1) else { continue };
            batches += 1;
            for (row, id) in drawn.rows.chunks_exact(WORDS).zip(drawn.ids.chunks_exact(3)) {
                assert_eq!(row, [value(id[0] as usize, id[2]); WORDS]);
            }
            sampler.update_priorities(&drawn.ids, &[0.5; 32]).unwrap();
        }
        assert!(batches > 10, "{batches} batches, {} redraws, {} stale", sampler.redraws(), sampler.stale());
    });
}
