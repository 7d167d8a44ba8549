//! Proportional prioritised sampling (Schaul et al., 2016, arXiv 1511.05952, section 3.3 and 3.4).
//!
//! A row is drawn with probability `p^alpha / sum p^alpha` where `p = |TD error| + eps`; its importance weight is
//! `(N P)^-beta`, divided by the largest of the batch (so N cancels). New rows get the largest priority so far.
//!
//! The sums are private to the sampler, which catches up with the lanes' committed counts before each batch. What is
//! overwritten, reaped or too old for the window has weight 0. A lane's leaves go round like its slots, but may begin
//! elsewhere: which row is drawn depends on the order of the leaves, and a resumed run, whose buffer counts its rows
//! anew, has to find them in the same order.

use crate::error::{Error, Result};
use crate::policy::Rng;
use crate::replay::sampler::{Batch, gather_parallel};
use crate::replay::sum_tree::SumTree;
use crate::replay::window::{Span, Window};
use crate::replay::{Replay, Ring};

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

/// What a lane's rows weigh (`priority^alpha`, 0 = not drawn), for a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneWeights {
    /// Ticket of the first row.
    pub first: u64,
    /// Place of the first row among the lane's leaves, which go round; draws depend on it.
    pub position: usize,
    /// Of the rows from the first on.
    pub weights: Vec<f64>,
}

