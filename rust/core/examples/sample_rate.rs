//! Rate of tear-checked uniform sampling: `cargo run --release --example sample_rate [rows] [threads]`.
//!
//! Rows of 256 bytes (Ant-v4), no writer running, best and median of repeats.

use std::time::Instant;

use rlz_core::schema::{Dtype, Field};
use rlz_core::{WorkerId, replay::Batch, replay::Replay};

fn main() -> rlz_core::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>().expect("a number"));
    let rows = arguments.next().unwrap_or(1 << 20);
    let threads = arguments.next().unwrap_or(1);
    let replay = Replay::create(&[Field::new("row", Dtype::F32, &[64])?], rows, 4, 0)?;
    let words = replay.schema().words();
    let mut writer = replay.writer(&[0, 1, 2, 3], WorkerId::new(1)?)?;
    let mut row = vec![0; words];
    let start = Instant::now();
    for i in 0..rows {
        row.fill(i as u64);
        writer.append_packed(i % 4, &row, 0, 0)?;
    }
    println!("append: {:.2} M rows/s", rows as f64 / start.elapsed().as_secs_f64() / 1e6);

    let mut sampler = replay.sampler([1, 2, 3, 4]);
    for batch in [256, 1024, 8192, 65_536] {
        let mut packed = vec![0; batch * words];
        let mut rates: Vec<f64> = (0..(4_000_000 / batch).clamp(30, 2_000))
            .map(|_| {
                let start = Instant::now();
                sampler.sample(Batch { rows: &mut packed, meta: None, ids: None }, threads).expect("a batch");
                batch as f64 / start.elapsed().as_secs_f64() / 1e6
            })
            .collect();
        std::hint::black_box(&packed);
        rates.sort_by(f64::total_cmp);
        let (median, best) = (rates[rates.len() / 2], rates[rates.len() - 1]);
        println!(
            "batch {batch:>6}, {threads} thread(s): median {median:.1}, best {best:.1} M rows/s ({:.1} GB/s)",
            best * 0.256
        );
    }
    Ok(())
}
