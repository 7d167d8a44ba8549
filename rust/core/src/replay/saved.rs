//! Replay buffers on disk: one file that is whole or absent, and that numpy opens as it is.
//!
//! A file is a `.npy` array of records, followed by what this crate needs to trust it (numpy does not look behind the
//! array). Words are little endian.
//!
//! | part | content |
//! |---|---|
//! | preamble | header of a `.npy` file that describes the records |
//! | records | packed row, meta word and ticket, one after the other |
//! | header | [`Header`] of kind [`Stream::SavedReplay`]: fields, sizes, length of the file |
//! | sections | four words each, see [`Section`]; their records follow each other |
//! | trailer | CRC-32 of the records; offset of the header; CRC-32 of header, sections and these two words; magic |
//!
//! The preamble needs no checksum: it follows from the header and must be the same byte for byte. A file is parsed as
//! hostile input.

mod load;
mod npy;
mod save;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crc32fast::Hasher;

use crate::error::{Error, Result};
use crate::memory::{Header, Stream, words};
use crate::owner::MAX_LANES;
use crate::schema::Schema;
use crate::wait::{Between, SLICE};

const MAGIC: u64 = u64::from_le_bytes(*b"rlz\0npy\x01");
const TRAILER: usize = 4;
const SECTION: usize = 4;
/// Words of a record beside its row.
const EXTRA: usize = 2;
/// Bytes of header, sections and trailer at most; a file that claims more is damaged.
const MAX_TAIL: u64 = 1 << 24;
/// Bytes moved at a time; a record may be larger.
const BLOCK: usize = 1 << 20;

/// Rows `first..=last` (tickets) of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Section {
    /// Lane of the buffer that was saved.
    lane: usize,
    /// First ticket asked for.
    first: u64,
    /// Last ticket asked for.
    last: u64,
    /// Records saved: fewer than tickets where rows were lost, or overwritten before they were read.
    records: u64,
}

/// A file whose header and sections are sound. Its records are checked by [`SavedFile::check`].
#[derive(Debug)]
struct SavedFile {
    path: String,
    file: File,
    header: Header,
    schema: Schema,
    sections: Vec<Section>,
    checksum: u32,
    records_at: u64,
}

impl SavedFile {
    /// Open a file and check everything but the records.
    fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let bad = |reason: String| Error::BadFile { path: name.clone(), reason };
        let failed = |source| Error::File { path: name.clone(), source };
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(bad("it is not a regular file".to_owned()));
        }
        let file = File::open(path).map_err(failed)?;
        let total = file.metadata().map_err(failed)?.len();
        let read = |at: u64, count: usize| {
            let mut words = vec![0; count];
            file.read_exact_at(words::bytes_of_mut(&mut words), at).map(|()| words).map_err(failed)
        };
        let trailer_at = total
            .checked_sub(TRAILER as u64 * 8)
            .ok_or_else(|| bad(format!("it has {total} bytes, less than any whole file")))?;
        let trailer = read(trailer_at, TRAILER)?;
        if trailer[3] != MAGIC {
            return Err(bad(format!(
                "it ends with {:#018x}, expected {MAGIC:#018x}: cut short, or written by another program",
                trailer[3]
            )));
        }
        let tail = trailer_at.checked_sub(trailer[1]).filter(|tail| tail.is_multiple_of(8) && *tail <= MAX_TAIL);
        #[allow(clippy::cast_possible_truncation)] // at most MAX_TAIL
        let tail = tail.ok_or_else(|| bad(format!("its header at byte {} of {total}", trailer[1])))? as usize;
        let tail = read(trailer[1], tail / 8)?;
        let checksum = checksum_of_tail(&tail, &trailer[..2]);
        if u64::from(checksum) != trailer[2] {
            return Err(bad(format!("its header has the checksum {checksum:#x}, expected {:#x}: damaged", trailer[2])));
        }
        let header = Header::parse(&tail, total, Stream::SavedReplay).map_err(|error| match error {
            Error::BadSegment { reason, .. } => bad(reason),
            Error::LayoutMismatch { differences, .. } => Error::FileMismatch { path: name.clone(), differences },
            error => error,
        })?;
        let [_, lanes, stride, records, count] = header.params[..] else { unreachable!("checked by Header::parse") };
        let fields: Vec<_> = header.fields.iter().map(|placed| placed.field.clone()).collect();
        let schema = Schema::new(&fields).map_err(|error| bad(error.to_string()))?;
        if schema.fields() != header.fields || schema.stride() as u64 != stride {
            return Err(bad(format!(
                "its rows are laid out differently: stride {stride} there, {} here for the same fields",
                schema.stride()
            )));
        }
        let sections = parse_sections(&tail[header.words(total).len()..], count, lanes).map_err(bad)?;
        if sections.iter().try_fold(0, |sum: u64, section| sum.checked_add(section.records)) != Some(records) {
            return Err(bad(format!("its sections do not add up to {records} records")));
        }
        let preamble = npy::preamble(&schema, records).map_err(bad)?;
        let records_at = preamble.len() as u64;
        let end = records.checked_mul(record_words(&schema) as u64 * 8).and_then(|bytes| bytes.checked_add(records_at));
        if end != Some(trailer[1]) {
            return Err(bad(format!("{records} records of {stride} bytes do not end at byte {}", trailer[1])));
        }
        let mut found = vec![0; preamble.len()];
        file.read_exact_at(&mut found, 0).map_err(failed)?;
        if found != preamble {
            return Err(bad("its numpy header is not the one that belongs to its fields".to_owned()));
        }
        #[allow(clippy::cast_possible_truncation)] // compared as a number of 64 bits: larger ones never match
        let checksum = trailer[0] as u32;
        if u64::from(checksum) != trailer[0] {
            return Err(bad(format!("its checksum {:#x} has more than 32 bits", trailer[0])));
        }
        Ok(Self { path: name, file, header, schema, sections, checksum, records_at })
    }

    /// Lanes of the buffer that was saved.
    fn lanes(&self) -> usize {
        usize::try_from(self.header.params[1]).expect("checked by open")
    }

    /// Read every record: the checksum holds, and tickets ascend within their section.
    fn check(&self, pace: &mut Pace<'_>) -> Result<()> {
        let mut hasher = Hasher::new();
        let mut first = 0;
        for section in &self.sections {
            let mut records = Records::new(self, first, section);
            let mut last = 0;
            while let Some(block) = records.next_block(pace)? {
                hasher.update(words::bytes_of(block));
                for record in block.chunks_exact(record_words(&self.schema)) {
                    let ticket = record[record.len() - 1];
                    if ticket <= last || !(section.first..=section.last).contains(&ticket) {
                        return Err(self.bad(format!("ticket {ticket} after {last} in {section:?}: damaged")));
                    }
                    last = ticket;
                }
            }
            first += section.records;
        }
        let checksum = hasher.finalize();
        if checksum != self.checksum {
            return Err(self
                .bad(format!("its records have the checksum {checksum:#x}, expected {:#x}: damaged", self.checksum)));
        }
        Ok(())
    }

    fn bad(&self, reason: String) -> Error {
        Error::BadFile { path: self.path.clone(), reason }
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::File { path: self.path.clone(), source }
    }
}

