//! The core without Python and without other processes: what the measurements of `rlz bench` cannot go beyond.
//!
//!     cargo run --release --example transport_speed -- replay|transport SECONDS
//!
//! Prints one JSON object as its last line, metrics by contender, named as in `rlz bench`:
//! - `replay`: gathering drawn rows with and without the check for torn ones (the latter is what a racy reader would
//!   do); prioritised sampling with the update of the priorities.
//! - `transport`: the queue between two threads, and a bare hand-over: plain memory and one word that says how many
//!   messages are there, so each message is copied in by one core and out by another, and nothing else is done.

#![allow(unsafe_code)] // the bare hand-over shares plain memory

use std::time::{Duration, Instant};

use rlz_core::WorkerId;
use rlz_core::memory::words;
use rlz_core::policy::Rng;
use rlz_core::queue::{Options, Queue};
use rlz_core::replay::{PREFETCH, Priorities, PrioritizedBatch, Replay};
use rlz_core::schema::{Dtype, Field};
use rlz_core::sync::{AtomicU64, Ordering, spin_loop};

const ROWS: usize = 1_000_000;
const ROW_WORDS: usize = 32;
const LANES: usize = 4;
/// Time for a new buffer to move to huge pages.
const SETTLING: Duration = Duration::from_secs(2);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, seconds] = &arguments[..] else { panic!("expected: replay|transport SECONDS") };
    let length = Duration::from_secs_f64(seconds.parse().expect("SECONDS is a number"));
    let found = match what.as_str() {
        "replay" => replay(length),
        "transport" => transport(length),
        other => panic!("expected replay or transport, given {other}"),
    };
    let contenders = found.iter().map(|(name, metrics)| {
        let metrics: Vec<_> = metrics.iter().map(|(name, value)| format!("\"{name}\": {value:.1}")).collect();
        format!("\"{name}\": {{{}}}", metrics.join(", "))
    });
    println!("{{{}}}", contenders.collect::<Vec<_>>().join(", "));
}

type Found = Vec<(String, Vec<(String, f64)>)>;

fn id(worker: u64) -> WorkerId {
    WorkerId::new(worker).expect("a small id")
}

/// Calls of `work` per second.
fn rate(length: Duration, mut work: impl FnMut()) -> f64 {
    work();
    let (start, mut done) = (Instant::now(), 0.0);
    while start.elapsed() < length {
        work();
        done += 1.0;
    }
    done / start.elapsed().as_secs_f64()
}

fn replay(length: Duration) -> Found {
    let replay = Replay::create(&[Field::new("row", Dtype::F32, &[64]).unwrap()], ROWS, LANES, 1).unwrap();
    let mut writer = replay.writer(&[0, 1, 2, 3], id(1)).unwrap();
    for i in 0..LANES * replay.lane_capacity() {
        writer.append_packed(i % LANES, &[i as u64; ROW_WORDS], 0, 0).unwrap();
    }
    std::thread::sleep(SETTLING);
    let mut rng = Rng::new([1, 2, 3, 4]);
    let ring = replay.ring().unwrap();
    let slots = (LANES * replay.lane_capacity()) as u64;
    let mut found = Found::new();
    let (mut checked, mut bare, mut prioritized) = (Vec::new(), Vec::new(), Vec::new());
    let mut sampler = replay.prioritized_sampler([1, 2, 3, 4], Priorities::default()).unwrap();
    for size in [256, 8192] {
        let mut rows = vec![0; size * ROW_WORDS];
        let mut picks = vec![0; size];
        let mut gather = |read: &dyn Fn(usize, &mut [u64])| {
            for pick in &mut picks {
                *pick = usize::try_from(rng.below(slots)).unwrap();
            }
            for (i, row) in rows.chunks_exact_mut(ROW_WORDS).enumerate() {
                ring.prefetch(picks[(i + PREFETCH).min(size - 1)]);
                read(picks[i], row);
            }
        };
        let per_call = size as f64;
        let with = rate(length, || gather(&|slot, row| assert!(ring.read(slot, row).is_some(), "nobody writes")));
        let without = rate(length, || gather(&|slot, row| words::load(ring.row(slot), row)));
        checked.push((format!("sample_{size}"), with * per_call));
        bare.push((format!("sample_{size}"), without * per_call));
        let (mut ids, mut weights) = (vec![0; size * 3], vec![0.0; size]);
        let errors: Vec<f32> = (0..size).map(|i| (i % 100) as f32 / 10.0).collect();
        let sampled = rate(length, || {
            let batch = PrioritizedBatch { rows: &mut rows, meta: None, ids: &mut ids, weights: &mut weights };
            sampler.sample(batch, 1).unwrap();
            sampler.update_priorities(&ids, &errors).unwrap();
        });
        prioritized.push((format!("prioritized_{size}"), sampled * per_call));
    }
    found.push(("core with tear checks".to_owned(), [checked, prioritized].concat()));
    found.push(("core without tear checks".to_owned(), bare));
    found
}

