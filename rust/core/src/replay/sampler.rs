//! The uniform sampler of a replay buffer.

use crate::error::{Error, Result};
use crate::policy::Rng;
use crate::replay::window::Window;
use crate::replay::{Replay, Ring};

/// Rows requested ahead of the one that is copied.
pub const PREFETCH: usize = 24;

/// Bytes of rows that a thread gets at least: less is copied sooner than a thread has started.
const LEAST_PART: usize = 1 << 19;

/// Redraws that one row of a batch may need. Only a slot that is written right now or was emptied by a reaping is drawn
/// again, so even a second try is rare.
const MOST_REDRAWS: u32 = 1_000;

/// Buffers for a batch.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Packed rows, back to back.
    pub rows: &'a mut [u64],
    /// One meta word per row.
    pub meta: Option<&'a mut [u64]>,
    /// Lane, slot in the lane, ticket per row.
    pub ids: Option<&'a mut [u64]>,
}

impl<'a> Batch<'a> {
    fn split_at(self, rows: usize, row_words: usize) -> (Self, Self) {
        let (a, b) = self.rows.split_at_mut(rows * row_words);
        let (meta_a, meta_b) = self.meta.map(|meta| meta.split_at_mut(rows)).unzip();
        let (ids_a, ids_b) = self.ids.map(|ids| ids.split_at_mut(rows * 3)).unzip();
        (Batch { rows: a, meta: meta_a, ids: ids_a }, Batch { rows: b, meta: meta_b, ids: ids_b })
    }
}

/// Draws rows uniformly, with replacement, from the newest `buffer_size` rows of all lanes.
///
/// With one thread of writers and the same calls, the same seed gives the same rows whatever `threads` is: all indices
/// come from one random stream, before any row is copied.
#[derive(Debug)]
pub struct Sampler {
    replay: Replay,
    rng: Rng,
    window: Window,
    /// Rows in the window in lanes before each lane; behind the last lane, all of them.
    before: Vec<u64>,
    /// The rows of the window in as many equal parts as there are lanes: for each, the lane of its middle row. On
    /// average a step at most leads from there to the lane of a row, however uneven the lanes are, and none where they
    /// are even.
    guide: Vec<u32>,
    /// Slot in its lane of each lane's oldest row in the window.
    first_slot: Vec<usize>,
    available: u64,
    /// Parts of `guide` per row.
    parts_per_row: f64,
    picks: Vec<usize>,
    redraws: u64,
}

impl Sampler {
    pub(super) fn new(replay: Replay, seed: [u64; 4]) -> Self {
        let lanes = replay.lanes();
        Self {
            window: Window::new(&replay),
            replay,
            rng: Rng::new(seed),
            before: vec![0; lanes + 1],
            guide: vec![0; lanes],
            first_slot: vec![0; lanes],
            available: 0,
            parts_per_row: 0.0,
            picks: Vec::new(),
            redraws: 0,
        }
    }

    /// The buffer drawn from.
    #[must_use]
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Rows that can be drawn now.
    pub fn available(&mut self) -> Result<u64> {
        let replay = self.replay.clone();
        self.look(&replay.ring()?);
        Ok(self.available)
    }

    /// Rows that were drawn again because they were being written.
    #[must_use]
    pub fn redraws(&self) -> u64 {
        self.redraws
    }

    /// State of the random stream.
    #[must_use]
    pub fn state(&self) -> [u8; Rng::BYTES] {
        self.rng.to_bytes()
    }

    /// Go on from a saved state of the random stream.
    pub fn set_state(&mut self, state: &[u8]) -> Result<()> {
        self.rng = Rng::from_bytes(state)?;
        Ok(())
    }

