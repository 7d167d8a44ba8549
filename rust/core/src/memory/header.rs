//! Header of a segment or a file: what it holds, laid out how, made by whom.
//!
//! Words, little endian:
//!
//! | word | content |
//! |---|---|
//! | 0 | magic |
//! | 1 | ABI major << 32 or minor |
//! | 2 | kind of stream |
//! | 3 | layout hash: kind, ABI, parameters, fields with offsets |
//! | 4 | total bytes of the segment or file |
//! | 5 | run id |
//! | 6 | process id of the creator (for messages only) |
//! | 7 | state, stored last: 0 being made, 1 ready |
//! | 8 | number of parameters |
//! | 9 | bytes of the field table |
//! | 10..64 | parameters (capacities and the like; their names belong to the kind) |
//! | 64.. | field table |
//!
//! In a segment the header takes whole pages, normally one. It is parsed as hostile input: copied to private memory
//! first, every length checked against the real size before it is used.

use std::fmt::Display;

use crate::error::{Error, Result};
use crate::memory::{PAGE, ReadWord, Segment, round_up, words};
use crate::schema::{Dtype, Field, PlacedField};
use crate::sync::Ordering;

const MAGIC: u64 = u64::from_le_bytes(*b"rlz\0shm\x01");
const ABI_MAJOR: u64 = 1;
const ABI_MINOR: u64 = 0;
const ABI: u64 = ABI_MAJOR << 32 | ABI_MINOR;

const KIND: usize = 2;
const HASH: usize = 3;
const TOTAL: usize = 4;
const RUN: usize = 5;
const CREATOR: usize = 6;
const STATE: usize = 7;
const PARAMS_LEN: usize = 8;
const TABLE_LEN: usize = 9;
const PARAMS: usize = 10;
const TABLE: usize = 64;

const READY: u64 = 1;
const MAX_TABLE: usize = 1 << 20;

/// Kind of a segment or file, with the names of its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Stream {
    /// Replay buffer.
    Replay = 1,
    /// Replay-ratio limiter.
    Limiter = 2,
    /// Parameter store, control part.
    ParameterControl = 3,
    /// Parameter store, payload part.
    ParameterPayload = 4,
    /// Stats board.
    Stats = 5,
    /// Trajectory queue.
    Queue = 6,
    /// File of a saved replay buffer.
    SavedReplay = 7,
    /// Inference stream.
    Inference = 8,
}

impl Stream {
    const ALL: [Self; 8] = [
        Self::Replay,
        Self::Limiter,
        Self::ParameterControl,
        Self::ParameterPayload,
        Self::Stats,
        Self::Queue,
        Self::SavedReplay,
        Self::Inference,
    ];

    /// Name used in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay buffer",
            Self::Limiter => "limiter",
            Self::ParameterControl => "parameter store (control)",
            Self::ParameterPayload => "parameter store (payload)",
            Self::Stats => "stats board",
            Self::Queue => "trajectory queue",
            Self::SavedReplay => "saved replay buffer",
            Self::Inference => "inference stream",
        }
    }

    /// Names of its parameters, for messages.
    #[must_use]
    pub fn params(self) -> &'static [&'static str] {
        match self {
            Self::Replay => &["buffer_size", "lanes", "lane_capacity", "stride"],
            Self::Limiter => &[
                "lanes",
                "total_timesteps",
                "learning_starts",
                "ratio numerator (0: free)",
                "ratio denominator",
                "slack x denominator",
                "first env step",
                "first update",
            ],
            Self::ParameterControl => &["leases", "slots", "bytes per version"],
            Self::ParameterPayload => &["slots", "bytes per version"],
            Self::Stats => &["slots", "values", "event width", "event capacity"],
            Self::Queue => &["slots", "stride", "when full", "redelivery", "max deliveries"],
            Self::SavedReplay => &["buffer_size", "lanes", "stride", "records", "sections"],
            Self::Inference => &["lanes", "fields of a request", "bytes of a request", "bytes of an answer"],
        }
    }
}

/// Content of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Kind of the segment.
    pub stream: Stream,
    /// Identity of the run, shared by its segments.
    pub run_id: u64,
    /// Process that made it.
    pub creator: u32,
    /// One value per name in [`Stream::params`].
    pub params: Vec<u64>,
    /// Fields and their byte offsets (row fields, tensors, names of values).
    pub fields: Vec<PlacedField>,
}

impl Header {
    /// Describe a segment that this process makes. Panics when `params` does not fit the kind.
    #[must_use]
    pub fn new(stream: Stream, run_id: u64, params: &[u64], fields: Vec<PlacedField>) -> Self {
        assert_eq!(params.len(), stream.params().len(), "parameters of a {} header", stream.name());
        Self { stream, run_id, creator: std::process::id(), params: params.to_vec(), fields }
    }

