//! Inference stream: samplers ask with observations, a server answers with actions.
//!
//! Each environment has a lane: a row for its request and a row for the answer to it. [`cells`] is the protocol on
//! state words, [`Client`] and [`Server`] are its two ends. A server takes whatever is ready, so batches form by
//! themselves: while it computes one, the next requests come together. Its clients post and look without waiting for
//! each other.
//!
//! After the header page, in words:
//!
//! | what | words | content |
//! |---|---|---|
//! | asked, answered | 2 x [`EventCount::WORDS`] | who waits |
//! | seats | 1 per worker id | who is its server |
//! | states | 1 per lane | [`cells::Word`] |
//! | notes | 2 per lane | a word of the client's beside the request, of the server's beside the answer |
//!
//! and then, page aligned, for each lane the row of its request and that of its answer.

pub mod cells;
mod client;
mod server;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Access, Header, PAGE, Segment, Stream, round_up};
use crate::owner::{MAX_LANES, WorkerId};
use crate::schema::{Field, PlacedField, Schema, check_names};
use crate::sync::{AtomicU64, MODEL, Ordering};
use crate::wait::{Between, EventCount};

pub use cells::Reaped;
use cells::{ANSWERED, ASKED, Cells, ORPHAN, TAKEN};
pub use client::Client;
pub use server::Server;

const NAME: &str = "inference stream";

/// Ids that have seats; few in models.
const IDS: usize = if MODEL { 12 } else { 1023 };

/// Words of two cache lines.
const LINE: usize = 16;
const ANSWERS: usize = EventCount::WORDS;
const SEATS: usize = ANSWERS + EventCount::WORDS;
const STATES: usize = (SEATS + IDS).next_multiple_of(LINE);
/// The client's own word and the server's.
const NOTES: usize = 2;

/// Lanes by state, at one look (not a snapshot while others work).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Without a request; of a client or of nobody.
    pub idle: usize,
    /// Waiting for a server.
    pub asked: usize,
    /// With a server.
    pub taken: usize,
    /// With a server, whose answer nobody waits for.
    pub orphaned: usize,
    /// Answered, the next request not made yet.
    pub answered: usize,
}

/// An inference stream in shared memory. Cheap to clone; all clones are one mapping.
#[derive(Debug, Clone)]
pub struct Inference {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    segment: Segment,
    request: Schema,
    answer: Schema,
    lanes: usize,
    header: Header,
    data: usize,
    rows: usize,
}

fn control_words(lanes: usize) -> usize {
    STATES + lanes * (1 + NOTES)
}

/// Byte offsets of the rows and the end; None on overflow.
fn layout(data: usize, lanes: usize, stride: usize) -> Option<(usize, usize)> {
    let rows = round_up(data.checked_add(control_words(lanes).checked_mul(8)?)?, PAGE)?;
    Some((rows, round_up(rows.checked_add(lanes.checked_mul(stride)?)?, PAGE)?))
}

fn check_lanes(lanes: usize) -> Result<()> {
    if (1..=MAX_LANES).contains(&lanes) {
        return Ok(());
    }
    Err(Error::invalid("lanes", lanes, format!("1 to {MAX_LANES}")))
}

/// The layouts of both rows; names differ over both.
fn schemas(request: &[Field], answer: &[Field]) -> Result<(Schema, Schema)> {
    check_names("fields", request.iter().chain(answer).map(|field| field.name.as_str()))?;
    Ok((Schema::new(request)?, Schema::new(answer)?))
}

/// Fields of both rows, with their offsets in the memory of a lane.
fn placed(request: &Schema, answer: &Schema) -> Vec<PlacedField> {
    let behind = answer
        .fields()
        .iter()
        .map(|placed| PlacedField { field: placed.field.clone(), offset: placed.offset + request.stride() });
    request.fields().iter().cloned().chain(behind).collect()
}

