//! Which rows are the newest `buffer_size` of all lanes together.
//!
//! Committed counts say how many rows each lane has, not when they came. A lane whose sampler is gone must age out like
//! any other, so a sampler keeps a short history of (all counts) at past totals and looks up how far each lane was when
//! the total was `total - buffer_size`. Between two entries lanes are taken to have advanced evenly; before the first
//! look the history is one entry, all zero, which makes a late attach assume that every lane grew in proportion to its
//! count.
//!
//! A look at all lanes costs some nanoseconds for each. So with more than [`FEW`] lanes a sampler looks once for every
//! so many rows that it draws, and its window is the older the more lanes there are: by the time that a row for every
//! other lane was drawn.

use std::collections::VecDeque;

use crate::replay::{Replay, Ring, margin};

/// Entries per window, where lanes are few.
const RESOLUTION: usize = 1024;

/// Words of a history, unless its least number of entries takes more.
const WORDS: usize = 1 << 19;
const LEAST_ENTRIES: usize = 16;

/// Lanes that are looked at before every batch.
const FEW: usize = 512;

/// Committed counts of all lanes when their sum was `total`.
#[derive(Debug, Clone)]
struct Entry {
    total: u64,
    counts: Box<[u64]>,
}

/// The part of a lane that may be drawn: rows `start + 1 ..= end` (tickets).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Span {
    /// Tickets up to here are too old.
    pub(super) start: u64,
    /// Last ticket.
    pub(super) end: u64,
}

impl Span {
    pub(super) fn len(self) -> u64 {
        self.end - self.start
    }
}

/// What a sampler knows of the lanes: committed counts, and the rows that may be drawn.
#[derive(Debug)]
pub(super) struct Window {
    history: History,
    counts: Vec<u64>,
    pub(super) spans: Vec<Span>,
    /// Rows drawn since the last look; None before the first.
    drawn: Option<usize>,
}

impl Window {
    pub(super) fn new(replay: &Replay) -> Self {
        let (lanes, capacity) = (replay.lanes(), replay.lane_capacity());
        let most = capacity.saturating_sub(margin(replay.buffer_size().div_ceil(lanes))).max(1) as u64;
        Self {
            history: History::new(replay.buffer_size() as u64, lanes, most),
            counts: vec![0; lanes],
            spans: vec![Span::default(); lanes],
            drawn: None,
        }
    }

    /// Whether to look again before `rows` more are drawn.
    pub(super) fn is_due(&mut self, rows: usize) -> bool {
        let lanes = self.spans.len();
        let due = lanes <= FEW || self.drawn.is_none_or(|drawn| drawn >= lanes / 2);
        self.drawn = Some(if due { rows } else { self.drawn.unwrap_or(0).saturating_add(rows) });
        due
    }

    /// Take a snapshot of the committed counts and the window that they give.
    pub(super) fn look(&mut self, ring: &Ring<'_>) {
        for (lane, count) in self.counts.iter_mut().enumerate() {
            *count = ring.committed(lane);
        }
        self.history.update(&self.counts, &mut self.spans);
    }
}

/// History of committed counts: a bounded number of entries of one word per lane.
#[derive(Debug)]
struct History {
    buffer_size: u64,
    /// Rows between two entries.
    step: u64,
    /// Most rows drawn from one lane.
    most: u64,
    entries: VecDeque<Entry>,
}

impl History {
    fn new(buffer_size: u64, lanes: usize, most: u64) -> Self {
        let origin = Entry { total: 0, counts: vec![0; lanes].into() };
        let step = (buffer_size / RESOLUTION.min(WORDS / lanes).max(LEAST_ENTRIES) as u64).max(1);
        Self { buffer_size, step, most, entries: VecDeque::from([origin]) }
    }

