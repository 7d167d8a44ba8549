//! Rows of each lane in the order they were written, for instance to mirror them into the memory of a device.

use crate::error::{Error, Result};
use crate::replay::{Replay, margin};
use crate::sync::Ordering;

/// Follows every lane with a cursor. Private to one process; it takes nothing from the buffer, so any number may
/// follow.
#[derive(Debug)]
pub struct Tail {
    replay: Replay,
    /// Next ticket per lane.
    cursors: Vec<u64>,
    lapped: u64,
    lost: u64,
}

impl Tail {
    pub(super) fn new(replay: Replay) -> Self {
        let cursors = vec![1; replay.lanes()];
        Self { replay, cursors, lapped: 0, lost: 0 }
    }

    /// The buffer followed.
    #[must_use]
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Next ticket of each lane.
    #[must_use]
    pub fn cursors(&self) -> &[u64] {
        &self.cursors
    }

    /// Go on from `ticket` (1 or later) of a lane.
    pub fn seek(&mut self, lane: usize, ticket: u64) -> Result<()> {
        self.replay.check_lane(lane)?;
        if ticket == 0 {
            return Err(Error::invalid("ticket", 0, "a ticket from 1 on"));
        }
        self.cursors[lane] = ticket;
        Ok(())
    }

    /// Rows skipped because the writers were faster by more than a lane's capacity.
    #[must_use]
    pub fn lapped(&self) -> u64 {
        self.lapped
    }

    /// Rows skipped because a writer died while it was overwriting them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Copy the next rows of a lane; how many. Never waits; fewer than asked for when the writers have no more.
    ///
    /// `tickets` says which rows they are: they ascend, with gaps where rows were overwritten before they were read.
    pub fn read(&mut self, lane: usize, rows: &mut [u64], meta: &mut [u64], tickets: &mut [u64]) -> Result<usize> {
        self.replay.check_lane(lane)?;
        self.replay.check_rows(rows.len(), meta.len())?;
        if tickets.len() != meta.len() {
            let given = format!("{} words for {} rows", tickets.len(), meta.len());
            return Err(Error::invalid("tickets", given, "one word per row"));
        }
        let ring = self.replay.ring()?;
        let capacity = self.replay.lane_capacity() as u64;
        let back =
            capacity - (margin(self.replay.buffer_size().div_ceil(self.replay.lanes())) as u64).min(capacity - 1);
        let cursor = &mut self.cursors[lane];
        let mut committed = ring.committed(lane);
        let mut done = 0;
        for row in rows.chunks_exact_mut(ring.row_words()) {
            loop {
                if *cursor > committed {
                    committed = ring.committed(lane);
                    if *cursor > committed {
                        return Ok(done);
                    }
                }
                let slot = ring.slot(lane, *cursor);
                match ring.read(slot, row) {
                    Some(mark) if mark.ticket() == *cursor => {
                        (meta[done], tickets[done]) = (mark.meta, *cursor);
                        break;
                    }
                    // Empty at or below the count: the writer of a later row died here and was reaped.
                    None if ring.mark(slot)[0].load(Ordering::Relaxed) == 0 => {
                        self.lost += 1;
                        *cursor += 1;
                    }
                    _ => {
                        // A later row, or one being written: lapped. Go on a little after the oldest that may be left.
                        committed = ring.committed(lane);
                        let next = (committed.saturating_sub(back) + 1).max(*cursor + 1);
                        self.lapped += next - *cursor;
                        *cursor = next;
                    }
                }
            }
            *cursor += 1;
            done += 1;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kill;
    use crate::owner::WorkerId;
    use crate::replay::Meta;
    use crate::schema::{Dtype, Field};

    #[test]
    fn a_row_lost_to_a_kill_is_counted_and_passed() {
        let replay = Replay::create(&[Field::new("x", Dtype::U64, &[8]).unwrap()], 6, 1, 1).unwrap();
        let (ring, capacity) = (replay.ring().unwrap(), replay.lane_capacity() as u64);
        let (dead, next) = (WorkerId::new(1).unwrap(), WorkerId::new(2).unwrap());
        let meta = Meta { version: 0, env: 0, flags: 0 };
        ring.acquire(0, dead).unwrap();
        for ticket in 1..=capacity {
            ring.append(0, dead, meta, &[ticket; 8]).unwrap();
        }
        // Killed while it overwrites row 1; after the reaping that slot is empty.
        kill::run(2, || ring.append(0, dead, meta, &[9; 8])).unwrap_err();
        let mut tail = replay.tail();
        let read = |tail: &mut Tail, most: usize| {
            let (mut rows, mut meta, mut tickets) = (vec![0; most * 8], vec![0; most], vec![0; most]);
            let count = tail.read(0, &mut rows, &mut meta, &mut tickets).unwrap();
            assert!(rows.chunks_exact(8).zip(&tickets).take(count).all(|(row, ticket)| row == [*ticket; 8]));
            tickets.truncate(count);
            tickets
        };
        assert!(ring.reap(0, dead));
        let most = usize::try_from(capacity).unwrap();
        assert_eq!(read(&mut tail, most), (2..=capacity).collect::<Vec<_>>());
        assert_eq!((tail.lost(), tail.lapped()), (1, 0));
        ring.acquire(0, next).unwrap();
        ring.append(0, next, meta, &[capacity + 1; 8]).unwrap();
        assert_eq!(read(&mut tail, most), [capacity + 1]);
        // Overtaken by a whole lap, and the writer stops in the middle of a row.
        for ticket in capacity + 2..=3 * capacity {
            ring.append(0, next, meta, &[ticket; 8]).unwrap();
        }
        kill::run(2, || ring.append(0, next, meta, &[9; 8])).unwrap_err();
        let tickets = read(&mut tail, most);
        assert_eq!(*tickets.last().unwrap(), 3 * capacity);
        assert_eq!(tickets[0] - (capacity + 2), tail.lapped());
        assert_eq!(tail.lost(), 1);
    }
}