    /// Fill a batch; its size is that of `batch.rows`. The gather is split over up to `threads` threads, where that
    /// pays.
    pub fn sample(&mut self, batch: Batch<'_>, threads: usize) -> Result<()> {
        let replay = self.replay.clone();
        let ring = replay.ring()?;
        let row_words = ring.row_words();
        let size = batch.rows.len() / row_words;
        let fits = batch.rows.len().is_multiple_of(row_words)
            && batch.meta.as_ref().is_none_or(|meta| meta.len() == size)
            && batch.ids.as_ref().is_none_or(|ids| ids.len() == size * 3);
        if !fits {
            return Err(Error::invalid(
                "batch",
                format!(
                    "rows of {} bytes, meta {:?}, ids {:?} words",
                    batch.rows.len() * 8,
                    batch.meta.map(|meta| meta.len()),
                    batch.ids.map(|ids| ids.len())
                ),
                format!("rows [batch, {} bytes], meta [batch], ids [batch, 3]", row_words * 8),
            ));
        }
        if threads == 0 {
            return Err(Error::invalid("threads", 0, "at least 1"));
        }
        if self.window.is_due(size) || self.available == 0 {
            self.look(&ring);
        }
        if self.available == 0 {
            return Err(Error::Empty("the replay buffer is empty: wait until a sampler has written rows".to_owned()));
        }
        let mut picks = std::mem::take(&mut self.picks);
        picks.clear();
        picks.extend((0..size).map(|_| self.draw()));
        let result = self.fill(&ring, &mut picks, batch, threads);
        self.picks = picks;
        result
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // lanes and slots are usize, lanes below 2^16
    fn look(&mut self, ring: &Ring<'_>) {
        self.window.look(ring);
        self.available = 0;
        let (before, capacity) = (&mut self.before[1..], self.replay.lane_capacity() as u64);
        for ((span, end), slot) in self.window.spans.iter().zip(before).zip(&mut self.first_slot) {
            self.available += span.len();
            *end = self.available;
            *slot = (span.start % capacity) as usize;
        }
        self.parts_per_row = self.guide.len() as f64 / self.available.max(1) as f64;
        let (last, mut lane) = (self.available.saturating_sub(1), 0);
        for (part, first) in self.guide.iter_mut().enumerate() {
            let middle = (((part as f64 + 0.5) / self.parts_per_row) as u64).min(last);
            while lane + 1 < self.first_slot.len() && middle >= self.before[lane + 1] {
                lane += 1;
            }
            *first = lane as u32;
        }
    }

    /// Part of `guide` in which a row is.
    #[inline]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // below the number of lanes
    fn part(&self, index: u64) -> usize {
        ((index as f64 * self.parts_per_row) as usize).min(self.guide.len() - 1)
    }

    /// A uniformly drawn slot, over all lanes.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // slots are usize
    fn draw(&mut self) -> usize {
        let index = self.rng.below(self.available);
        let lane = self.lane(index);
        // A span is no longer than its lane, so it wraps at most once.
        let capacity = self.replay.lane_capacity();
        let slot = self.first_slot[lane] + (index - self.before[lane]) as usize;
        lane * capacity + if slot < capacity { slot } else { slot - capacity }
    }

    /// Lane of row `index` of the window.
    #[inline]
    fn lane(&self, index: u64) -> usize {
        let mut lane = self.guide[self.part(index)] as usize;
        while index < self.before[lane] {
            lane -= 1;
        }
        while index >= self.before[lane + 1] {
            lane += 1;
        }
        lane
    }

    fn fill(&mut self, ring: &Ring<'_>, picks: &mut [usize], batch: Batch<'_>, threads: usize) -> Result<()> {
        let capacity = self.replay.lane_capacity();
        let Batch { rows, mut meta, mut ids } = batch;
        let whole = Batch { rows: &mut *rows, meta: meta.as_deref_mut(), ids: ids.as_deref_mut() };
        let mut torn = gather_parallel(ring, capacity, picks, whole, threads);
        let row_words = ring.row_words();
        let mut round = 0;
        while !torn.is_empty() {
            if round == MOST_REDRAWS {
                return Err(Error::Empty(format!(
                    "no whole row found in {MOST_REDRAWS} draws among {} rows: the buffer is too small for its writers",
                    self.available
                )));
            }
            round += 1;
            // Another index and lane: trying the same slot until it succeeds would favour the slow writers' rows.
            torn.retain(|&at| {
                self.redraws += 1;
                let pick = [self.draw()];
                let one = Batch {
                    rows: &mut rows[at * row_words..(at + 1) * row_words],
                    meta: meta.as_deref_mut().map(|meta| &mut meta[at..=at]),
                    ids: ids.as_deref_mut().map(|ids| &mut ids[at * 3..at * 3 + 3]),
                };
                !gather(ring, capacity, &pick, one, 0).is_empty()
            });
        }
        Ok(())
    }
}

/// Copy the picked slots, on as many threads as pay, the calling one among them; positions (in order) of those that
/// were empty or torn.
pub(super) fn gather_parallel(
    ring: &Ring<'_>,
    capacity: usize,
    picks: &[usize],
    batch: Batch<'_>,
    threads: usize,
) -> Vec<usize> {
    let row_words = ring.row_words();
    let part = picks.len().div_ceil(threads).max(LEAST_PART / (row_words * 8));
    if part >= picks.len() {
        return gather(ring, capacity, picks, batch, 0);
    }
    std::thread::scope(|scope| {
        let (mine, rest) = batch.split_at(part, row_words);
        let mut rest = Some(rest);
        let others: Vec<_> = picks[part..]
            .chunks(part)
            .enumerate()
            .map(|(i, picks)| {
                let (theirs, left) = rest.take().expect("a part per chunk").split_at(picks.len(), row_words);
                rest = Some(left);
                scope.spawn(move || gather(ring, capacity, picks, theirs, (i + 1) * part))
            })
            .collect();
        let mut torn = gather(ring, capacity, &picks[..part], mine, 0);
        torn.extend(others.into_iter().flat_map(|other| other.join().expect("a gather does not panic")));
        torn
    })
}

fn gather(ring: &Ring<'_>, capacity: usize, picks: &[usize], batch: Batch<'_>, offset: usize) -> Vec<usize> {
    let Batch { rows, mut meta, mut ids } = batch;
    let mut torn = Vec::new();
    for slot in &picks[..PREFETCH.min(picks.len())] {
        ring.prefetch(*slot);
    }
    for (i, row) in rows.chunks_exact_mut(ring.row_words()).enumerate() {
        if let Some(slot) = picks.get(i + PREFETCH) {
            ring.prefetch(*slot);
        }
        let slot = picks[i];
        let Some(mark) = ring.read(slot, row) else {
            torn.push(offset + i);
            continue;
        };
        if let Some(meta) = &mut meta {
            meta[i] = mark.meta;
        }
        if let Some(ids) = &mut ids {
            ids[i * 3..i * 3 + 3].copy_from_slice(&[(slot / capacity) as u64, (slot % capacity) as u64, mark.ticket()]);
        }
    }
    torn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::WorkerId;
    use crate::schema::{Dtype, Field};

    /// A sampler that has looked at lanes with so many rows.
    fn looked(rows: &[usize], lane_capacity: usize) -> Sampler {
        let field = Field::new("x", Dtype::U8, &[]).unwrap();
        let replay = Replay::create(&[field], rows.len() * lane_capacity, rows.len(), 1).unwrap();
        let mut writer = replay.writer(&(0..rows.len()).collect::<Vec<_>>(), WorkerId::new(1).unwrap()).unwrap();
        for (lane, count) in rows.iter().enumerate() {
            (0..*count).for_each(|_| _ = writer.append_packed(lane, &[0; 8], 0, 0).unwrap());
        }
        let mut sampler = replay.sampler([1, 2, 3, 4]);
        assert_eq!(sampler.available().unwrap(), rows.iter().sum::<usize>() as u64);
        sampler
    }

    #[test]
    fn rows_of_uneven_lanes_are_found_in_a_step_or_two() {
        let halves: Vec<_> = (0..3_000).map(|lane| if lane < 1_500 { 1 } else { 30 }).collect();
        let one_long = [vec![1; 2_000], vec![31], vec![0; 999], vec![1; 3]].concat();
        let ends: Vec<_> = (0..3_000).map(|lane| if lane % 2_999 == 0 { 25 } else { 0 }).collect();
        let some: Vec<_> = (0..1_000).map(|lane| lane * lane % 31).collect();
        for rows in [halves, one_long, ends, some, vec![7; 16], vec![30, 31, 30, 30], vec![0, 3]] {
            let sampler = looked(&rows, 31);
            let lanes = rows.iter().enumerate().flat_map(|(lane, count)| std::iter::repeat_n(lane, *count));
            let mut steps = 0;
            for (index, lane) in lanes.enumerate() {
                assert_eq!(sampler.lane(index as u64), lane);
                steps += lane.abs_diff(sampler.guide[sampler.part(index as u64)] as usize);
            }
            // Of lanes that a writer fills in turn, hardly a row takes a step: its direction would be guessed wrongly.
            let (least, most) = (rows.iter().min().unwrap(), rows.iter().max().unwrap());
            let bound = if most - least <= 1 { sampler.available / 8 } else { 2 * sampler.available };
            assert!(steps as u64 <= bound, "{steps} steps to {} rows", sampler.available);
        }
    }
}