impl Inference {
    /// Create a stream of `lanes` lanes with these fields of a request and of an answer.
    pub fn create(request: &[Field], answer: &[Field], lanes: usize, run_id: u64) -> Result<Self> {
        check_lanes(lanes)?;
        let (request, answer) = schemas(request, answer)?;
        let params = [lanes, request.fields().len(), request.stride(), answer.stride()].map(|value| value as u64);
        let header = Header::new(Stream::Inference, run_id, &params, placed(&request, &answer));
        let data = header.data_offset()?;
        let (rows, total) = layout(data, lanes, request.stride() + answer.stride())
            .ok_or_else(|| Error::invalid("lanes", lanes, "a stream below 2^63 bytes"))?;
        let segment = Segment::create("inference", total)?;
        header.write(&segment)?;
        Header::publish(&segment)?; // zero words are lanes that nobody has
        Ok(Self { inner: Arc::new(Inner { segment, request, answer, lanes, header, data, rows }) })
    }

    /// Attach to the stream behind a descriptor, which stays the caller's.
    pub fn attach(fd: BorrowedFd<'_>) -> Result<Self> {
        let segment = Segment::attach(fd, Access::ReadWrite)?;
        let header = Header::read(&segment, Stream::Inference)?;
        let bad = |reason: String| Error::BadSegment { stream: NAME, reason };
        let size = |value: u64| usize::try_from(value).map_err(|error| bad(error.to_string()));
        let (lanes, asked) = (size(header.params[0])?, size(header.params[1])?);
        check_lanes(lanes).map_err(|error| bad(error.to_string()))?;
        let fields: Vec<_> = header.fields.iter().map(|placed| placed.field.clone()).collect();
        let (request, answer) = fields
            .split_at_checked(asked)
            .ok_or_else(|| bad(format!("{asked} fields of a request in {}", fields.len())))?;
        let (request, answer) = schemas(request, answer).map_err(|error| bad(error.to_string()))?;
        let strides = [request.stride(), answer.stride()].map(|stride| stride as u64);
        if placed(&request, &answer) != header.fields || strides != header.params[2..] {
            let there = &header.params[2..];
            return Err(bad(format!("its rows are laid out differently: {there:?} bytes there, {strides:?} here")));
        }
        let data = header.data_offset()?;
        let fits = layout(data, lanes, request.stride() + answer.stride()).filter(|(_, end)| *end == segment.len());
        let (rows, _) = fits.ok_or_else(|| bad(format!("{lanes} lanes do not make its {} bytes", segment.len())))?;
        Ok(Self { inner: Arc::new(Inner { segment, request, answer, lanes, header, data, rows }) })
    }

