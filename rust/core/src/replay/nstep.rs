//! n-step returns, folded in by the writer.
//!
//! A row with one-step `reward` and `discount` (gamma, or 0 after termination) goes in; the row that comes out has
//!
//! ```text
//! reward   = r_0 + d_0 r_1 + d_0 d_1 r_2 + ...      over up to n steps of one episode
//! discount = d_0 d_1 ... d_(k-1)                    gamma^k, or 0 where the window ended in a terminal state
//! next_obs = that of the last step in the window
//! ```
//!
//! so a learner's target `reward + discount * V(next_obs)` needs to know nothing of n. A window that an end of the
//! episode cuts is shorter; it bootstraps after a truncation (discount gamma^k) and not after a termination (0).
//! Version and flags stay those of the row's own step.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::memory::words;
use crate::replay::Writer;
use crate::replay::ring::{FLAG_TERMINATED, FLAG_TRUNCATED};
use crate::schema::{Dtype, PlacedField, Schema};

/// Where a floating-point scalar lies in a row.
#[derive(Debug, Clone, Copy)]
struct Scalar {
    offset: usize,
    double: bool,
}

impl Scalar {
    fn find(schema: &Schema, name: &str) -> Result<Self> {
        let PlacedField { field, offset } = find(schema, name)?;
        match field.dtype {
            Dtype::F32 if field.elements() == 1 => Ok(Self { offset: *offset, double: false }),
            Dtype::F64 if field.elements() == 1 => Ok(Self { offset: *offset, double: true }),
            _ => Err(Error::invalid("field", field, "one f32 or f64 number (reward and discount of a step)")),
        }
    }

    fn get(self, row: &[u8]) -> f64 {
        let bytes = &row[self.offset..];
        if self.double {
            f64::from_le_bytes(*bytes.first_chunk().expect("inside the row"))
        } else {
            f64::from(f32::from_le_bytes(*bytes.first_chunk().expect("inside the row")))
        }
    }

    #[allow(clippy::cast_possible_truncation)] // the row stores f32
    fn set(self, row: &mut [u8], value: f64) {
        if self.double {
            row[self.offset..][..8].copy_from_slice(&value.to_le_bytes());
        } else {
            row[self.offset..][..4].copy_from_slice(&(value as f32).to_le_bytes());
        }
    }
}

fn find<'a>(schema: &'a Schema, name: &str) -> Result<&'a PlacedField> {
    schema.fields().iter().find(|placed| placed.field.name == name).ok_or_else(|| {
        let names: Vec<_> = schema.fields().iter().map(|placed| placed.field.name.as_str()).collect();
        Error::invalid("field", format!("{name:?}"), format!("one of {}", names.join(", ")))
    })
}

/// Names of the fields that folding reads and changes.
#[derive(Debug, Clone, Copy)]
pub struct FoldedFields<'a> {
    /// Reward of one step.
    pub reward: &'a str,
    /// Discount of one step.
    pub discount: &'a str,
    /// What lies after the step (one field, or several for a structured observation).
    pub next: &'a [&'a str],
}

impl Default for FoldedFields<'_> {
    fn default() -> Self {
        Self { reward: "reward", discount: "discount", next: &["next_obs"] }
    }
}

/// Words of a saved window before its row.
const WINDOW_WORDS: usize = 5;

/// A step whose window is still open.
#[derive(Debug, Clone)]
struct Open {
    row: Vec<u64>,
    version: u32,
    flags: u16,
    reward: f64,
    discount: f64,
    steps: usize,
}

/// Folds the steps of one environment.
#[derive(Debug, Clone)]
pub struct NStep {
    n: usize,
    reward: Scalar,
    discount: Scalar,
    /// Byte ranges of the fields that are taken from the last step of a window.
    next: Vec<(usize, usize)>,
    open: VecDeque<Open>,
    spare: Vec<Open>,
}

