//! The lane protocol on shared words.
//!
//! A lane is a ring of slots. A slot has a *mark* (stamp and meta word, one cache line) and a row. The stamp is
//! `ticket << 11 | writer << 1 | writing`, 0 for an empty slot; the ticket is the 1-based count of rows ever
//! committed to the lane and says whether a slot holds what one looks for.
//!
//! A writer may be killed between any two of its stores; `reap` looks at one slot, that of ticket `committed + 1`:
//!
//! | killed | found | done |
//! |---|---|---|
//! | before the claim | that slot's old row | nothing |
//! | claimed, row perhaps half written | odd stamp of the dead | slot emptied, ticket used again |
//! | row committed, count not | even stamp of that ticket | the count is raised: the row exists |
//! | count stored | the next slot's old row | nothing |

use crate::error::{Error, Result};
use crate::kill::kill_point;
use crate::memory::words;
use crate::owner::WorkerId;
use crate::sync::{AtomicU64, Ordering, fence};

/// Words of a lane's head: owner and count on a pair of cache lines of their own (adjacent lines are fetched together).
pub const HEAD_WORDS: usize = 16;
const OWNER: usize = 0;
const COMMITTED: usize = 1;

const EMPTY: u64 = 0;
const WRITING: u64 = 1;
const TICKET_SHIFT: u32 = 11;
const WRITER_MASK: u64 = (1 << 10) - 1;

/// The episode ended in a terminal state: no bootstrap beyond this row.
pub const FLAG_TERMINATED: u16 = 1;
/// The episode was cut after this row.
pub const FLAG_TRUNCATED: u16 = 2;
/// First row of a sequence.
pub const FLAG_FIRST: u16 = 4;

/// What travels beside a row, in one word: parameter version (32 bits), env slot (16), flags (16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Version of the parameters that chose the action, its low half: how far it is behind another one is their
    /// difference modulo 2^32.
    pub version: u32,
    /// Environment slot.
    pub env: u16,
    /// `FLAG_*` bits.
    pub flags: u16,
}

impl Meta {
    /// As stored.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.version) << 32 | u64::from(self.env) << 16 | u64::from(self.flags)
    }

    /// From the stored word.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // takes the parts
    pub fn from_word(word: u64) -> Self {
        Self { version: (word >> 32) as u32, env: (word >> 16) as u16, flags: word as u16 }
    }
}

/// Stamp and meta of a row that was read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    stamp: u64,
    /// Meta word.
    pub meta: u64,
}

impl Mark {
    /// The row's ticket in its lane, from 1.
    #[must_use]
    pub fn ticket(self) -> u64 {
        self.stamp >> TICKET_SHIFT
    }

    /// Worker that wrote it.
    #[must_use]
    pub fn writer(self) -> u64 {
        self.stamp >> 1 & WRITER_MASK
    }
}

fn stamp(ticket: u64, writer: WorkerId, writing: u64) -> u64 {
    ticket << TICKET_SHIFT | writer.get() << 1 | writing
}

/// All lanes of a buffer, as words of any storage (a mapping, the heap).
#[derive(Debug, Clone, Copy)]
pub struct Ring<'a> {
    heads: &'a [AtomicU64],
    marks: &'a [AtomicU64],
    rows: &'a [AtomicU64],
    capacity: usize,
    row_words: usize,
}

impl<'a> Ring<'a> {
    /// View words as lanes of `capacity` slots. Panics when the lengths do not fit together.
    #[must_use]
    pub fn new(heads: &'a [AtomicU64], marks: &'a [AtomicU64], rows: &'a [AtomicU64], capacity: usize) -> Self {
        let slots = heads.len() / HEAD_WORDS * capacity;
        assert!(slots > 0 && heads.len().is_multiple_of(HEAD_WORDS), "heads of a ring");
        assert_eq!(marks.len(), slots * 2, "marks of a ring");
        assert_eq!(rows.len() % slots, 0, "rows of a ring");
        Self { heads, marks, rows, capacity, row_words: rows.len() / slots }
    }