    /// Number of lanes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.inner.lanes
    }

    /// Layout of a request.
    #[must_use]
    pub fn request(&self) -> &Schema {
        &self.inner.request
    }

    /// Layout of an answer.
    #[must_use]
    pub fn answer(&self) -> &Schema {
        &self.inner.answer
    }

    /// Header of the shared memory.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.inner.header
    }

    /// Bytes of shared memory.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.inner.segment.len()
    }

    /// The asking end for groups of lanes, for one thread at a time.
    ///
    /// Waits for servers that still have requests of an earlier client of these lanes. [`Error::Owned`] for a lane that
    /// a live client has, [`Error::Timeout`] when `limit` is over.
    pub fn client(
        &self,
        groups: &[Vec<usize>],
        worker: WorkerId,
        limit: Option<Duration>,
        between: Between<'_>,
    ) -> Result<Client> {
        Client::claim(self, groups, worker, limit, between)
    }

    /// An answering end, for one thread at a time. [`Error::Owned`] while the id has one.
    pub fn server(&self, worker: WorkerId) -> Result<Server> {
        Server::take_seat(self, worker)
    }

    /// Take back what a worker, proven dead, held at either end, and wake everyone.
    pub fn reap(&self, dead: WorkerId) -> Result<Reaped> {
        let view = self.view()?;
        let reaped = view.cells.reap(dead);
        view.asked.reap(dead);
        view.answered.reap(dead);
        // Last, for then the id may have a server again. Release, pairs with the Acquire exchange in
        // `Server::take_seat`.
        seat(view.seats, dead).store(0, Ordering::Release);
        Ok(reaped)
    }

    /// Lanes by state.
    pub fn occupancy(&self) -> Result<Occupancy> {
        let mut occupancy = Occupancy::default();
        for word in self.view()?.cells.words() {
            *match word.state() {
                ASKED => &mut occupancy.asked,
                TAKEN => &mut occupancy.taken,
                ORPHAN => &mut occupancy.orphaned,
                ANSWERED => &mut occupancy.answered,
                _ => &mut occupancy.idle,
            } += 1;
        }
        Ok(occupancy)
    }

    /// Worker ids of each lane, (client, server), 0 for none.
    pub fn owners(&self) -> Result<Vec<(u64, u64)>> {
        Ok(self.view()?.cells.words().map(|word| (word.client(), word.server())).collect())
    }

    /// Waits that ended by a time-out of a slice although there was something (0 unless somebody was killed).
    pub fn missed_wakeups(&self) -> Result<u64> {
        let view = self.view()?;
        Ok(view.asked.missed_wakeups() + view.answered.missed_wakeups())
    }

    /// Fails in a forked child.
    fn view(&self) -> Result<View<'_>> {
        let Inner { segment, request, answer, lanes, data, rows, .. } = &*self.inner;
        segment.check_fork(NAME)?;
        let words = segment.words(*data, control_words(*lanes))?;
        let (states, notes) = words[STATES..].split_at(*lanes);
        Ok(View {
            asked: EventCount::new(&words[..ANSWERS]),
            answered: EventCount::new(&words[ANSWERS..SEATS]),
            seats: &words[SEATS..SEATS + IDS],
            cells: Cells::new(states),
            notes,
            rows: segment.words(*rows, lanes * (request.words() + answer.words()))?,
            request: request.words(),
            answer: answer.words(),
        })
    }
}

impl AsFd for Inference {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.segment.as_fd()
    }
}

/// The shared words.
struct View<'a> {
    asked: EventCount<'a>,
    answered: EventCount<'a>,
    seats: &'a [AtomicU64],
    cells: Cells<'a>,
    notes: &'a [AtomicU64],
    rows: &'a [AtomicU64],
    request: usize,
    answer: usize,
}

impl<'a> View<'a> {
    /// Row of a lane's request.
    fn request(&self, lane: usize) -> &'a [AtomicU64] {
        let at = lane * (self.request + self.answer);
        &self.rows[at..at + self.request]
    }

    /// Row of its answer.
    fn answer(&self, lane: usize) -> &'a [AtomicU64] {
        let at = lane * (self.request + self.answer) + self.request;
        &self.rows[at..at + self.answer]
    }

    /// The client's word beside the request.
    fn request_note(&self, lane: usize) -> &'a AtomicU64 {
        &self.notes[lane * NOTES]
    }

    /// The server's word beside the answer.
    fn answer_note(&self, lane: usize) -> &'a AtomicU64 {
        &self.notes[lane * NOTES + 1]
    }
}

/// The seat of a worker's server.
#[allow(clippy::cast_possible_truncation)] // ids are below 1024
fn seat(seats: &[AtomicU64], worker: WorkerId) -> &AtomicU64 {
    &seats[worker.get() as usize]
}

fn lost(lane: usize, worker: WorkerId, owner: u64) -> Error {
    Error::LeaseLost { what: format!("lane {lane} of the {NAME}"), worker: worker.get(), owner }
}

/// [`Error::Timeout`] for a wait that found nothing.
fn timeout(what: &'static str, limit: Option<Duration>) -> Error {
    Error::Timeout { what, seconds: limit.unwrap_or_default().as_secs_f64() }
}

#[cfg(test)]
mod tests;