impl NStep {
    /// Fold over up to `n` steps of rows with this layout.
    pub fn new(schema: &Schema, n: usize, fields: FoldedFields<'_>) -> Result<Self> {
        if n == 0 {
            return Err(Error::invalid("n", 0, "at least 1 step"));
        }
        let range =
            |name: &&str| find(schema, name).map(|placed| (placed.offset, placed.offset + placed.field.bytes()));
        Ok(Self {
            n,
            reward: Scalar::find(schema, fields.reward)?,
            discount: Scalar::find(schema, fields.discount)?,
            next: fields.next.iter().map(range).collect::<Result<_>>()?,
            open: VecDeque::with_capacity(n),
            spare: Vec::new(),
        })
    }

    /// Steps whose rows have not come out yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.open.len()
    }

    /// Take a step's row in; `emit` gets every row (packed, version, flags) that is ready. Stops at its first error.
    pub fn push(
        &mut self,
        row: &[u64],
        version: u32,
        flags: u16,
        mut emit: impl FnMut(&[u64], u32, u16) -> Result<()>,
    ) -> Result<()> {
        let bytes = words::bytes_of(row);
        let (reward, discount) = (self.reward.get(bytes), self.discount.get(bytes));
        for open in &mut self.open {
            open.reward += open.discount * reward;
            open.discount *= discount;
            open.steps += 1;
        }
        let mut new = self.spare.pop().unwrap_or_else(|| Open {
            row: Vec::new(),
            version: 0,
            flags: 0,
            reward: 0.0,
            discount: 0.0,
            steps: 0,
        });
        new.row.clear();
        new.row.extend_from_slice(row);
        (new.version, new.flags, new.reward, new.discount, new.steps) = (version, flags, reward, discount, 1);
        self.open.push_back(new);
        let ended = flags & (FLAG_TERMINATED | FLAG_TRUNCATED) != 0;
        while self.open.front().is_some_and(|oldest| ended || oldest.steps == self.n) {
            self.close_oldest(row, &mut emit)?;
        }
        Ok(())
    }

    /// Close all windows as if the episode had been cut after the last step.
    pub fn flush(&mut self, mut emit: impl FnMut(&[u64], u32, u16) -> Result<()>) -> Result<()> {
        let Some(last) = self.open.back_mut() else { return Ok(()) };
        last.flags |= FLAG_TRUNCATED;
        let row = last.row.clone();
        while !self.open.is_empty() {
            self.close_oldest(&row, &mut emit)?;
        }
        Ok(())
    }

    /// The open windows, for a checkpoint: five words and the row of each, oldest first.
    #[must_use]
    pub fn state(&self) -> Vec<u64> {
        let mut state = Vec::new();
        for Open { row, version, flags, reward, discount, steps } in &self.open {
            state.extend([u64::from(*version), u64::from(*flags), *steps as u64, reward.to_bits(), discount.to_bits()]);
            state.extend_from_slice(row);
        }
        state
    }

    /// Go on with the open windows of `state` (hostile input) in place of those that are open now.
    pub fn restore(&mut self, state: &[u64], row_words: usize) -> Result<()> {
        let bad = |given: String| Error::invalid("n-step state", given, "a state of the same row layout and n");
        let mut open = VecDeque::with_capacity(self.n);
        let (windows, rest) = (state.chunks_exact(WINDOW_WORDS + row_words), state.len() % (WINDOW_WORDS + row_words));
        if rest != 0 || windows.len() >= self.n {
            return Err(bad(format!("{} words", state.len())));
        }
        for window in windows {
            let ([version, flags, steps, reward, discount], row) =
                window.split_first_chunk::<WINDOW_WORDS>().expect("a whole window");
            let (reward, discount) = (f64::from_bits(*reward), f64::from_bits(*discount));
            match (u32::try_from(*version), u16::try_from(*flags), usize::try_from(*steps)) {
                (Ok(version), Ok(flags), Ok(steps))
                    if (1..self.n).contains(&steps) && reward.is_finite() && discount.is_finite() =>
                {
                    open.push_back(Open { row: row.to_vec(), version, flags, reward, discount, steps });
                }
                _ => return Err(bad(format!("a window of {steps} steps with reward {reward}, discount {discount}"))),
            }
        }
        self.open = open;
        Ok(())
    }

    /// Let the oldest row out, its window ending with the step of `last`.
    fn close_oldest(&mut self, last: &[u64], emit: &mut impl FnMut(&[u64], u32, u16) -> Result<()>) -> Result<()> {
        let Some(mut oldest) = self.open.pop_front() else { return Ok(()) };
        let (bytes, last) = (words::bytes_of_mut(&mut oldest.row), words::bytes_of(last));
        self.reward.set(bytes, oldest.reward);
        self.discount.set(bytes, oldest.discount);
        for (start, end) in &self.next {
            bytes[*start..*end].copy_from_slice(&last[*start..*end]);
        }
        let result = emit(&oldest.row, oldest.version, oldest.flags);
        self.spare.push(oldest);
        result
    }
}

