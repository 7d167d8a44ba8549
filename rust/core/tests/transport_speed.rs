//! Measurements of the core without Python: `cargo test --release --test transport_speed -- --ignored --nocapture`.
#![cfg(not(loom))]

use std::time::{Duration, Instant};

use rlz_core::WorkerId;
use rlz_core::queue::{Options, Queue};
use rlz_core::replay::{Priorities, PrioritizedBatch, Replay};
use rlz_core::schema::{Dtype, Field};

fn id(worker: u64) -> WorkerId {
    WorkerId::new(worker).unwrap()
}

#[test]
#[ignore = "a measurement"]
fn queue_messages_per_second() {
    for bytes in [19_000, 305_000] {
        let fields = [Field::new("x", Dtype::U8, &[bytes]).unwrap()];
        let queue = Queue::create(&fields, Options::new(16), 1).unwrap();
        let stride = queue.schema().stride();
        let (source, mut into) = (vec![1u8; stride], vec![0u8; stride]);
        let start = Instant::now();
        for _ in 0..2_000 {
            into.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut into);
        }
        let copies = 2_000.0 / start.elapsed().as_secs_f64();
        let limit = Duration::from_millis(1_500);
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut producer = queue.producer(id(1));
                while producer.put(&source, 0, None, &mut || true).is_ok() {}
            });
            let mut consumer = queue.consumer(id(2));
            let (start, mut received) = (Instant::now(), 0);
            while start.elapsed() < limit {
                into.copy_from_slice(consumer.pop(None, &mut || true).unwrap().bytes());
                received += 1;
            }
            queue.close().unwrap();
            received
        });
        let rate = f64::from(received) / limit.as_secs_f64();
        println!("{bytes} bytes: {rate:.0} messages/s, copied in and out; one copy {copies:.0}/s");
    }
}

#[test]
#[ignore = "a measurement"]
fn prioritized_rows_per_second() {
    const ROWS: usize = 1_000_000;
    let replay = Replay::create(&[Field::new("row", Dtype::F32, &[64]).unwrap()], ROWS, 4, 1).unwrap();
    let mut writer = replay.writer(&[0, 1, 2, 3], id(1)).unwrap();
    for i in 0..ROWS {
        writer.append_packed(i % 4, &[i as u64; 32], 0, 0).unwrap();
    }
    let mut sampler = replay.prioritized_sampler([1, 2, 3, 4], Priorities::default()).unwrap();
    let start = Instant::now();
    sampler.available().unwrap();
    println!("caught up with {ROWS} rows in {:?}", start.elapsed());
    for size in [256, 8_192] {
        let (mut rows, mut ids, mut weights) = (vec![0; size * 32], vec![0; size * 3], vec![0.0; size]);
        let errors: Vec<f32> = (0..size).map(|i| (i % 100) as f32 / 10.0).collect();
        let mut rates: Vec<f64> = (0..7)
            .map(|_| {
                let (start, mut done) = (Instant::now(), 0);
                while start.elapsed() < Duration::from_millis(200) {
                    let batch = PrioritizedBatch { rows: &mut rows, meta: None, ids: &mut ids, weights: &mut weights };
                    sampler.sample(batch, 1).unwrap();
                    sampler.update_priorities(&ids, &errors).unwrap();
                    done += size;
                }
                done as f64 / start.elapsed().as_secs_f64() / 1e6
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        println!("batch {size}: sample + update {:.2} M rows/s (median of 7; best {:.2})", rates[3], rates[6]);
    }
}