/// The records of a section, read block by block.
#[derive(Debug)]
struct Records<'a> {
    saved: &'a SavedFile,
    next: u64,
    end: u64,
    block: Vec<u64>,
}

impl<'a> Records<'a> {
    /// `first`: index in the file of the section's first record.
    fn new(saved: &'a SavedFile, first: u64, section: &Section) -> Self {
        Self { saved, next: first, end: first + section.records, block: Vec::new() }
    }

    /// The next records, back to back; None at the end.
    fn next_block(&mut self, pace: &mut Pace<'_>) -> Result<Option<&[u64]>> {
        pace.look()?;
        let words = record_words(&self.saved.schema);
        let count = (self.end - self.next).min((BLOCK / (words * 8)).max(1) as u64);
        if count == 0 {
            return Ok(None);
        }
        #[allow(clippy::cast_possible_truncation)] // a block's worth
        self.block.resize(count as usize * words, 0);
        // Does not overflow: `open` has checked the end of the last record.
        let at = self.saved.records_at + self.next * words as u64 * 8;
        self.saved.file.read_exact_at(words::bytes_of_mut(&mut self.block), at).map_err(|e| self.saved.failed(e))?;
        self.next += count;
        Ok(Some(&self.block))
    }

    fn is_done(&self) -> bool {
        self.next == self.end
    }
}

/// Lets long work be ended, without a look at the caller's signals for every block.
struct Pace<'a> {
    between: Between<'a>,
    looked: Instant,
}

impl<'a> Pace<'a> {
    fn new(between: Between<'a>) -> Self {
        Self { between, looked: Instant::now() }
    }

    fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() >= SLICE {
            if !(self.between)() {
                return Err(Error::Interrupted);
            }
            self.looked = Instant::now();
        }
        Ok(())
    }
}

fn record_words(schema: &Schema) -> usize {
    schema.words() + EXTRA
}

fn checksum_of_tail(tail: &[u64], trailer: &[u64]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(words::bytes_of(tail));
    hasher.update(words::bytes_of(trailer));
    hasher.finalize()
}

fn parse_sections(words: &[u64], count: u64, lanes: u64) -> Result<Vec<Section>, String> {
    if lanes == 0 || lanes > MAX_LANES as u64 {
        return Err(format!("{lanes} lanes, expected 1 to {MAX_LANES}"));
    }
    if count.checked_mul(SECTION as u64) != Some(words.len() as u64) {
        return Err(format!("{count} sections in {} bytes", words.len() * 8));
    }
    let parse = |words: &[u64]| {
        let [lane, first, last, records] = *words else { unreachable!("exact chunks") };
        #[allow(clippy::cast_possible_truncation)] // below MAX_LANES
        let section = Section { lane: lane as usize, first, last, records };
        let tickets = last.checked_sub(first).filter(|_| first > 0).and_then(|tickets| tickets.checked_add(1));
        if lane >= lanes || tickets.is_none_or(|tickets| records > tickets) {
            return Err(format!("{section:?} of {lanes} lanes"));
        }
        Ok(section)
    };
    words.chunks_exact(SECTION).map(parse).collect()
}
