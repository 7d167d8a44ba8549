//! The answering end of an inference stream.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::inference::cells::Word;
use crate::inference::{Inference, NAME, lost, seat, timeout};
use crate::kill;
use crate::memory::words;
use crate::owner::{Holder, WorkerId};
use crate::sync::{MODEL, Ordering};
use crate::wait::Between;

/// Takes requests and answers them. Dropping it gives back what it has not answered.
#[derive(Debug)]
pub struct Server {
    stream: Inference,
    worker: WorkerId,
    holder: Holder,
    taken: Vec<(usize, Word)>,
    /// Lane at which the next look begins.
    next: usize,
    row: Vec<u64>,
}

impl Server {
    pub(super) fn take_seat(stream: &Inference, worker: WorkerId) -> Result<Self> {
        let holder = Holder::new(worker);
        // Acquire, pairs with the Release exchange in `drop` and the Release store in `reap`: what the last server of
        // this id had taken has been given back.
        seat(stream.view()?.seats, worker)
            .compare_exchange(0, holder.word(), Ordering::Acquire, Ordering::Relaxed)
            .map_err(|word| Error::Owned {
                what: format!("the server of worker id {worker} at the {NAME} (give each process an id of its own)"),
                worker: worker.get(),
                owner: Holder::from_word(word).worker(),
            })?;
        let row = vec![0; stream.request().words().max(stream.answer().words())];
        Ok(Self { stream: stream.clone(), worker, holder, taken: Vec::new(), next: 0, row })
    }

    /// The stream it answers.
    #[must_use]
    pub fn stream(&self) -> &Inference {
        &self.stream
    }

    /// Requests that it has taken and not answered.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Take every request that is there, up to `most`; waits for the first alone. How many.
    ///
    /// `visit` gets each request: its number in the batch, its lane, its packed row and its note. With `linger` the
    /// batch waits that long after its first request for more of them, unless it is full. [`Error::Timeout`] when
    /// `limit` is over and there is none, [`Error::LeaseLost`] when this end was reaped; an error while a batch is not
    /// answered.
    pub fn take(
        &mut self,
        most: usize,
        limit: Option<Duration>,
        linger: Duration,
        between: Between<'_>,
        mut visit: impl FnMut(usize, usize, &[u64], u64),
    ) -> Result<usize> {
        if most == 0 || !self.taken.is_empty() {
            let given = format!("{most} requests, with {} taken", self.taken.len());
            return Err(Error::invalid("take", given, "at least 1, and that those that were taken are answered first"));
        }
        self.check()?;
        let view = self.stream.view()?;
        let (worker, lanes) = (self.worker, self.stream.lanes());
        let (taken, next) = (&mut self.taken, &mut self.next);
        let mut look = || {
            let before = taken.len();
            for lane in (*next..lanes).chain(0..*next) {
                if taken.len() == most {
                    *next = lane; // who was left out is the first of the next batch
                    break;
                }
                taken.extend(view.cells.take(lane, worker).map(|word| (lane, word)));
            }
            Ok((taken.len() > before).then_some(taken.len()))
        };
        let mut found = view.asked.wait(worker, limit, between, &mut look)?;
        if found.is_none() {
            return Err(timeout("a request at the inference stream", limit));
        }
        let begin = Instant::now();
        while found.is_some_and(|count| count < most) {
            let left = linger.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            match view.asked.wait(worker, Some(left), between, &mut look) {
                Ok(more) => found = more,
                Err(error) => {
                    self.give_back()?;
                    return Err(error);
                }
            }
        }
        for (number, (lane, _)) in self.taken.iter().enumerate() {
            let row = &mut self.row[..view.request];
            words::load(view.request(*lane), row);
            visit(number, *lane, row, view.request_note(*lane).load(Ordering::Relaxed));
        }
        Ok(self.taken.len())
    }

    /// Answer all that was taken, under one note; how many of the answers somebody waits for.
    ///
    /// `fill` writes the answer to a number of the batch into a packed row. [`Error::LeaseLost`] when this end was
    /// reaped.
    pub fn answer(&mut self, note: u64, mut fill: impl FnMut(usize, &mut [u64])) -> Result<usize> {
        self.check()?;
        let view = self.stream.view()?;
        let mut answered = 0;
        for (number, (lane, word)) in std::mem::take(&mut self.taken).into_iter().enumerate() {
            let row = &mut self.row[..view.answer];
            fill(number, row);
            words::store(row, view.answer(lane));
            view.answer_note(lane).store(note, Ordering::Relaxed); // published by the answer, as the row
            let wanted = view.cells.answer(lane, word).map_err(|found| lost(lane, self.worker, found.server()))?;
            answered += usize::from(wanted);
        }
        view.answered.notify();
        Ok(answered)
    }

    /// Leave what was taken and not answered to another take.
    fn give_back(&mut self) -> Result<()> {
        if self.taken.is_empty() {
            return Ok(());
        }
        let view = self.stream.view()?;
        self.taken.drain(..).for_each(|(lane, word)| view.cells.put_back(lane, word));
        view.asked.notify();
        view.answered.notify(); // a lane of a dead client is free now
        Ok(())
    }

    /// An error when this end was taken for dead, and its id may be another's.
    fn check(&self) -> Result<()> {
        let found = seat(self.stream.view()?.seats, self.worker).load(Ordering::Relaxed);
        if found == self.holder.word() {
            return Ok(());
        }
        let what = format!("its end of the {NAME}");
        Err(Error::LeaseLost { what, worker: self.worker.get(), owner: Holder::from_word(found).worker() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if kill::killed() || (MODEL && std::thread::panicking()) {
            return; // the reaper gives back what it has taken
        }
        // In a forked child all is the parent's. What was reaped is not ours to give back: no effect.
        let (Ok(()), Ok(view)) = (self.give_back(), self.stream.view()) else { return };
        let mine = seat(view.seats, self.worker);
        // Release, pairs with the Acquire exchange in `take_seat`. It fails when this end was taken for dead.
        let _ = mine.compare_exchange(self.holder.word(), 0, Ordering::Release, Ordering::Relaxed);
    }
}