/// A [`Writer`] that folds n-step returns on the way.
#[derive(Debug)]
pub struct NStepWriter {
    writer: Writer,
    /// Of each lane that the writer owns, in its order.
    folds: Vec<NStep>,
    pending: usize,
}

impl NStepWriter {
    /// Fold over up to `n` steps before `writer` writes.
    pub fn new(writer: Writer, n: usize, fields: FoldedFields<'_>) -> Result<Self> {
        let fold = NStep::new(writer.replay().schema(), n, fields)?;
        let folds = writer.lanes().map(|_| fold.clone()).collect();
        Ok(Self { writer, folds, pending: 0 })
    }

    /// The writer underneath.
    #[must_use]
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Env steps whose rows are not in the buffer yet, over all lanes; they are lost if this process is killed.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Take a step's packed row in; as [`Writer::append_packed`], except that 0 to n rows are written.
    pub fn append_packed(&mut self, lane: usize, row: &[u64], version: u32, flags: u16) -> Result<()> {
        let expected = self.writer.replay().schema().words();
        if row.len() != expected {
            return Err(Error::invalid("row", format!("{} words", row.len()), format!("{expected} words")));
        }
        self.with(lane, |writer, fold| {
            fold.push(row, version, flags, |row, version, flags| {
                writer.append_packed(lane, row, version, flags).map(drop)
            })
        })
    }

    /// The open windows of a lane, for a checkpoint.
    pub fn state(&mut self, lane: usize) -> Result<Vec<u64>> {
        self.with(lane, |_, fold| Ok(fold.state()))
    }

    /// Go on with the open windows that [`NStepWriter::state`] gave (hostile input).
    pub fn restore(&mut self, lane: usize, state: &[u64]) -> Result<()> {
        self.with(lane, |writer, fold| fold.restore(state, writer.replay().schema().words()))
    }

    /// As [`NStepWriter::flush`], of one lane.
    pub fn flush_lane(&mut self, lane: usize) -> Result<()> {
        self.with(lane, |writer, fold| {
            fold.flush(|row, version, flags| writer.append_packed(lane, row, version, flags).map(drop))
        })
    }

    /// Work on a lane, and keep the count of what is pending.
    fn with<T>(&mut self, lane: usize, work: impl FnOnce(&mut Writer, &mut NStep) -> Result<T>) -> Result<T> {
        let fold = &mut self.folds[self.writer.place(lane)?];
        let before = fold.pending();
        let result = work(&mut self.writer, fold);
        self.pending = self.pending - before + fold.pending();
        result
    }

    /// Write what is pending as truncated: the episodes will not go on here.
    pub fn flush(&mut self) -> Result<()> {
        let lanes: Vec<_> = self.writer.lanes().collect();
        lanes.into_iter().try_for_each(|lane| self.flush_lane(lane))
    }

    /// Flush and give the lanes back.
    pub fn close(&mut self) -> Result<()> {
        let result = self.flush();
        self.writer.close();
        result
    }
}