    /// Bytes that the header takes: where the data of the segment begins (a multiple of the page size).
    pub fn data_offset(&self) -> Result<usize> {
        let table = self.table();
        if table.len() > MAX_TABLE {
            return Err(Error::invalid(
                "fields",
                format!("{} fields taking {} bytes of description", self.fields.len(), table.len()),
                format!("at most {MAX_TABLE} bytes"),
            ));
        }
        Ok(header_bytes(table.len()))
    }

    /// The header as words, declared ready; `total` bytes belong to what it heads. Not padded to pages.
    #[must_use]
    pub fn words(&self, total: u64) -> Vec<u64> {
        let table = self.table();
        let mut words = vec![0; TABLE + table.len().div_ceil(8)];
        let fixed = [
            (0, MAGIC),
            (1, ABI),
            (KIND, self.stream as u64),
            (HASH, self.hash()),
            (TOTAL, total),
            (RUN, self.run_id),
            (CREATOR, u64::from(self.creator)),
            (STATE, READY),
            (PARAMS_LEN, self.params.len() as u64),
            (TABLE_LEN, table.len() as u64),
        ];
        for (at, value) in fixed {
            words[at] = value;
        }
        words[PARAMS..PARAMS + self.params.len()].copy_from_slice(&self.params);
        words::bytes_of_mut(&mut words[TABLE..])[..table.len()].copy_from_slice(&table);
        words
    }

    /// Write everything but the state into a fresh segment.
    pub fn write(&self, segment: &Segment) -> Result<()> {
        let shared = segment.words(0, self.data_offset()? / 8)?;
        let mut words = self.words(segment.len() as u64);
        words[STATE] = 0;
        words::store(&words, &shared[..words.len()]);
        Ok(())
    }

    /// Declare the segment initialised: the last store of its creator.
    pub fn publish(segment: &Segment) -> Result<()> {
        // Release, pairs with the Acquire load in `read`: who sees READY sees the initialised segment.
        segment.words(STATE * 8, 1)?[0].store(READY, Ordering::Release);
        Ok(())
    }

    /// Parse the header of an attached segment of an expected kind.
    pub fn read(segment: &Segment, stream: Stream) -> Result<Self> {
        let state = segment.read_words(STATE * 8, 1)?[0].load(Ordering::Acquire); // pairs with `publish`
        // A private copy: nothing that a peer stores from here on changes what was checked.
        let copy = |shared: &[ReadWord]| {
            let mut private = vec![0; shared.len()];
            words::load_read_only(shared, &mut private);
            private
        };
        let mut words = copy(segment.read_words(0, TABLE)?);
        words[STATE] = state;
        let table = usize::try_from(words[TABLE_LEN]).unwrap_or(usize::MAX).min(MAX_TABLE);
        let table = table.min(segment.len().saturating_sub(TABLE * 8)).div_ceil(8);
        words.extend(copy(segment.read_words(TABLE * 8, table)?));
        let header = Self::parse(&words, segment.len() as u64, stream)?;
        if header_bytes(header.table().len()) > segment.len() {
            return Err(Error::BadSegment {
                stream: stream.name(),
                reason: format!("its header exceeds its {} bytes", segment.len()),
            });
        }
        Ok(header)
    }

    /// Parse words that begin with the header of an expected kind; `total` bytes are there of what it heads.
    pub fn parse(words: &[u64], total: u64, stream: Stream) -> Result<Self> {
        let bad = |reason: String| Error::BadSegment { stream: stream.name(), reason };
        let Some((fixed, table)) = words.split_at_checked(TABLE) else {
            return Err(bad(format!("its header has {} bytes, expected at least {}", words.len() * 8, TABLE * 8)));
        };
        if fixed[0] != MAGIC {
            return Err(bad(format!("it begins with {:#018x}, expected {MAGIC:#018x}", fixed[0])));
        }
        let (major, minor) = (fixed[1] >> 32, fixed[1] & 0xffff_ffff);
        if major != ABI_MAJOR {
            return Err(Error::LayoutMismatch {
                stream: stream.name(),
                differences: format!(
                    "  ABI: here {ABI_MAJOR}.{ABI_MINOR}, there {major}.{minor} (use one version of rlz on both sides)"
                ),
            });
        }
        if fixed[KIND] != stream as u64 {
            let kind = Stream::ALL.iter().find(|kind| **kind as u64 == fixed[KIND]);
            let kind = kind.map_or_else(|| format!("unknown kind {}", fixed[KIND]), |kind| kind.name().to_owned());
            return Err(bad(format!("it holds: {kind}")));
        }
        if fixed[STATE] != READY {
            let creator = fixed[CREATOR];
            return Err(bad(format!("state {}: its creator (process {creator}) did not finish it", fixed[STATE])));
        }
        if fixed[TOTAL] != total {
            return Err(bad(format!("it says {} bytes but has {total}", fixed[TOTAL])));
        }
        let params_len = usize::try_from(fixed[PARAMS_LEN]).ok().filter(|len| *len == stream.params().len());
        let params_len = params_len.ok_or_else(|| {
            bad(format!("it has {} parameters, expected {}", fixed[PARAMS_LEN], stream.params().len()))
        })?;
        let table_len = usize::try_from(fixed[TABLE_LEN]).ok().filter(|len| *len <= MAX_TABLE);
        let table = table_len
            .and_then(|len| words::bytes_of(table).get(..len))
            .ok_or_else(|| bad(format!("its field table of {} bytes exceeds the header", fixed[TABLE_LEN])))?;
        let header = Self {
            stream,
            run_id: fixed[RUN],
            creator: u32::try_from(fixed[CREATOR]).unwrap_or(0),
            params: fixed[PARAMS..PARAMS + params_len].to_vec(),
            fields: parse_table(table).map_err(|reason| bad(format!("damaged field table: {reason}")))?,
        };
        if header.hash() != fixed[HASH] {
            return Err(bad(format!("its layout hash is {:#x}, its fields give {:#x}", fixed[HASH], header.hash())));
        }
        Ok(header)
    }

