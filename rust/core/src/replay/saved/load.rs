//! Reading a saved replay buffer back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::path::Path;

use crate::error::{Error, Result};
use crate::owner::WorkerId;
use crate::replay::ring::{FLAG_TERMINATED, FLAG_TRUNCATED};
use crate::replay::saved::{EXTRA, Pace, Records, SavedFile, record_words};
use crate::replay::{Meta, Replay};
use crate::wait::Between;

impl Replay {
    /// Append the rows of saved files to lanes that nobody owns; how many.
    ///
    /// The files hold parts of one buffer; those of a lane are given oldest first. With the same number of lanes each
    /// lane gets its own rows back. Otherwise all rows are dealt to the lanes in turn, in the order of their age: how
    /// many tickets of their lane are newer. With `open_episodes` false the newest row of each saved lane is marked as
    /// truncated, unless its episode ends there. All files are checked before the first row is appended.
    pub fn load(
        &self,
        paths: &[impl AsRef<Path>],
        worker: WorkerId,
        open_episodes: bool,
        between: Between<'_>,
    ) -> Result<u64> {
        let files = paths.iter().map(|path| SavedFile::open(path.as_ref())).collect::<Result<Vec<_>>>()?;
        let mut pace = Pace::new(between);
        for file in &files {
            let differences = file.header.field_differences(self.schema().fields());
            if !differences.is_empty() {
                return Err(Error::FileMismatch { path: file.path.clone(), differences: differences.join("\n") });
            }
            file.check(&mut pace)?;
        }
        let mut saved = saved_lanes(&files)?;
        let ring = self.ring()?;
        let all: Vec<_> = (0..self.lanes()).collect();
        let _owner = self.writer(&all, worker)?; // of every lane, until this returns
        let append = |lane: usize, record: &[u64], newest: bool| {
            let (row, behind) = record.split_at(record.len() - EXTRA);
            let mut meta = Meta::from_word(behind[0]);
            if newest && !open_episodes && meta.flags & FLAG_TERMINATED == 0 {
                meta.flags |= FLAG_TRUNCATED;
            }
            ring.append(lane, worker, meta, row).map(drop)
        };
        let mut count = 0;
        if saved.len() == self.lanes() {
            for (lane, saved) in saved.iter_mut().enumerate() {
                while saved.advance(&mut pace)? {
                    append(lane, saved.record(), saved.newest())?;
                    count += 1;
                }
            }
            return Ok(count);
        }
        let mut waiting = BinaryHeap::new();
        for (index, saved) in saved.iter_mut().enumerate() {
            if saved.advance(&mut pace)? {
                waiting.push((saved.age(), Reverse(index)));
            }
        }
        while let Some((_, Reverse(index))) = waiting.pop() {
            let saved = &mut saved[index];
            #[allow(clippy::cast_possible_truncation)] // 64-bit machines only
            append(count as usize % self.lanes(), saved.record(), saved.newest())?;
            count += 1;
            if saved.advance(&mut pace)? {
                waiting.push((saved.age(), Reverse(index)));
            }
        }
        Ok(count)
    }
}

/// The rows of a lane, over the files that hold them.
struct SavedLane<'a> {
    parts: VecDeque<Records<'a>>,
    words: usize,
    last: u64,
    /// Where the record that one looks at begins in the block of the first part.
    at: usize,
}

impl SavedLane<'_> {
    /// Go on to the next record; false when there is none.
    fn advance(&mut self, pace: &mut Pace<'_>) -> Result<bool> {
        self.at += self.words;
        while let Some(part) = self.parts.front_mut() {
            if self.at < part.block.len() {
                return Ok(true);
            }
            self.at = 0;
            if part.next_block(pace)?.is_some() {
                return Ok(true);
            }
            self.parts.pop_front();
        }
        Ok(false)
    }

    fn record(&self) -> &[u64] {
        &self.parts[0].block[self.at..self.at + self.words]
    }

    /// Tickets of the lane that are newer.
    fn age(&self) -> u64 {
        self.last - self.record()[self.words - 1]
    }

    /// Whether no record follows.
    fn newest(&self) -> bool {
        self.at + self.words == self.parts[0].block.len() && self.parts.iter().all(Records::is_done)
    }
}

/// Collect the parts of each lane.
fn saved_lanes(files: &[SavedFile]) -> Result<Vec<SavedLane<'_>>> {
    let Some(one) = files.first() else {
        return Err(Error::invalid("paths", "none", "the files of a saved replay buffer"));
    };
    let words = record_words(&one.schema);
    let empty = || SavedLane { parts: VecDeque::new(), words, last: 0, at: 0 };
    let mut lanes: Vec<_> = (0..one.lanes()).map(|_| empty()).collect();
    for file in files {
        if file.lanes() != one.lanes() {
            return Err(file.bad(format!("it has {} lanes, {} has {}", file.lanes(), one.path, one.lanes())));
        }
        let mut first = 0;
        for section in &file.sections {
            let lane = &mut lanes[section.lane];
            if section.first <= lane.last {
                let reason = format!("{section:?} comes after ticket {}: parts out of order, or twice", lane.last);
                return Err(file.bad(reason));
            }
            lane.last = section.last;
            lane.parts.push_back(Records::new(file, first, section));
            first += section.records;
        }
    }
    Ok(lanes)
}
