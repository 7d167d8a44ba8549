//! Stats board: fixed numbers per worker, and a short ring of recent events per worker, read without a message.
//!
//! Each worker has a slot with one writer. A value is the bits of a float64 in one word, so a read is never torn;
//! values of one slot are not a consistent set, and need not be: they are counters and gauges for people. Events are
//! whole records (an episode, an evaluation): a counter says how many were ever pushed, and a reader throws away what
//! the writer may have overtaken meanwhile. A respawned worker goes on in the slot of the one before it.
//!
//! A killed writer leaves at most an unfinished record beyond the counter, which nobody reads. Nothing is ever reaped.

use std::os::fd::BorrowedFd;

use crate::error::{Error, Result};
use crate::kill::kill_point;
use crate::memory::{Access, Header, ReadWord, Segment, Stream};
use crate::schema::{Dtype, Field, PlacedField, check_names};
use crate::sync::{AtomicU64, Ordering, fence};

/// Words of a pair of cache lines: no two slots share one.
const LINE: usize = 16;

/// The board, mapped.
#[derive(Debug)]
pub struct StatsBoard {
    segment: Segment,
    names: Vec<String>,
    layout: Layout,
}

#[derive(Debug, Clone, Copy)]
struct Layout {
    data: usize,
    slots: usize,
    values: usize,
    event_width: usize,
    event_capacity: usize,
}

impl Layout {
    /// Words of one slot: values, event counter, events, each on lines of its own. None on overflow.
    fn slot_words(&self) -> Option<usize> {
        let events = self.event_width.checked_mul(self.event_capacity.checked_add(1)?)?;
        let events = events.checked_next_multiple_of(LINE)?;
        self.values.checked_next_multiple_of(LINE)?.checked_add(LINE)?.checked_add(events)
    }

    fn bytes(&self) -> Option<usize> {
        self.slot_words()?.checked_mul(self.slots)?.checked_mul(8)?.checked_add(self.data)
    }

    /// Records that there are places for: one more than are kept, which may be in the writer's hands.
    fn places(&self) -> usize {
        self.event_capacity + 1
    }

    /// Word of the slot that counts its events.
    fn counter(&self) -> usize {
        self.values.next_multiple_of(LINE)
    }
}