    /// Words per row.
    #[must_use]
    pub fn row_words(&self) -> usize {
        self.row_words
    }

    /// Index of the slot of a ticket, over all lanes.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // 64-bit machines only
    pub fn slot(&self, lane: usize, ticket: u64) -> usize {
        lane * self.capacity + (ticket.wrapping_sub(1) % self.capacity as u64) as usize
    }

    fn head(&self, lane: usize, word: usize) -> &'a AtomicU64 {
        &self.heads[lane * HEAD_WORDS + word]
    }

    /// Stamp and meta words of a slot, as they are now.
    #[inline]
    #[must_use]
    pub fn mark(&self, slot: usize) -> &'a [AtomicU64] {
        &self.marks[slot * 2..slot * 2 + 2]
    }

    /// Row words of a slot, as they are now.
    #[inline]
    #[must_use]
    pub fn row(&self, slot: usize) -> &'a [AtomicU64] {
        &self.rows[slot * self.row_words..(slot + 1) * self.row_words]
    }

    /// Worker id of the owner, 0 for none.
    #[must_use]
    pub fn owner(&self, lane: usize) -> u64 {
        self.head(lane, OWNER).load(Ordering::Relaxed)
    }

    /// Rows ever committed to the lane.
    #[inline]
    #[must_use]
    pub fn committed(&self, lane: usize) -> u64 {
        // Acquire, pairs with the Release stores in `append` and `reap`: the rows up to this count are visible.
        self.head(lane, COMMITTED).load(Ordering::Acquire)
    }

    /// Become the owner of a lane that nobody owns.
    pub fn acquire(&self, lane: usize, worker: WorkerId) -> Result<()> {
        // Acquire, pairs with the Release in `release` and `reap`: the count and the emptied slot are visible.
        self.head(lane, OWNER)
            .compare_exchange(0, worker.get(), Ordering::Acquire, Ordering::Relaxed)
            .map(drop)
            .map_err(|owner| Error::Owned { what: format!("replay lane {lane}"), worker: worker.get(), owner })
    }

    /// Give a lane back. Without effect when it is not `worker`'s (any more).
    pub fn release(&self, lane: usize, worker: WorkerId) {
        // Release, pairs with the Acquire in `acquire`.
        let _ = self.head(lane, OWNER).compare_exchange(worker.get(), 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Append a row to a lane that `worker` owns; its ticket. One thread per lane.
    ///
    /// The fence makes this a seqlock writer: a reader that saw any of the row's words sees the odd stamp (or a later
    /// one) in its second look.
    pub fn append(&self, lane: usize, worker: WorkerId, meta: Meta, row: &[u64]) -> Result<u64> {
        let lost =
            || Error::LeaseLost { what: format!("replay lane {lane}"), worker: worker.get(), owner: self.owner(lane) };
        if self.owner(lane) != worker.get() {
            return Err(lost());
        }
        // Relaxed: only the owner stores it, and `acquire` has seen its predecessor's.
        let ticket = self.head(lane, COMMITTED).load(Ordering::Relaxed) + 1;
        let slot = self.slot(lane, ticket);
        let mark = self.mark(slot);
        let old = mark[0].load(Ordering::Relaxed);
        if old & WRITING != 0 || old >> TICKET_SHIFT >= ticket {
            return Err(lost()); // somebody else writes this lane
        }
        kill_point("ring: before the claim");
        // The CAS can fail only if somebody else took the lane. Acquire keeps the row's stores behind it; they are kept
        // behind it for readers by the fence, which pairs with the Acquire fence in `read`.
        mark[0]
            .compare_exchange(old, stamp(ticket, worker, WRITING), Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| lost())?;
        fence(Ordering::Release);
        kill_point("ring: claimed");
        mark[1].store(meta.word(), Ordering::Relaxed);
        let (half, rest) = self.row(slot).split_at(self.row_words / 2);
        words::store(&row[..half.len()], half);
        kill_point("ring: half a row");
        words::store(&row[half.len()..], rest);
        kill_point("ring: written");
        // Release, pairs with the Acquire load of the stamp in `read`: a reader of this stamp reads this row. It fails
        // when the lane was reaped meanwhile: fenced off.
        mark[0]
            .compare_exchange(
                stamp(ticket, worker, WRITING),
                stamp(ticket, worker, 0),
                Ordering::Release,
                Ordering::Relaxed,
            )
            .map_err(|_| lost())?;
        kill_point("ring: committed, not counted");
        // Release, pairs with `committed`.
        self.head(lane, COMMITTED).store(ticket, Ordering::Release);
        kill_point("ring: counted");
        Ok(ticket)
    }

    /// Release the lane if `dead` owned it; whether it did. O(1), and may itself be cut short and run again.
    pub fn reap(&self, lane: usize, dead: WorkerId) -> bool {
        if self.owner(lane) != dead.get() {
            return false;
        }
        // Plain loads would do: the kernel orders everything the dead one stored before the proof of its death.
        let ticket = self.committed(lane) + 1;
        let mark = &self.mark(self.slot(lane, ticket))[0];
        let found = mark.load(Ordering::Acquire);
        if found == stamp(ticket, dead, WRITING) {
            let _ = mark.compare_exchange(found, EMPTY, Ordering::Release, Ordering::Relaxed);
        } else if found == stamp(ticket, dead, 0) {
            // Release, pairs with `committed`: hands the dead one's row on.
            self.head(lane, COMMITTED).store(ticket, Ordering::Release);
        }
        kill_point("ring: reaped, not released");
        self.release(lane, dead);
        true
    }

    /// Copy the row of a slot out if it is whole: neither empty nor touched during the copy.
    #[inline]
    pub fn read(&self, slot: usize, into: &mut [u64]) -> Option<Mark> {
        let mark = self.mark(slot);
        // Acquire, pairs with the Release CAS at the end of `append`.
        let stamp = mark[0].load(Ordering::Acquire);
        if stamp == EMPTY || stamp & WRITING != 0 {
            return None;
        }
        let meta = mark[1].load(Ordering::Relaxed);
        words::load(self.row(slot), into);
        // Acquire, pairs with the Release fence in `append`: if any word above came from a later writer, the load below
        // gives that writer's stamp or a later one.
        fence(Ordering::Acquire);
        (mark[0].load(Ordering::Relaxed) == stamp).then_some(Mark { stamp, meta })
    }

    /// Hint that a slot is read soon: its mark and the beginning of its row.
    #[inline]
    pub fn prefetch(&self, slot: usize) {
        const LINE: usize = 8; // words
        const MOST: usize = 16; // lines; the hardware follows a longer row by itself
        words::prefetch(&self.marks[slot * 2]);
        for word in self.row(slot).iter().step_by(LINE).take(MOST) {
            words::prefetch(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kill;

    const LANES: usize = 2;
    const CAPACITY: usize = 4;
    const WORDS: usize = 8;

    struct Heap {
        heads: Vec<AtomicU64>,
        marks: Vec<AtomicU64>,
        rows: Vec<AtomicU64>,
    }

    impl Heap {
        fn new() -> Self {
            let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
            let slots = LANES * CAPACITY;
            Self { heads: zeros(LANES * HEAD_WORDS), marks: zeros(slots * 2), rows: zeros(slots * WORDS) }
        }

        fn ring(&self) -> Ring<'_> {
            Ring::new(&self.heads, &self.marks, &self.rows, CAPACITY)
        }
    }

    fn id(worker: u64) -> WorkerId {
        WorkerId::new(worker).unwrap()
    }

    const META: Meta = Meta { version: 7, env: 1, flags: FLAG_FIRST };

    fn read(ring: &Ring<'_>, lane: usize, ticket: u64) -> Option<(u64, [u64; WORDS])> {
        let mut row = [0; WORDS];
        ring.read(ring.slot(lane, ticket), &mut row).map(|mark| (mark.ticket(), row))
    }

    #[test]
    fn meta_round_trips() {
        let meta = Meta { version: u32::MAX - 1, env: 65_534, flags: 5 };
        assert_eq!(Meta::from_word(meta.word()), meta);
        assert_eq!(META.word(), 7 << 32 | 1 << 16 | 4);
    }

    #[test]
    fn killed_at_every_point_and_reaped() {
        // The writer is killed at each of its points, with the ring empty, half full and wrapped; then reaped; then a
        // successor goes on. No ticket is lost or used twice, and every committed row is whole.
        let mut seen = std::collections::BTreeSet::new();
        for before in [0, 2, CAPACITY as u64, 11] {
            for point in 0..10 {
                let heap = Heap::new();
                let ring = heap.ring();
                ring.acquire(1, id(3)).unwrap();
                for ticket in 1..=before {
                    assert_eq!(ring.append(1, id(3), META, &[ticket; WORDS]).unwrap(), ticket);
                }
                let dying = before + 1;
                let killed = kill::run(point, || ring.append(1, id(3), META, &[dying; WORDS]));
                let Err(name) = killed else { break };
                seen.insert(name);
                assert!(ring.acquire(1, id(4)).is_err(), "a dead owner's lane is not free before reaping");
                if point % 2 == 0 {
                    // The reaper is killed as well, and the next one repeats.
                    kill::run(0, || ring.reap(1, id(3))).unwrap_err();
                }
                assert!(ring.reap(1, id(3)));
                assert!(!ring.reap(1, id(3)));
                let committed = ring.committed(1);
                let expected = if name.contains("committed") || name.contains("counted") { dying } else { before };
                assert_eq!(committed, expected, "{name}");
                ring.acquire(1, id(4)).unwrap();
                assert_eq!(ring.append(1, id(4), META, &[committed + 1; WORDS]).unwrap(), committed + 1);
                for ticket in (committed + 2).saturating_sub(CAPACITY as u64).max(1)..=committed + 1 {
                    assert_eq!(read(&ring, 1, ticket), Some((ticket, [ticket; WORDS])), "{name}");
                }
            }
        }
        assert_eq!(seen.len(), 6, "{seen:?}");
    }

    #[test]
    fn a_fenced_writer_is_told() {
        let heap = Heap::new();
        let ring = heap.ring();
        ring.acquire(0, id(3)).unwrap();
        ring.append(0, id(3), META, &[1; WORDS]).unwrap();
        assert!(ring.reap(0, id(3)));
        assert!(matches!(ring.append(0, id(3), META, &[2; WORDS]), Err(Error::LeaseLost { owner: 0, .. })));
        ring.acquire(0, id(4)).unwrap();
        assert!(matches!(ring.append(0, id(3), META, &[2; WORDS]), Err(Error::LeaseLost { owner: 4, .. })));
        ring.release(0, id(3));
        assert_eq!(ring.owner(0), 4, "a release by a former owner has no effect");
    }

    #[test]
    fn a_slot_being_written_is_not_read() {
        let heap = Heap::new();
        let ring = heap.ring();
        ring.acquire(0, id(3)).unwrap();
        for _ in 0..CAPACITY {
            ring.append(0, id(3), META, &[1; WORDS]).unwrap();
        }
        assert_eq!(kill::run(2, || ring.append(0, id(3), META, &[2; WORDS])).unwrap_err(), "ring: half a row");
        assert_eq!(read(&ring, 0, 5), None);
        assert!(ring.reap(0, id(3)));
        assert_eq!(read(&ring, 0, 5), None, "emptied");
        assert_eq!(ring.committed(0), CAPACITY as u64);
    }
}
