//! The asking end of an inference stream.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::inference::cells::Word;
use crate::inference::{Inference, NAME, lost, timeout};
use crate::kill;
use crate::memory::words;
use crate::owner::WorkerId;
use crate::sync::{MODEL, Ordering};
use crate::wait::Between;

/// Asks for its lanes, group by group. Dropping it gives them back.
#[derive(Debug)]
pub struct Client {
    stream: Inference,
    worker: WorkerId,
    groups: Vec<Group>,
    /// Groups that have asked, the first one first.
    order: Vec<usize>,
    row: Vec<u64>,
}

#[derive(Debug, Default)]
struct Group {
    lanes: Vec<(usize, Word)>,
    /// Which of its lanes wait for an answer.
    waiting: Vec<usize>,
}

impl Client {
    pub(super) fn claim(
        stream: &Inference,
        groups: &[Vec<usize>],
        worker: WorkerId,
        limit: Option<Duration>,
        between: Between<'_>,
    ) -> Result<Self> {
        let lanes = stream.lanes();
        let mut all: Vec<_> = groups.concat();
        all.sort_unstable();
        let distinct = all.windows(2).all(|pair| pair[0] != pair[1]);
        if groups.is_empty() || groups.iter().any(Vec::is_empty) || !distinct || all.iter().any(|lane| *lane >= lanes) {
            let expected = format!("one or more groups, each of lanes from 0 to {}, none of them twice", lanes - 1);
            return Err(Error::invalid("groups", format!("{groups:?}"), expected));
        }
        let view = stream.view()?;
        // What it has got so far is given back with it when there is an error.
        let mut client = Self {
            stream: stream.clone(),
            worker,
            groups: groups.iter().map(|_| Group::default()).collect(),
            order: Vec::new(),
            row: vec![0; stream.request().words().max(stream.answer().words())],
        };
        for (group, lanes) in groups.iter().enumerate() {
            for &lane in lanes {
                let claimed = view.answered.wait(worker, limit, between, || {
                    view.cells.claim(lane, worker).map_err(|word| Error::Owned {
                        what: format!("lane {lane} of the {NAME}"),
                        worker: worker.get(),
                        owner: word.client(),
                    })
                })?;
                let word = claimed.ok_or_else(|| timeout("a server to let go of a dead client's request", limit))?;
                client.groups[group].lanes.push((lane, word));
            }
        }
        Ok(client)
    }

    /// The stream it asks through.
    #[must_use]
    pub fn stream(&self) -> &Inference {
        &self.stream
    }

    /// Lanes of a group.
    pub fn lanes(&self, group: usize) -> Result<usize> {
        self.groups.get(group).map(|group| group.lanes.len()).ok_or_else(|| self.no_group(group))
    }

    /// Ask for some lanes of a group, by their numbers in it. Never waits.
    ///
    /// `fill` writes the request of one number into a packed row and gives the note beside it. An error when the group
    /// waits for an answer; [`Error::LeaseLost`] when the lanes were reaped.
    pub fn ask(&mut self, group: usize, which: &[usize], mut fill: impl FnMut(usize, &mut [u64]) -> u64) -> Result<()> {
        let lanes = self.lanes(group)?;
        let view = self.stream.view()?;
        let mine = &mut self.groups[group];
        if !mine.waiting.is_empty() {
            return Err(Error::invalid(
                "ask",
                format!("group {group}, which has asked"),
                "that its answer is taken first",
            ));
        }
        if which.is_empty() || !which.is_sorted_by(|one, next| one < next) || which.iter().any(|at| *at >= lanes) {
            let expected = format!("one or more numbers from 0 to {}, rising", lanes - 1);
            return Err(Error::invalid("which", format!("{which:?}"), expected));
        }
        self.order.push(group);
        let row = &mut self.row[..view.request];
        for &at in which {
            let (lane, word) = &mut mine.lanes[at];
            let note = fill(at, row);
            words::store(row, view.request(*lane));
            view.request_note(*lane).store(note, Ordering::Relaxed); // published by the request, as the row
            *word = view.cells.ask(*lane, *word).map_err(|found| lost(*lane, self.worker, found.client()))?;
            mine.waiting.push(at);
        }
        view.asked.notify();
        Ok(())
    }

    /// Wait for a group of which every request was answered, the one first that has asked first. It is the next for
    /// [`Client::take`]. [`Error::Timeout`] when `limit` is over, an error when no group has asked.
    pub fn wait(&self, limit: Option<Duration>, between: Between<'_>) -> Result<usize> {
        if self.order.is_empty() {
            return Err(Error::invalid("wait", "no group that has asked", "ask first"));
        }
        let view = self.stream.view()?;
        let found = view.answered.wait(self.worker, limit, between, || {
            for &group in &self.order {
                if self.is_answered(group)? {
                    return Ok(Some(group));
                }
            }
            Ok(None)
        })?;
        found.ok_or_else(|| timeout("an answer of the inference server", limit))
    }

    fn is_answered(&self, group: usize) -> Result<bool> {
        let view = self.stream.view()?;
        let group = &self.groups[group];
        for &at in &group.waiting {
            let (lane, word) = group.lanes[at];
            let answered = view.cells.answered(lane, word).map_err(|found| lost(lane, self.worker, found.client()))?;
            if answered.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Give the answers of a group to `visit`, with their numbers in it and their notes; how many. It may ask again
    /// then.
    ///
    /// An error when it has not asked, or not all of it is answered.
    pub fn take(&mut self, group: usize, mut visit: impl FnMut(usize, &[u64], u64)) -> Result<usize> {
        if self.lanes(group)? == 0 || self.groups[group].waiting.is_empty() || !self.is_answered(group)? {
            let given = format!("group {group}, which has no whole answer");
            return Err(Error::invalid("take", given, "a group that `wait` has given"));
        }
        let view = self.stream.view()?;
        let mine = &mut self.groups[group];
        let row = &mut self.row[..view.answer];
        for &at in &mine.waiting {
            let (lane, word) = &mut mine.lanes[at];
            words::load(view.answer(*lane), row);
            visit(at, row, view.answer_note(*lane).load(Ordering::Relaxed));
            // Its server may have had predecessors that died: the word says so.
            let answered = view.cells.answered(*lane, *word);
            *word = answered.ok().flatten().ok_or_else(|| lost(*lane, self.worker, 0))?;
        }
        self.order.retain(|one| *one != group);
        Ok(std::mem::take(&mut mine.waiting).len())
    }

    fn no_group(&self, group: usize) -> Error {
        Error::invalid("group", group, format!("0 to {}", self.groups.len() - 1))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if kill::killed() || (MODEL && std::thread::panicking()) {
            return; // the reaper frees its lanes
        }
        // In a forked child the lanes are the parent's.
        if let Ok(view) = self.stream.view() {
            self.groups.iter().flat_map(|group| &group.lanes).for_each(|(lane, word)| view.cells.leave(*lane, *word));
        }
    }
}