/// Name and bytes of the messages of `rlz bench transport`.
const MESSAGES: [(&str, usize); 3] = [("19kB", 19_200), ("305kB", 303_924), ("565kB", 564_720)];

fn transport(length: Duration) -> Found {
    let sizes = |measure: &dyn Fn(usize) -> f64| {
        MESSAGES.iter().map(|(name, bytes)| (format!("messages_{name}"), measure(*bytes))).collect::<Vec<_>>()
    };
    let mut found = vec![("core".to_owned(), sizes(&|bytes| queue(bytes, length)))];
    for places in [4, 16] {
        found.push((format!("hand-over: {places} places"), sizes(&|bytes| hand_over(bytes, places, length))));
    }
    found
}

/// Messages per second through the queue, copied in and out.
fn queue(bytes: usize, length: Duration) -> f64 {
    let queue = Queue::create(&[Field::new("x", Dtype::U8, &[bytes]).unwrap()], Options::new(16), 1).unwrap();
    let stride = queue.schema().stride();
    let (source, mut into) = (vec![1u8; stride], vec![0u8; stride]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = queue.producer(id(1)).unwrap();
            while producer.put(&source, 0, None, &mut || true).is_ok() {}
        });
        let mut consumer = queue.consumer(id(2)).unwrap();
        let received = rate(length, || into.copy_from_slice(consumer.pop(None, &mut || true).unwrap().bytes()));
        queue.close().unwrap();
        received
    })
}

/// Memory that two threads take turns with.
struct Places(*mut u8);

// SAFETY: `hand_over` gives each place to one thread at a time.
unsafe impl Sync for Places {}

impl Places {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

/// Messages per second through plain memory, copied in by one thread and out by another.
fn hand_over(bytes: usize, places: usize, length: Duration) -> f64 {
    const STOP: u64 = u64::MAX;
    let mut memory = vec![1u8; bytes * places];
    let shared = Places(memory.as_mut_ptr());
    let (written, read) = (AtomicU64::new(0), AtomicU64::new(0));
    let place = |count: u64| shared.at(usize::try_from(count).unwrap() % places * bytes);
    let (source, mut into) = (vec![2u8; bytes], vec![0u8; bytes]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for count in 0.. {
                loop {
                    match read.load(Ordering::Acquire) {
                        STOP => return,
                        read if count - read < places as u64 => break,
                        _ => spin_loop(),
                    }
                }
                // SAFETY: the reader is not here: it has read what lay in this place, and nothing new was announced.
                unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), place(count), bytes) };
                written.store(count + 1, Ordering::Release);
            }
        });
        let mut count = 0;
        let received = rate(length, || {
            while written.load(Ordering::Acquire) == count {
                spin_loop();
            }
            // SAFETY: announced, and not written again before it is given back below.
            unsafe { std::ptr::copy_nonoverlapping(place(count), into.as_mut_ptr(), bytes) };
            count += 1;
            read.store(count, Ordering::Release);
        });
        read.store(STOP, Ordering::Release);
        received
    })
}
