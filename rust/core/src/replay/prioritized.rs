//! Proportional prioritised sampling (Schaul et al., 2016, arXiv 1511.05952, section 3.3 and 3.4).
//!
//! A row is drawn with probability `p^alpha / sum p^alpha` where `p = |TD error| + eps`; its importance weight is
//! `(N P)^-beta`, divided by the largest of the batch (so N cancels). New rows get the largest priority so far.
//!
//! The sums are private to the sampler, which catches up with the lanes' committed counts before each batch. What is
//! overwritten, reaped or too old for the window has weight 0.

use crate::error::{Error, Result};
use crate::policy::Rng;
use crate::replay::sampler::{Batch, gather_parallel};
use crate::replay::sum_tree::SumTree;
use crate::replay::window::{History, Span};
use crate::replay::{Replay, Ring, margin};

const MOST_REDRAWS: u32 = 1_000;

/// Exponents of prioritised replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Priorities {
    /// 0 draws uniformly, 1 in proportion to the priorities.
    pub alpha: f64,
    /// 0 leaves the bias of the draw, 1 corrects it wholly; usually raised to 1 during a run.
    pub beta: f64,
    /// Added to every |TD error|, so that no row is never drawn again.
    pub eps: f64,
}

impl Default for Priorities {
    fn default() -> Self {
        Self { alpha: 0.6, beta: 0.4, eps: 1e-6 }
    }
}

/// Buffers for a prioritised batch.
#[derive(Debug)]
pub struct PrioritizedBatch<'a> {
    /// Packed rows, back to back.
    pub rows: &'a mut [u64],
    /// One meta word per row.
    pub meta: Option<&'a mut [u64]>,
    /// Lane, slot in the lane, ticket per row: give them back with the new priorities.
    pub ids: &'a mut [u64],
    /// Importance weight per row, the largest of a batch is 1.
    pub weights: &'a mut [f32],
}

/// Draws rows in proportion to their priorities from the newest `buffer_size` rows of all lanes.
#[derive(Debug)]
pub struct PrioritizedSampler {
    replay: Replay,
    options: Priorities,
    rng: Rng,
    history: History,
    counts: Vec<u64>,
    spans: Vec<Span>,
    /// Last ticket per lane that has a place in the tree.
    known: Vec<u64>,
    /// Tickets per lane up to here have weight 0 again: too old.
    forgotten: Vec<u64>,
    /// Ticket per slot that the leaf's weight belongs to.
    tickets: Vec<u64>,
    tree: SumTree,
    largest: f64,
    stale: u64,
    redraws: u64,
    picks: Vec<usize>,
    looks: Vec<(f64, usize)>,
    changes: Vec<(usize, f64)>,
    /// Weight of each pick when it was drawn.
    drawn: Vec<f64>,
}

impl PrioritizedSampler {
    pub(super) fn new(replay: Replay, seed: [u64; 4], options: Priorities) -> Result<Self> {
        check_exponent("alpha", options.alpha)?;
        check_exponent("beta", options.beta)?;
        if !(options.eps.is_finite() && options.eps > 0.0) {
            return Err(Error::invalid("eps", options.eps, "a finite number above 0"));
        }
        let (lanes, capacity) = (replay.lanes(), replay.lane_capacity());
        let share = replay.buffer_size().div_ceil(lanes);
        let most = capacity.saturating_sub(margin(share)).max(1) as u64;
        Ok(Self {
            history: History::new(replay.buffer_size() as u64, lanes, most),
            options,
            rng: Rng::new(seed),
            counts: vec![0; lanes],
            spans: vec![Span::default(); lanes],
            known: vec![0; lanes],
            forgotten: vec![0; lanes],
            tickets: vec![0; lanes * capacity],
            tree: SumTree::new(lanes * capacity),
            largest: 1.0,
            stale: 0,
            redraws: 0,
            picks: Vec::new(),
            looks: Vec::new(),
            changes: Vec::new(),
            drawn: Vec::new(),
            replay,
        })
    }

    /// The buffer drawn from.
    #[must_use]
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Set beta, 0 to 1.
    pub fn set_beta(&mut self, beta: f64) -> Result<()> {
        check_exponent("beta", beta)?;
        self.options.beta = beta;
        Ok(())
    }

    /// The exponents in use.
    #[must_use]
    pub fn options(&self) -> Priorities {
        self.options
    }

    /// Largest priority so far, which new rows get (before the exponent; 1 at first).
    #[must_use]
    pub fn largest(&self) -> f64 {
        self.largest
    }