    /// Note the counts of now and give each lane's span. Counts never fall.
    fn update(&mut self, counts: &[u64], spans: &mut [Span]) {
        let total: u64 = counts.iter().sum();
        let target = total.saturating_sub(self.buffer_size);
        // Keep one entry at or before the target: its successor is the first one beyond.
        let mut spare = None;
        while self.entries.get(1).is_some_and(|entry| entry.total <= target) {
            spare = self.entries.pop_front();
        }
        let before = &self.entries[0];
        let (after_total, after) = self.entries.get(1).map_or((total, counts), |entry| (entry.total, &entry.counts));
        // `share` of the rows between the two entries are too old. Lanes get their part by cumulative rounding, so the
        // parts are whole and their sum is exact.
        let share = target.saturating_sub(before.total);
        let between = (after_total - before.total).max(1);
        let narrow = between <= u64::from(u32::MAX); // a short division is several times as fast
        let (mut rows, mut given) = (0, 0);
        for (lane, span) in spans.iter_mut().enumerate() {
            rows += after[lane] - before.counts[lane]; // at most `between`, as is `share`
            #[allow(clippy::cast_possible_truncation)] // at most `share`
            let upto = if narrow {
                rows * share / between
            } else {
                (u128::from(rows) * u128::from(share) / u128::from(between)) as u64
            };
            let start = before.counts[lane] + (upto - given);
            given = upto;
            let end = counts[lane];
            *span = Span { start: start.max(end.saturating_sub(self.most)), end };
        }
        if total >= self.entries[self.entries.len() - 1].total + self.step {
            let mut entry = spare.unwrap_or_else(|| Entry { total: 0, counts: counts.into() });
            entry.total = total;
            entry.counts.copy_from_slice(counts);
            self.entries.push_back(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spans(history: &mut History, counts: &[u64]) -> Vec<(u64, u64)> {
        let mut spans = vec![Span::default(); counts.len()];
        history.update(counts, &mut spans);
        spans.iter().map(|span| (span.start, span.end)).collect()
    }

    #[test]
    fn a_lane_that_stopped_ages_out() {
        let mut history = History::new(10, 2, 12);
        assert_eq!(spans(&mut history, &[0, 0]), [(0, 0), (0, 0)]);
        assert_eq!(spans(&mut history, &[5, 0]), [(0, 5), (0, 0)]);
        assert_eq!(spans(&mut history, &[5, 5]), [(0, 5), (0, 5)]);
        assert_eq!(spans(&mut history, &[5, 8]), [(3, 5), (0, 8)]);
        assert_eq!(spans(&mut history, &[5, 10]), [(5, 5), (0, 10)]);
        assert_eq!(spans(&mut history, &[5, 12]), [(5, 5), (2, 12)]);
    }

    #[test]
    fn without_history_lanes_are_taken_in_proportion() {
        let mut history = History::new(10, 2, 100);
        assert_eq!(spans(&mut history, &[30, 10]), [(22, 30), (8, 10)]);
    }

    #[test]
    fn a_lane_is_bounded_by_its_capacity() {
        let mut history = History::new(10, 2, 6);
        assert_eq!(spans(&mut history, &[30, 0]), [(24, 30), (0, 0)]);
    }

    #[test]
    fn many_lanes_have_a_short_history() {
        for lanes in [1, 100, 1_000, 16_384, 65_535] {
            let mut history = History::new(lanes * 16, usize::try_from(lanes).unwrap(), u64::MAX);
            let mut counts = vec![0; usize::try_from(lanes).unwrap()];
            let mut spans = vec![Span::default(); counts.len()];
            for _ in 0..1_100 {
                counts[0] += lanes / 64 + 1;
                history.update(&counts, &mut spans);
            }
            let words = history.entries.len() * counts.len();
            assert!(words <= 1_200_000 && history.entries.len() >= 16.min(words), "{lanes}: {words} words");
            assert_eq!(spans[0].len(), lanes * 16);
        }
    }

    #[test]
    fn looks_cost_a_row_the_same_at_any_number_of_lanes() {
        let field = crate::schema::Field::new("x", crate::schema::Dtype::U8, &[]).unwrap();
        for lanes in [1, FEW, FEW + 1, 4_096, 65_535] {
            let mut window = Window::new(&Replay::create(std::slice::from_ref(&field), lanes, lanes, 1).unwrap());
            let batches = 2_000;
            let looks = (0..batches).filter(|_| window.is_due(256)).count();
            assert!(lanes > FEW || looks == batches, "{lanes} lanes: {looks} looks");
            assert!(looks * lanes <= 3 * 256 * batches, "{lanes} lanes: {looks} looks for {batches} batches");
            assert!(looks * lanes >= batches.min(lanes), "{lanes} lanes: {looks} looks");
        }
    }

    proptest! {
        /// Observed after every row, the spans are exactly the newest rows; observed rarely, their sum is exact still.
        #[test]
        fn the_window_is_exact(
            lanes in prop::collection::vec(0usize..3, 1..400), size in 1u64..40, every in 1usize..50,
        ) {
            let mut often = History::new(size, 3, u64::MAX);
            let mut rarely = History::new(size, 3, u64::MAX);
            let mut counts = [0u64; 3];
            for (i, lane) in lanes.iter().enumerate() {
                counts[*lane] += 1;
                let mut expected = counts;
                for old in lanes[..=i].iter().rev().take(usize::try_from(size).unwrap()) {
                    expected[*old] -= 1;
                }
                let expected: Vec<_> = expected.into_iter().zip(counts).collect();
                prop_assert_eq!(spans(&mut often, &counts), expected);
                if i % every == 0 {
                    let got = spans(&mut rarely, &counts);
                    prop_assert!(got.iter().all(|(start, end)| start <= end));
                    let sum: u64 = got.iter().map(|(start, end)| end - start).sum();
                    prop_assert_eq!(sum, size.min(i as u64 + 1));
                }
                prop_assert!(often.entries.len() <= 1026);
            }
        }
    }
}
