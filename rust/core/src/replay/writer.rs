//! The writing end of a replay buffer.

use crate::error::{Error, Result};
use crate::owner::WorkerId;
use crate::replay::ring::{FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED, Meta};
use crate::replay::{NAME, Replay};

/// Owner of some lanes; gives them back when dropped.
#[derive(Debug)]
pub struct Writer {
    replay: Replay,
    worker: WorkerId,
    /// Lanes owned, with whether the next row is the first of a sequence.
    lanes: Vec<(usize, bool)>,
    /// Place in `lanes` of each lane from the first one owned on, plus 1; 0 for a lane that is not owned.
    places: Vec<u32>,
    first: usize,
    closed: bool,
}

impl Writer {
    pub(super) fn new(replay: Replay, lanes: &[usize], worker: WorkerId) -> Result<Self> {
        for lane in lanes {
            replay.check_lane(*lane)?;
        }
        let (first, last) = (lanes.iter().min().copied().unwrap_or(0), lanes.iter().max().copied().unwrap_or(0));
        let (owned, places) = (Vec::with_capacity(lanes.len()), vec![0; last - first + 1]);
        let mut writer = Self { replay, worker, lanes: owned, places, first, closed: false };
        for lane in lanes {
            writer.replay.ring()?.acquire(*lane, worker)?; // on failure, dropping gives back the ones before
            writer.lanes.push((*lane, true));
            #[allow(clippy::cast_possible_truncation)] // lanes are below MAX_LANES
            let place = writer.lanes.len() as u32;
            writer.places[*lane - first] = place;
        }
        Ok(writer)
    }

    /// The buffer written to.
    #[must_use]
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Lanes owned.
    pub fn lanes(&self) -> impl Iterator<Item = usize> + '_ {
        self.lanes.iter().map(|(lane, _)| *lane)
    }

    /// Append a packed row (as many words as the schema says); its ticket in the lane.
    ///
    /// `FLAG_FIRST` is added by itself: for this writer's first row of a lane, and after an end of an episode.
    pub fn append_packed(&mut self, lane: usize, row: &[u64], version: u32, flags: u16) -> Result<u64> {
        if self.closed {
            return Err(Error::Closed { stream: NAME });
        }
        let ring = self.replay.ring()?;
        if row.len() != ring.row_words() {
            return Err(Error::invalid("row", format!("{} words", row.len()), format!("{} words", ring.row_words())));
        }
        let place = self.place(lane)?;
        let first = &mut self.lanes[place].1;
        let flags = if *first { flags | FLAG_FIRST } else { flags };
        #[allow(clippy::cast_possible_truncation)] // lanes are below MAX_LANES
        let meta = Meta { version, env: lane as u16, flags };
        let ticket = ring.append(lane, self.worker, meta, row)?;
        *first = flags & (FLAG_TERMINATED | FLAG_TRUNCATED) != 0;
        Ok(ticket)
    }

    /// Place of a lane among those that the writer owns.
    pub(super) fn place(&self, lane: usize) -> Result<usize> {
        let place = lane.checked_sub(self.first).and_then(|at| self.places.get(at)).copied().unwrap_or(0);
        if place > 0 {
            return Ok(place as usize - 1);
        }
        let owned: Vec<_> = self.lanes().take(8).map(|lane| lane.to_string()).collect();
        let more = if self.lanes.len() > owned.len() { ", ..." } else { "" };
        Err(Error::invalid("lane", lane, format!("one of this writer's lanes [{}{more}]", owned.join(", "))))
    }

    /// Give the lanes back. Doing it twice has no effect.
    pub fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            // In a forked child the lanes are the parent's.
            if let Ok(ring) = self.replay.ring() {
                for (lane, _) in &self.lanes {
                    ring.release(*lane, self.worker);
                }
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}
