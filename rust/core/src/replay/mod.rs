//! Replay buffer: many writers, random samplers, oldest rows overwritten.
//!
//! One lane per environment slot, each with one live owner. [`ring`] is the protocol on shared words, [`Writer`] and
//! [`Sampler`] are its two ends, and [`Replay`] is the segment that they share.

mod nstep;
mod prioritized;
pub mod ring;
mod sampler;
#[cfg(not(any(loom, shuttle)))]
mod saved;
mod sum_tree;
mod tail;
mod window;
mod writer;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::{Access, Header, PAGE, Segment, Stream, round_up};
use crate::owner::{MAX_LANES, WorkerId};
use crate::schema::{Field, Schema};

pub use nstep::{FoldedFields, NStep, NStepWriter};
pub use prioritized::{LaneWeights, Priorities, PrioritizedBatch, PrioritizedSampler};
pub use ring::{FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED, Meta, Ring};
pub use sampler::{Batch, PREFETCH, Sampler};
pub use sum_tree::SumTree;
pub use tail::Tail;
pub use writer::Writer;

const NAME: &str = "replay buffer";

/// Sizes of a replay buffer and where its parts lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    lanes: usize,
    buffer_size: usize,
    capacity: usize,
    row_words: usize,
    heads: usize,
    marks: usize,
    rows: usize,
    total: usize,
}

impl Layout {
    /// None when a size overflows.
    fn new(data: usize, buffer_size: usize, lanes: usize, capacity: usize, stride: usize) -> Option<Self> {
        let slots = lanes.checked_mul(capacity)?;
        let heads = data;
        let marks = round_up(heads.checked_add(lanes.checked_mul(ring::HEAD_WORDS * 8)?)?, PAGE)?;
        let rows = round_up(marks.checked_add(slots.checked_mul(16)?)?, PAGE)?;
        let total = round_up(rows.checked_add(slots.checked_mul(stride)?)?, PAGE)?;
        Some(Self { lanes, buffer_size, capacity, row_words: stride / 8, heads, marks, rows, total })
    }
}

/// Slots per lane that are never drawn from, so that a row in the window is not the one that is being overwritten, even
/// if the writer moves on while a batch is gathered. (Correctness does not need it: torn rows are drawn again.)
fn margin(rows_per_lane: usize) -> usize {
    (rows_per_lane / 16).clamp(2, 64)
}

/// A replay buffer in shared memory. Cheap to clone; all clones are one mapping.
#[derive(Debug, Clone)]
pub struct Replay {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    segment: Segment,
    schema: Schema,
    layout: Layout,
    header: Header,
}

impl Replay {
    /// Create a buffer that keeps the newest `buffer_size` rows of `lanes` lanes together.
    ///
    /// Each lane has room for its equal share and a small margin, so the window is shorter than `buffer_size` while
    /// lanes are filled at very different rates.
    pub fn create(fields: &[Field], buffer_size: usize, lanes: usize, run_id: u64) -> Result<Self> {
        let schema = Schema::new(fields)?;
        if lanes == 0 || lanes > MAX_LANES {
            return Err(Error::invalid("lanes", lanes, format!("1 to {MAX_LANES} (one per environment)")));
        }
        if buffer_size < lanes {
            return Err(Error::invalid("buffer_size", buffer_size, format!("at least one row per lane ({lanes})")));
        }
        let share = buffer_size.div_ceil(lanes);
        let too_large = || Error::invalid("buffer_size", buffer_size, "a buffer below 2^63 bytes");
        let capacity = share.checked_add(margin(share)).ok_or_else(too_large)?;
        let params = [buffer_size, lanes, capacity, schema.stride()].map(|param| param as u64);
        let header = Header::new(Stream::Replay, run_id, &params, schema.fields().to_vec());
        let layout = Layout::new(header.data_offset()?, buffer_size, lanes, capacity, schema.stride());
        let layout = layout.ok_or_else(too_large)?;
        let segment = Segment::create("replay", layout.total)?;
        header.write(&segment)?;
        Header::publish(&segment)?; // all counters and stamps start at zero
        Ok(Self { inner: Arc::new(Inner { segment, schema, layout, header }) })
    }

    /// Attach to the buffer behind a descriptor, which stays the caller's.
    pub fn attach(fd: BorrowedFd<'_>) -> Result<Self> {
        let segment = Segment::attach(fd, Access::ReadWrite)?;
        let header = Header::read(&segment, Stream::Replay)?;
        let bad = |reason: String| Error::BadSegment { stream: NAME, reason };
        let fields: Vec<_> = header.fields.iter().map(|placed| placed.field.clone()).collect();
        let schema = Schema::new(&fields).map_err(|e| bad(e.to_string()))?;
        let numbers = header.params.iter().map(|param| usize::try_from(*param));
        let numbers = numbers.collect::<Result<Vec<_>, _>>().map_err(|e| bad(e.to_string()))?;
        let [buffer_size, lanes, capacity, stride] = numbers[..] else { unreachable!("checked by Header::read") };
        if schema.fields() != header.fields || schema.stride() != stride {
            return Err(bad(format!(
                "its rows are laid out differently: stride {stride} there, {} here for the same fields",
                schema.stride()
            )));
        }
        let layout = Layout::new(header.data_offset()?, buffer_size, lanes, capacity, stride)
            .filter(|layout| (1..=MAX_LANES).contains(&lanes) && capacity >= 3 && layout.total == segment.len());
        let layout = layout.ok_or_else(|| {
            bad(format!("{lanes} lanes of {capacity} rows of {stride} bytes do not make {} bytes", segment.len()))
        })?;
        Ok(Self { inner: Arc::new(Inner { segment, schema, layout, header }) })
    }