    /// Check that an attached segment is laid out as this process expects; the error shows both sides item by item.
    pub fn expect(&self, here: &Self) -> Result<()> {
        let mut differences = Vec::new();
        if self.run_id != here.run_id {
            differences.push(difference(
                "run id",
                format_args!("{:#x}", here.run_id),
                format_args!("{:#x}", self.run_id),
            ));
        }
        for (name, (here, there)) in self.stream.params().iter().zip(here.params.iter().zip(&self.params)) {
            if here != there {
                differences.push(difference(name, here, there));
            }
        }
        differences.extend(self.field_differences(&here.fields));
        if differences.is_empty() {
            return Ok(());
        }
        Err(Error::LayoutMismatch { stream: self.stream.name(), differences: differences.join("\n") })
    }

    /// One line for every field that is not as it is `here`, both sides shown.
    #[must_use]
    pub fn field_differences(&self, here: &[PlacedField]) -> Vec<String> {
        let show = |side: &[PlacedField], index| side.get(index).map_or("nothing".to_owned(), ToString::to_string);
        (0..self.fields.len().max(here.len()))
            .map(|index| (index, show(here, index), show(&self.fields, index)))
            .filter(|(_, here, there)| here != there)
            .map(|(index, here, there)| difference(&format!("field {index}"), here, there))
            .collect()
    }

    /// Identity of the layout: 64-bit FNV-1a of ABI, kind, parameters and field table. It tells damage and other
    /// layouts apart, not forgeries.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let words = [ABI_MAJOR, self.stream as u64].into_iter().chain(self.params.iter().copied());
        let bytes = words.flat_map(u64::to_le_bytes).chain(self.table());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// Field table: per field name length (u8), dtype code (u8), number of dimensions (u8), name, dimensions and offset
    /// (u64 each).
    fn table(&self) -> Vec<u8> {
        let mut table = Vec::new();
        for PlacedField { field, offset } in &self.fields {
            #[allow(clippy::cast_possible_truncation)] // `Field::new` bounds both
            table.extend([field.name.len() as u8, field.dtype as u8, field.shape.len() as u8]);
            table.extend(field.name.as_bytes());
            for number in field.shape.iter().chain([offset]) {
                table.extend((*number as u64).to_le_bytes());
            }
        }
        table
    }
}

fn difference(what: &str, here: impl Display, there: impl Display) -> String {
    format!("  {what}: here {here}, there {there}")
}

fn header_bytes(table: usize) -> usize {
    round_up(TABLE * 8 + table, PAGE).expect("a bounded header") // `table` is at most MAX_TABLE at all callers
}

fn parse_table(mut table: &[u8]) -> Result<Vec<PlacedField>, String> {
    fn take<'a>(table: &mut &'a [u8], count: usize) -> Result<&'a [u8], String> {
        let (head, rest) = table.split_at_checked(count).ok_or("it ends in the middle of a field")?;
        *table = rest;
        Ok(head)
    }
    let mut fields = Vec::new();
    while !table.is_empty() {
        let [name_len, dtype, dims] = *take(&mut table, 3)? else { unreachable!("three bytes were taken") };
        let name = std::str::from_utf8(take(&mut table, usize::from(name_len))?).map_err(|e| e.to_string())?;
        let dtype = Dtype::from_code(dtype).ok_or_else(|| format!("dtype code {dtype}"))?;
        let mut numbers = Vec::with_capacity(usize::from(dims) + 1);
        for _ in 0..=dims {
            let bytes = take(&mut table, 8)?.try_into().expect("eight bytes were taken");
            numbers.push(usize::try_from(u64::from_le_bytes(bytes)).map_err(|e| e.to_string())?);
        }
        let offset = numbers.pop().expect("at least the offset");
        let field = Field::new(name, dtype, &numbers).map_err(|e| e.to_string())?;
        fields.push(PlacedField { field, offset });
    }
    Ok(fields)
}