/// Draws rows in proportion to their priorities from the newest `buffer_size` rows of all lanes.
#[derive(Debug)]
pub struct PrioritizedSampler {
    replay: Replay,
    options: Priorities,
    rng: Rng,
    window: Window,
    /// Last ticket per lane that has a place in the tree.
    known: Vec<u64>,
    /// Tickets per lane up to here have weight 0 again: too old.
    forgotten: Vec<u64>,
    /// Slot per lane of its last known ticket.
    newest: Vec<usize>,
    /// Leaf per lane, counted from its first, of its first slot.
    shift: Vec<usize>,
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
        Ok(Self {
            window: Window::new(&replay),
            options,
            rng: Rng::new(seed),
            known: vec![0; lanes],
            forgotten: vec![0; lanes],
            newest: vec![0; lanes],
            shift: vec![0; lanes],
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
        self.rng = Rng::from_bytes(state)?;
        Ok(())
    }

    /// Rows that can be drawn now.
    pub fn available(&mut self) -> Result<u64> {
        self.catch_up()?;
        Ok(self.window.spans.iter().map(|span| span.len()).sum())
    }

    /// Fill a batch; its size is that of `batch.weights`. The gather is split over up to `threads` threads, where that
    /// pays.
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
        if self.window.is_due(size) || self.tree.total() <= 0.0 {
            self.catch_up()?;
        }
        self.check_total()?;
        let part = self.tree.total() / size as f64;
        let mut picks = std::mem::take(&mut self.picks);
        let mut looks = std::mem::take(&mut self.looks);
        looks.clear();
        looks.extend((0..size).map(|i| (part * (i as f64 + self.rng.uniform()), 0)));
        self.tree.find_many(&mut looks);
        self.drawn.clear();
        picks.clear();
        for (weight, leaf) in &looks {
            self.drawn.push(*weight);
            picks.push(self.slot_of(*leaf));
        }
        self.looks = looks;
        let whole = Batch { rows: &mut *rows, meta: meta.as_deref_mut(), ids: Some(&mut *ids) };
        let torn = gather_parallel(&ring, replay.lane_capacity(), &picks, whole, threads);
        // A newer row in the slot than the one whose priority was drawn does not count either.
        let newer = (0..size).filter(|&i| !self.knows(&ids[3 * i..3 * i + 3]));
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
        if self.window.is_due(0) {
            self.catch_up()?;
        }
        let mut stale = 0;
        self.changes.clear();
        for (id, error) in ids.chunks_exact(3).zip(errors) {
            #[allow(clippy::cast_possible_truncation)] // bounded above
            let leaf = self.leaf(id[0] as usize, id[1] as usize);
            if !self.knows(id) || self.tree.get(leaf) == 0.0 {
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

    /// For a checkpoint: the weights of a lane's rows in the window.
    ///
    /// As of the last draw or update: saving changes nothing, so it does not matter when it happens.
    pub fn weights(&self, lane: usize) -> Result<LaneWeights> {
        self.replay.check_lane(lane)?;
        let (first, last) = (self.forgotten[lane] + 1, self.known[lane]);
        let leaves = (first..=last).map(|ticket| self.leaf(lane, self.slot_in_lane(ticket)));
        let weights = leaves.map(|leaf| self.tree.get(leaf)).collect();
        let position = self.leaf(lane, self.slot_in_lane(first)) - lane * self.replay.lane_capacity();
        Ok(LaneWeights { first, position, weights })
    }

    /// Take back saved weights of a lane and the largest priority; how many found their row.
    ///
    /// Tickets are counted anew in a restored buffer: the caller says which row the first weight belongs to. Rows that
    /// are seen for the first time now count as new, with that largest priority.
    pub fn restore_weights(&mut self, lane: usize, saved: &LaneWeights, largest: f64) -> Result<usize> {
        self.replay.check_lane(lane)?;
        let fine = |weight: &f64| weight.is_finite() && *weight >= 0.0;
        if let Some(index) = saved.weights.iter().chain([&largest]).position(|weight| !fine(weight)) {
            return Err(Error::NonFinite { what: "saved priorities".to_owned(), index });
        }
        if saved.first == 0 {
            return Err(Error::invalid("first", 0, "a ticket from 1 on"));
        }
        self.largest = self.largest.max(largest);
        self.turn(lane, saved.first, saved.position);
        if self.known[lane] != self.replay.ring()?.committed(lane) {
            self.catch_up()?; // of all lanes: the calls for the others find theirs known
        }
        let (low, high) = (self.forgotten[lane], self.known[lane]);
        let with_rows = (saved.first..).zip(&saved.weights).filter(|(ticket, _)| (low + 1..=high).contains(ticket));
        let mut changes: Vec<_> =
            with_rows.map(|(ticket, weight)| (self.leaf(lane, self.slot_in_lane(ticket)), *weight)).collect();
        let count = changes.len();
        self.tree.set_batch(&mut changes);
        Ok(count)
    }

    /// Let the row `ticket` of a lane have the leaf at `position` (modulo the capacity), and all others follow on.
    fn turn(&mut self, lane: usize, ticket: u64, position: usize) {
        let capacity = self.replay.lane_capacity();
        let shift = (position % capacity + capacity - self.slot_in_lane(ticket)) % capacity;
        let by = (shift + capacity - self.shift[lane]) % capacity;
        let first = lane * capacity;
        let mut weights: Vec<_> = (first..first + capacity).map(|leaf| self.tree.get(leaf)).collect();
        weights.rotate_right(by);
        self.tree.set_batch(&mut (first..).zip(weights).collect());
        self.shift[lane] = shift;
    }

    #[allow(clippy::cast_possible_truncation)] // slots are usize
    fn slot_in_lane(&self, ticket: u64) -> usize {
        (ticket.wrapping_sub(1) % self.replay.lane_capacity() as u64) as usize
    }

    /// Leaf of a lane's slot.
    #[inline]
    fn leaf(&self, lane: usize, slot: usize) -> usize {
        let capacity = self.replay.lane_capacity();
        let turned = slot + self.shift[lane];
        lane * capacity + if turned < capacity { turned } else { turned - capacity }
    }

    /// Slot of a leaf, over all lanes: the inverse of [`Self::leaf`].
    #[inline]
    fn slot_of(&self, leaf: usize) -> usize {
        let capacity = self.replay.lane_capacity();
        let lane = leaf / capacity;
        let shift = self.shift[lane];
        let wrapped = if leaf - lane * capacity < shift { leaf + capacity } else { leaf };
        wrapped - shift
    }

    /// Whether a row (lane, slot, ticket) is the newest of its slot that the tree knows of.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // as they came out of a sample, or were checked
    fn knows(&self, id: &[u64]) -> bool {
        let (lane, slot, ticket) = (id[0] as usize, id[1] as usize, id[2]);
        let newest = self.newest[lane];
        let age = if slot <= newest { newest - slot } else { newest + self.replay.lane_capacity() - slot };
        ticket.wrapping_add(age as u64) == self.known[lane]
    }

    /// Give new rows their weight, and rows that left the window none.
    fn catch_up(&mut self) -> Result<()> {
        let ring = self.replay.ring()?;
        self.window.look(&ring);
        let weight = self.largest.powf(self.options.alpha);
        let capacity = self.replay.lane_capacity() as u64;
        let mut changes = std::mem::take(&mut self.changes);
        changes.clear();
        for lane in 0..self.known.len() {
            let span = &mut self.window.spans[lane];
            // The start of a window that is estimated may go back a little; what was forgotten stays so.
            span.start = span.start.max(self.forgotten[lane]);
            let (known, Span { start, end }) = (self.known[lane], *span);
            let old = (self.forgotten[lane] + 1)..=start.min(known);
            let new = (known.max(start).max(end.saturating_sub(capacity)) + 1)..=end;
            changes.extend(old.map(|ticket| (self.leaf(lane, self.slot_in_lane(ticket)), 0.0)));
            changes.extend(new.map(|ticket| (self.leaf(lane, self.slot_in_lane(ticket)), weight)));
            self.forgotten[lane] = start;
            self.known[lane] = end;
            self.newest[lane] = self.slot_in_lane(end);
        }
        self.tree.set_batch(&mut changes);
        self.changes = changes;
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
            self.tree.set(self.looks[at].1, 0.0);
            self.check_total()?;
            let leaf = self.tree.find(self.rng.uniform() * self.tree.total());
            self.looks[at] = (self.tree.get(leaf), leaf);
            self.drawn[at] = self.looks[at].0;
            picks[at] = self.slot_of(leaf);
            let one = Batch {
                rows: &mut rows[at * row_words..(at + 1) * row_words],
                meta: meta.as_deref_mut().map(|meta| &mut meta[at..=at]),
                ids: Some(&mut ids[at * 3..at * 3 + 3]),
            };
            let torn = gather_parallel(ring, capacity, &picks[at..=at], one, 1);
            if torn.is_empty() && self.knows(&ids[at * 3..at * 3 + 3]) {
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
