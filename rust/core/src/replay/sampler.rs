//! The uniform sampler of a replay buffer.

use crate::error::{Error, Result};
use crate::policy::Rng;
use crate::replay::window::{History, Span};
use crate::replay::{Replay, Ring, margin};

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
    history: History,
    counts: Vec<u64>,
    spans: Vec<Span>,
    /// Rows in the window in lanes before each lane.
    before: Vec<u64>,
    /// Slot in its lane of each lane's oldest row in the window.
    first_slot: Vec<usize>,
    available: u64,
    lanes_per_row: f64,
    picks: Vec<usize>,
    redraws: u64,
}

impl Sampler {
    pub(super) fn new(replay: Replay, seed: [u64; 4]) -> Self {
        let (lanes, capacity) = (replay.lanes(), replay.lane_capacity());
        let share = replay.buffer_size().div_ceil(lanes);
        let most = capacity.saturating_sub(margin(share)).max(1) as u64;
        Self {
            history: History::new(replay.buffer_size() as u64, lanes, most),
            replay,
            rng: Rng::new(seed),
            counts: vec![0; lanes],
            spans: vec![Span::default(); lanes],
            before: vec![0; lanes],
            first_slot: vec![0; lanes],
            available: 0,
            lanes_per_row: 0.0,
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

    /// Fill a batch; its size is that of `batch.rows`. The gather is split over up to `threads` threads, where that pays.
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
        self.look(&ring);
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

    /// Take a snapshot of the committed counts and the window that they give.
    #[allow(clippy::cast_possible_truncation)] // slots are usize
    fn look(&mut self, ring: &Ring<'_>) {
        for (lane, count) in self.counts.iter_mut().enumerate() {
            *count = ring.committed(lane);
        }
        self.history.update(&self.counts, &mut self.spans);
        self.available = 0;
        for (span, before) in self.spans.iter().zip(&mut self.before) {
            *before = self.available;
            self.available += span.len();
        }
        let capacity = self.replay.lane_capacity() as u64;
        for (span, slot) in self.spans.iter().zip(&mut self.first_slot) {
            *slot = (span.start % capacity) as usize;
        }
        self.lanes_per_row = self.spans.len() as f64 / self.available.max(1) as f64;
    }

    /// A uniformly drawn slot, over all lanes.
    #[inline]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // lanes and slots are usize
    fn draw(&mut self) -> usize {
        let index = self.rng.below(self.available);
        // Lanes are mostly of one length, so the first guess is mostly right.
        let lanes = self.spans.len();
        let mut lane = ((index as f64 * self.lanes_per_row) as usize).min(lanes - 1);
        while index < self.before[lane] {
            lane -= 1;
        }
        while index >= self.before[lane] + self.spans[lane].len() {
            lane += 1;
        }
        // A span is no longer than its lane, so it wraps at most once.
        let capacity = self.replay.lane_capacity();
        let slot = self.first_slot[lane] + (index - self.before[lane]) as usize;
        lane * capacity + if slot < capacity { slot } else { slot - capacity }
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

/// Copy the picked slots, on as many threads as pay, the calling one among them; positions (in order) of those that were
/// empty or torn.
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