impl StatsBoard {
    /// Create a board with `slots` slots of `names` values (all 0) and rings of `event_capacity` records of
    /// `event_width` numbers.
    pub fn create(
        slots: usize,
        names: &[String],
        event_width: usize,
        event_capacity: usize,
        run_id: u64,
    ) -> Result<Self> {
        for (what, given) in [("slots", slots), ("event_width", event_width), ("event_capacity", event_capacity)] {
            if given == 0 {
                return Err(Error::invalid(what, given, "at least 1"));
            }
        }
        check_names("names", names.iter().map(String::as_str))?;
        let mut fields = Vec::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            fields.push(PlacedField { field: Field::new(name.as_str(), Dtype::F64, &[])?, offset: 8 * i });
        }
        if fields.is_empty() {
            return Err(Error::invalid("names", "none", "at least one name"));
        }
        let params = [slots, names.len(), event_width, event_capacity].map(|value| value as u64);
        let header = Header::new(Stream::Stats, run_id, &params, fields);
        let layout = Layout { data: header.data_offset()?, slots, values: names.len(), event_width, event_capacity };
        let bytes = layout.bytes().ok_or_else(|| Error::invalid("stats board", "its sizes", "less than 2^63 bytes"))?;
        let segment = Segment::create("stats", bytes)?;
        header.write(&segment)?;
        Header::publish(&segment)?;
        Ok(Self { segment, names: names.to_vec(), layout })
    }

    /// Map the board behind a descriptor. One that was opened read-only gives a board that can only be read.
    pub fn attach(fd: BorrowedFd<'_>) -> Result<Self> {
        let segment = Segment::attach(fd, Access::of(fd)?)?;
        let header = Header::read(&segment, Stream::Stats)?;
        let bad = |reason: String| Error::BadSegment { stream: Stream::Stats.name(), reason };
        let mut params = [0; 4];
        for (size, &param) in params.iter_mut().zip(&header.params) {
            *size = usize::try_from(param).ok().filter(|&size| size > 0).ok_or_else(|| bad(format!("size {param}")))?;
        }
        let [slots, values, event_width, event_capacity] = params;
        let layout = Layout { data: header.data_offset()?, slots, values, event_width, event_capacity };
        if values != header.fields.len() || layout.bytes().is_none_or(|bytes| bytes > segment.len()) {
            return Err(bad(format!("its sizes {params:?} do not fit into its {} bytes", segment.len())));
        }
        let names = header.fields.into_iter().map(|placed| placed.field.name).collect();
        Ok(Self { segment, names, layout })
    }

    /// The shared memory.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Names of the values.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.layout.slots
    }

    /// Numbers per event.
    #[must_use]
    pub fn event_width(&self) -> usize {
        self.layout.event_width
    }

    /// Set one value.
    pub fn set(&self, slot: usize, index: usize, value: f64) -> Result<()> {
        self.value(slot, index)?.store(value.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    /// Add to one value. Safe beside another thread that adds to it.
    pub fn add(&self, slot: usize, index: usize, value: f64) -> Result<()> {
        let word = self.value(slot, index)?;
        let mut now = word.load(Ordering::Relaxed);
        loop {
            let sum = (f64::from_bits(now) + value).to_bits();
            match word.compare_exchange_weak(now, sum, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => now = other,
            }
        }
    }

    /// Copy all values into `into`, slot by slot.
    ///
    /// # Panics
    /// When `into` is not slots x names long.
    pub fn read(&self, into: &mut [f64]) -> Result<()> {
        assert_eq!(into.len(), self.layout.slots * self.layout.values);
        for (slot, row) in into.chunks_exact_mut(self.layout.values).enumerate() {
            for (value, word) in row.iter_mut().zip(self.read_slot(slot)?) {
                *value = f64::from_bits(word.load(Ordering::Relaxed));
            }
        }
        Ok(())
    }

    /// Append a record to the ring of a slot; the oldest one goes. One writer per slot.
    pub fn push_event(&self, slot: usize, values: &[f64]) -> Result<()> {
        let (width, places) = (self.layout.event_width, self.layout.places());
        if values.len() != width {
            return Err(Error::invalid("event", format!("{} values", values.len()), format!("{width} values")));
        }
        let words = &self.slot(slot)?[self.layout.counter()..];
        let (counter, events) = (&words[0], &words[LINE..]);
        let count = counter.load(Ordering::Relaxed); // our own, or a dead predecessor's
        // Pairs with the Acquire fence in `events`: a reader that sees one of the stores below also sees `count`, and
        // so knows that this place is being written.
        fence(Ordering::Release);
        let at = place(count, places) * width;
        for (word, value) in events[at..at + width].iter().zip(values) {
            kill_point("stats: in an event");
            word.store(value.to_bits(), Ordering::Relaxed);
        }
        kill_point("stats: event not counted");
        // Pairs with the Acquire load in `events`: who sees the count sees the record.
        counter.store(count.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Append the events number `since`, `since` + 1, ... (0-based) of a slot to `into`; returns the number of the
    /// next.
    ///
    /// Events that were overwritten are left out: fewer records than `next - since` come back then.
    pub fn events(&self, slot: usize, since: u64, into: &mut Vec<f64>) -> Result<u64> {
        let (width, places) = (self.layout.event_width, self.layout.places());
        let words = &self.read_slot(slot)?[self.layout.counter()..];
        let (counter, events) = (&words[0], &words[LINE..]);
        let next = counter.load(Ordering::Acquire); // pairs with the Release store in `push_event`
        let oldest = |count: u64| count.saturating_sub(self.layout.event_capacity as u64);
        let first = since.max(oldest(next));
        let before = into.len();
        for number in first..next {
            let at = place(number, places) * width;
            into.extend(events[at..at + width].iter().map(|word| f64::from_bits(word.load(Ordering::Relaxed))));
        }
        // Pairs with the Release fence in `push_event`.
        fence(Ordering::Acquire);
        let lapped = oldest(counter.load(Ordering::Relaxed)).saturating_sub(first).min(next.saturating_sub(first));
        into.drain(before..before + usize::try_from(lapped).unwrap_or(0) * width);
        Ok(next)
    }

    fn slot(&self, slot: usize) -> Result<&[AtomicU64]> {
        let (offset, words) = self.place_of(slot)?;
        self.segment.words(offset, words)
    }

    fn read_slot(&self, slot: usize) -> Result<&[ReadWord]> {
        let (offset, words) = self.place_of(slot)?;
        self.segment.read_words(offset, words)
    }

    /// Byte offset and words of a slot.
    fn place_of(&self, slot: usize) -> Result<(usize, usize)> {
        if slot >= self.layout.slots {
            return Err(Error::invalid("slot", slot, format!("less than {}", self.layout.slots)));
        }
        let words = self.layout.slot_words().expect("checked when the board was made");
        Ok((self.layout.data + slot * words * 8, words))
    }

    fn value(&self, slot: usize, index: usize) -> Result<&AtomicU64> {
        let words = self.slot(slot)?;
        if index >= self.layout.values {
            return Err(Error::invalid("index", index, format!("less than {}", self.layout.values)));
        }
        Ok(&words[index])
    }
}

fn place(number: u64, places: usize) -> usize {
    usize::try_from(number % places as u64).expect("less than a usize")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    fn board(slots: usize, capacity: usize) -> StatsBoard {
        let names: Vec<String> = (0..5).map(|i| format!("value_{i}")).collect();
        StatsBoard::create(slots, &names, 3, capacity, 7).unwrap()
    }

    #[test]
    fn both_ends_see_the_same_values() {
        let a = board(3, 4);
        let b = StatsBoard::attach(a.segment().as_fd()).unwrap();
        assert_eq!((b.slots(), b.event_width(), b.names()), (3, 3, a.names()));
        a.set(1, 2, 4.5).unwrap();
        b.add(1, 2, 0.25).unwrap();
        b.set(2, 4, f64::NAN).unwrap();
        let mut values = vec![1.0; 15];
        a.read(&mut values).unwrap();
        assert_eq!(values[5 + 2], 4.75);
        assert!(values[14].is_nan());
        assert_eq!(values.iter().filter(|v| **v == 0.0).count(), 13);
    }

    #[test]
    fn a_descriptor_opened_read_only_gives_a_board_to_read() {
        let a = board(2, 4);
        let b = StatsBoard::attach(a.segment().read_only_fd().unwrap().as_fd()).unwrap();
        a.set(1, 2, 4.5).unwrap();
        a.push_event(1, &[1.0, 2.0, 3.0]).unwrap();
        let (mut values, mut events) = (vec![0.0; 10], Vec::new());
        b.read(&mut values).unwrap();
        assert_eq!(values[5 + 2], 4.5);
        assert_eq!((b.events(1, 0, &mut events).unwrap(), events), (1, vec![1.0, 2.0, 3.0]));
        assert!(matches!(b.set(1, 2, 0.0), Err(Error::ReadOnly { .. })));
        assert!(matches!(b.add(1, 2, 0.0), Err(Error::ReadOnly { .. })));
        assert!(matches!(b.push_event(1, &[0.0; 3]), Err(Error::ReadOnly { .. })));
    }

    #[test]
    fn bad_arguments_are_named() {
        let board = board(2, 4);
        assert!(board.set(2, 0, 1.0).unwrap_err().to_string().contains("less than 2"));
        assert!(board.add(0, 5, 1.0).unwrap_err().to_string().contains("less than 5"));
        assert!(board.push_event(0, &[1.0]).unwrap_err().to_string().contains("3 values"));
        assert!(board.events(9, 0, &mut Vec::new()).is_err());
        let twice = ["a".to_owned(), "a".to_owned()];
        assert!(StatsBoard::create(1, &twice, 1, 1, 0).unwrap_err().to_string().contains("\"a\" twice"));
        assert!(StatsBoard::create(1, &[], 1, 1, 0).is_err());
        assert!(StatsBoard::create(0, &twice[..1], 1, 1, 0).is_err());
        assert!(StatsBoard::create(usize::MAX, &twice[..1], 1, 1, 0).is_err());
        let other = Segment::create("other", 4096).unwrap();
        assert!(StatsBoard::attach(other.as_fd()).is_err());
    }

    #[test]
    fn concurrent_additions_are_all_counted() {
        let board = board(1, 4);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..10_000).for_each(|_| board.add(0, 1, 1.0).unwrap()));
            }
        });
        let mut values = vec![0.0; 5];
        board.read(&mut values).unwrap();
        assert_eq!(values[1], 30_000.0);
    }

    #[test]
    fn a_reader_never_sees_a_torn_event() {
        let board = board(1, 8);
        let last = 60_000_u64;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..last).for_each(|i| board.push_event(0, &[i as f64; 3]).unwrap()));
            let (mut since, mut seen) = (0, 0_u64);
            while since < last {
                let mut events = Vec::new();
                let next = board.events(0, since, &mut events).unwrap();
                let count = events.len() as u64 / 3;
                assert!(count <= next - since);
                for (i, event) in events.chunks_exact(3).enumerate() {
                    // What is left is the newest part, in order, each record of one piece.
                    let expected = next - count + i as u64;
                    assert_eq!(event, [expected as f64; 3]);
                }
                seen += count;
                since = next;
            }
            assert!(seen > 0 && seen <= last);
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        /// Against a plain list: a reader that comes often enough misses nothing, a late one gets the newest.
        #[test]
        fn events_follow_a_list(capacity in 1_usize..6, steps in prop::collection::vec(0_usize..9, 1..12)) {
            let board = board(2, capacity);
            let (mut list, mut since) = (Vec::new(), 0_u64);
            for pushes in steps {
                for _ in 0..pushes {
                    let value = list.len() as f64;
                    list.push(value);
                    board.push_event(1, &[value; 3]).unwrap();
                }
                let mut events = Vec::new();
                let next = board.events(1, since, &mut events).unwrap();
                prop_assert_eq!(next, list.len() as u64);
                let count = pushes.min(capacity);
                let expected: Vec<f64> = list[list.len() - count..].iter().flat_map(|v| [*v; 3]).collect();
                prop_assert_eq!(events, expected);
                since = next;
            }
        }
    }
}