    /// Number of lanes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.inner.layout.lanes
    }

    /// Slots per lane.
    #[must_use]
    pub fn lane_capacity(&self) -> usize {
        self.inner.layout.capacity
    }

    /// Rows that the window holds at most, over all lanes.
    #[must_use]
    pub fn buffer_size(&self) -> usize {
        self.inner.layout.buffer_size
    }

    /// Layout of a row.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.inner.schema
    }

    /// Header of the segment.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.inner.header
    }

    /// Bytes of shared memory.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.inner.segment.len()
    }

    /// The protocol on this buffer's words. Fails in a forked child.
    pub fn ring(&self) -> Result<Ring<'_>> {
        let Inner { segment, layout, .. } = &*self.inner;
        segment.check_fork(NAME)?;
        let slots = layout.lanes * layout.capacity;
        Ok(Ring::new(
            segment.words(layout.heads, layout.lanes * ring::HEAD_WORDS)?,
            segment.words(layout.marks, slots * 2)?,
            segment.words(layout.rows, slots * layout.row_words)?,
            layout.capacity,
        ))
    }

    /// Rows ever committed, per lane.
    pub fn committed(&self) -> Result<Vec<u64>> {
        let ring = self.ring()?;
        Ok((0..self.lanes()).map(|lane| ring.committed(lane)).collect())
    }

    /// Worker id that owns each lane, 0 for none.
    pub fn owners(&self) -> Result<Vec<u64>> {
        let ring = self.ring()?;
        Ok((0..self.lanes()).map(|lane| ring.owner(lane)).collect())
    }

    /// Become the owner of lanes that nobody owns. All or none.
    pub fn writer(&self, lanes: &[usize], worker: WorkerId) -> Result<Writer> {
        Writer::new(self.clone(), lanes, worker)
    }

    /// A uniform sampler with its own random stream.
    #[must_use]
    pub fn sampler(&self, seed: [u64; 4]) -> Sampler {
        Sampler::new(self.clone(), seed)
    }

    /// A prioritised sampler with its own random stream.
    pub fn prioritized_sampler(&self, seed: [u64; 4], options: Priorities) -> Result<PrioritizedSampler> {
        PrioritizedSampler::new(self.clone(), seed, options)
    }

    /// A reader that follows the lanes from their first row on.
    #[must_use]
    pub fn tail(&self) -> Tail {
        Tail::new(self.clone())
    }

    /// Release every lane of a worker that is proven dead; returns how many it owned.
    pub fn reap(&self, dead: WorkerId) -> Result<usize> {
        let ring = self.ring()?;
        Ok((0..self.lanes()).filter(|lane| ring.reap(*lane, dead)).count())
    }

    /// Copy rows `first_ticket`, `first_ticket + 1`, ... (1-based) of a lane; how many leading ones could be copied.
    ///
    /// Ends at the last committed row, at the end of `meta`, and at a row that was overwritten meanwhile or lost.
    pub fn read_rows(&self, lane: usize, first_ticket: u64, rows: &mut [u64], meta: &mut [u64]) -> Result<usize> {
        let ring = self.ring()?;
        self.check_lane(lane)?;
        self.check_rows(rows.len(), meta.len())?;
        if first_ticket == 0 {
            return Err(Error::invalid("first_ticket", 0, "a ticket from 1 on"));
        }
        let committed = ring.committed(lane);
        let words = self.schema().words();
        for (i, (row, meta)) in rows.chunks_exact_mut(words).zip(meta.iter_mut()).enumerate() {
            let ticket = first_ticket.saturating_add(i as u64);
            if ticket > committed {
                return Ok(i);
            }
            match ring.read(ring.slot(lane, ticket), row) {
                Some(mark) if mark.ticket() == ticket => *meta = mark.meta,
                _ => return Ok(i),
            }
        }
        Ok(meta.len())
    }

    /// Append saved rows with their saved meta words to a lane without an owner (resume).
    pub fn restore_rows(&self, lane: usize, rows: &[u64], meta: &[u64], worker: WorkerId) -> Result<()> {
        let ring = self.ring()?;
        self.check_lane(lane)?;
        self.check_rows(rows.len(), meta.len())?;
        ring.acquire(lane, worker)?;
        let words = self.schema().words();
        let result = rows
            .chunks_exact(words)
            .zip(meta)
            .try_for_each(|(row, meta)| ring.append(lane, worker, Meta::from_word(*meta), row).map(drop));
        ring.release(lane, worker);
        result
    }

    fn check_lane(&self, lane: usize) -> Result<()> {
        if lane < self.lanes() {
            return Ok(());
        }
        Err(Error::invalid("lane", lane, format!("0 to {} (the buffer has {} lanes)", self.lanes() - 1, self.lanes())))
    }

    fn check_rows(&self, row_words: usize, rows: usize) -> Result<()> {
        if Some(row_words) == rows.checked_mul(self.schema().words()) {
            return Ok(());
        }
        Err(Error::invalid(
            "rows",
            format!("{} bytes for {rows} rows", row_words * 8),
            format!("{} bytes per row", self.schema().stride()),
        ))
    }
}

impl AsFd for Replay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.segment.as_fd()
    }
}