    /// Updates that came too late: their row was overwritten, or fell out of the window.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Draws repeated because the row was being overwritten.
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
        self.rng = Rng::from_bytes(state).ok_or_else(|| {
            Error::invalid("sampler state", format!("{} bytes", state.len()), "32 bytes, as read from `state`")
        })?;
        Ok(())
    }

    /// Rows that can be drawn now.
    pub fn available(&mut self) -> Result<u64> {
        self.catch_up()?;
        Ok(self.spans.iter().map(|span| span.len()).sum())
    }

    /// Fill a batch; its size is that of `batch.weights`. The gather is split over `threads` threads.
    ///
    /// The sum of the priorities is cut into as many equal parts as the batch has rows, with one draw in each.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // batch sizes; weights are f32
    pub fn sample(&mut self, batch: PrioritizedBatch<'_>, threads: usize) -> Result<()> {
        let PrioritizedBatch { rows, mut meta, ids, weights } = batch;
        let replay = self.replay.clone();
        let ring = replay.ring()?;
        let (size, row_words) = (weights.len(), ring.row_words());
        if rows.len() != size * row_words
            || ids.len() != size * 3
            || meta.as_ref().is_some_and(|meta| meta.len() != size)
        {
            return Err(Error::invalid(
                "batch",
                format!("rows of {} bytes, ids of {} words for {size} weights", rows.len() * 8, ids.len()),
                format!("rows [batch, {} bytes], meta [batch], ids [batch, 3], weights [batch]", row_words * 8),
            ));
        }
        if threads == 0 {
            return Err(Error::invalid("threads", 0, "at least 1"));
        }
        self.catch_up()?;
        self.check_total()?;
        let part = self.tree.total() / size as f64;
        let mut picks = std::mem::take(&mut self.picks);
        let mut looks = std::mem::take(&mut self.looks);
        looks.clear();
        looks.extend((0..size).map(|i| (part * (i as f64 + self.rng.uniform()), 0)));
        self.tree.find_many(&mut looks);
        picks.clear();
        picks.extend(looks.iter().map(|(_, leaf)| *leaf));
        self.looks = looks;
        self.drawn.clear();
        self.drawn.extend(picks.iter().map(|pick| self.tree.get(*pick)));
        let whole = Batch { rows: &mut *rows, meta: meta.as_deref_mut(), ids: Some(&mut *ids) };
        let capacity = replay.lane_capacity();
        let torn = gather_parallel(&ring, capacity, &picks, whole, threads);
        // A newer row in the slot than the one whose priority was drawn does not count either.
        let newer = (0..size).filter(|&i| ids[3 * i + 2] != self.tickets[picks[i]]);
        let mut again: Vec<usize> =
            torn.iter().copied().chain(newer.filter(|i| torn.binary_search(i).is_err())).collect();
        again.sort_unstable();
        for at in again {
            self.redraw(&ring, at, &mut picks, rows, meta.as_deref_mut(), ids)?;
        }
        self.picks = picks;
        self.weigh(weights);
        Ok(())
    }

    /// Set the priorities of drawn rows from their TD errors (sign does not matter); how many came too late.
    pub fn update_priorities(&mut self, ids: &[u64], errors: &[f32]) -> Result<usize> {
        let (lanes, capacity) = (self.replay.lanes() as u64, self.replay.lane_capacity() as u64);
        if ids.len() != errors.len() * 3 {
            let given = format!("{} id words for {} errors", ids.len(), errors.len());
            return Err(Error::invalid("ids", given, "[batch, 3]: lane, slot, ticket"));
        }
        if let Some(index) = errors.iter().position(|error| !error.is_finite()) {
            return Err(Error::NonFinite { what: "priorities".to_owned(), index });
        }
        if let Some(id) = ids.chunks_exact(3).find(|id| id[0] >= lanes || id[1] >= capacity) {
            return Err(Error::invalid("ids", format!("{id:?}"), "ids as a sample of this buffer gave them"));
        }
        self.catch_up()?;
        let mut stale = 0;
        self.changes.clear();
        for (id, error) in ids.chunks_exact(3).zip(errors) {
            #[allow(clippy::cast_possible_truncation)] // bounded above
            let leaf = (id[0] * capacity + id[1]) as usize;
            if self.tickets[leaf] != id[2] || self.tree.get(leaf) == 0.0 {
                stale += 1;
                continue;
            }
            let priority = f64::from(error.abs()) + self.options.eps;
            self.largest = self.largest.max(priority);
            self.changes.push((leaf, priority.powf(self.options.alpha)));
        }
        self.tree.set_batch(&mut self.changes);
        self.stale += stale as u64;
        Ok(stale)
    }

    /// For a checkpoint: first ticket and the weights (`priority^alpha`, 0 = not drawn) of a lane's rows in the window.
    ///
    /// As of the last draw or update: saving changes nothing, so it does not matter when it happens.
    pub fn weights(&self, lane: usize) -> Result<(u64, Vec<f64>)> {
        self.replay.check_lane(lane)?;
        let ring = self.replay.ring()?;
        let (first, last) = (self.forgotten[lane] + 1, self.known[lane]);
        Ok((first, (first..=last).map(|ticket| self.tree.get(ring.slot(lane, ticket))).collect()))
    }

    /// Take back saved weights for a lane's rows `first`, `first + 1`, ... and the largest priority; how many found their row.
    ///
    /// Tickets are counted anew in a restored buffer: the caller says which row the first weight belongs to. Rows that are
    /// seen for the first time now count as new, with that largest priority.
    pub fn restore_weights(&mut self, lane: usize, first: u64, weights: &[f64], largest: f64) -> Result<usize> {
        self.replay.check_lane(lane)?;
        let fine = |weight: &f64| weight.is_finite() && *weight >= 0.0;
        if let Some(index) = weights.iter().chain([&largest]).position(|weight| !fine(weight)) {
            return Err(Error::NonFinite { what: "saved priorities".to_owned(), index });
        }
        self.largest = self.largest.max(largest);
        self.catch_up()?;
        let replay = self.replay.clone();
        let ring = replay.ring()?;
        let (low, high) = (self.forgotten[lane], self.known[lane]);
        let with_rows = (first..).zip(weights).filter(|(ticket, _)| (low + 1..=high).contains(ticket));
        let changes: Vec<_> = with_rows.map(|(ticket, weight)| (ring.slot(lane, ticket), *weight)).collect();
        self.tree.set_many(changes.iter().copied());
        Ok(changes.len())
    }

    /// Give new rows their weight, and rows that left the window none.
    fn catch_up(&mut self) -> Result<()> {
        let ring = self.replay.ring()?;
        for (lane, count) in self.counts.iter_mut().enumerate() {
            *count = ring.committed(lane);
        }
        self.history.update(&self.counts, &mut self.spans);
        let weight = self.largest.powf(self.options.alpha);
        let capacity = self.replay.lane_capacity() as u64;
        let mut changes = Vec::new();
        for (lane, span) in self.spans.iter_mut().enumerate() {
            // The start of a window that is estimated may go back a little; what was forgotten stays so.
            span.start = span.start.max(self.forgotten[lane]);
            let known = self.known[lane];
            for ticket in (self.forgotten[lane] + 1)..=span.start.min(known) {
                changes.push((ring.slot(lane, ticket), 0.0));
            }
            for ticket in (known.max(span.start).max(span.end.saturating_sub(capacity)) + 1)..=span.end {
                let slot = ring.slot(lane, ticket);
                self.tickets[slot] = ticket;
                changes.push((slot, weight));
            }
            self.forgotten[lane] = span.start;
            self.known[lane] = span.end;
        }
        if changes.len() > self.tree.len() / 8 {
            self.tree.set_many(changes.into_iter());
        } else {
            for (leaf, weight) in changes {
                self.tree.set(leaf, weight);
            }
        }
        Ok(())
    }

    fn check_total(&self) -> Result<()> {
        if self.tree.total() > 0.0 {
            return Ok(());
        }
        Err(Error::Empty("the replay buffer has no row to draw: wait until a sampler has written rows".to_owned()))
    }

    /// Draw row number `at` of the batch again: its slot was claimed or reaped since the catch-up, so it gets weight 0.
    fn redraw(
        &mut self,
        ring: &Ring<'_>,
        at: usize,
        picks: &mut [usize],
        rows: &mut [u64],
        mut meta: Option<&mut [u64]>,
        ids: &mut [u64],
    ) -> Result<()> {
        let (row_words, capacity) = (ring.row_words(), self.replay.lane_capacity());
        for _ in 0..MOST_REDRAWS {
            self.redraws += 1;
            self.tree.set(picks[at], 0.0);
            self.check_total()?;
            picks[at] = self.tree.find(self.rng.uniform() * self.tree.total());
            self.drawn[at] = self.tree.get(picks[at]);
            let one = Batch {
                rows: &mut rows[at * row_words..(at + 1) * row_words],
                meta: meta.as_deref_mut().map(|meta| &mut meta[at..=at]),
                ids: Some(&mut ids[at * 3..at * 3 + 3]),
            };
            let torn = gather_parallel(ring, capacity, &picks[at..=at], one, 1);
            if torn.is_empty() && ids[at * 3 + 2] == self.tickets[picks[at]] {
                return Ok(());
            }
        }
        Err(Error::Empty(format!(
            "no whole row found in {MOST_REDRAWS} draws: the buffer is too small for its writers"
        )))
    }

    /// Importance weights, the largest of the batch being 1: `(p / smallest p)^-beta`.
    #[allow(clippy::cast_possible_truncation)] // weights are f32
    fn weigh(&self, weights: &mut [f32]) {
        let smallest = self.drawn.iter().copied().fold(f64::INFINITY, f64::min);
        for (weight, p) in weights.iter_mut().zip(&self.drawn) {
            *weight = (p / smallest).powf(-self.options.beta) as f32;
        }
    }
}

fn check_exponent(what: &'static str, value: f64) -> Result<()> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(Error::invalid(what, value, "0 to 1")) }
}
