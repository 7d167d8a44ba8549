//! Writing a saved replay buffer.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;

use crate::error::{Error, Result};
use crate::memory::{Header, Stream, words};
use crate::replay::Replay;
use crate::replay::saved::{BLOCK, EXTRA, MAGIC, Pace, Section, TRAILER, checksum_of_tail, npy, record_words};
use crate::wait::Between;

/// Begin of the names of files that are not finished: left behind only by a kill, and safe to delete then.
const TEMPORARY: &str = ".tmp-";

impl Replay {
    /// Save rows to a file, while writers go on; how many.
    ///
    /// `ranges` are (lane, first ticket, last ticket); None means all that the buffer holds now. Rows that are
    /// overwritten before their turn, or were lost to a kill, are left out. The file appears under its name when it is
    /// whole and on the disk, and replaces an older one; on an error nothing is left. `between` runs every 100 ms;
    /// false ends the work.
    pub fn save(&self, path: &Path, ranges: Option<&[(usize, u64, u64)]>, between: Between<'_>) -> Result<u64> {
        let failed = |source| Error::File { path: path.display().to_string(), source };
        let ranges = match ranges {
            Some(ranges) => ranges.to_vec(),
            None => self.all_rows()?,
        };
        for (lane, first, last) in &ranges {
            self.check_lane(*lane)?;
            if *first == 0 || first > last {
                return Err(Error::invalid("ranges", format!("{first} to {last}"), "first ticket, from 1 on, <= last"));
            }
        }
        let preamble = |records| {
            npy::preamble(self.schema(), records)
                .map_err(|reason| Error::invalid("fields", reason, "a buffer with other names for its fields"))
        };
        let start = preamble(0)?.len() as u64;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = Temporary::new(folder).map_err(failed)?;

        let (mut end, mut hasher, mut pace) = (start, Hasher::new(), Pace::new(between));
        let mut sections = Vec::with_capacity(ranges.len());
        for (lane, first, last) in ranges {
            let records = self.copy_rows(lane, first, last, |block| {
                pace.look()?;
                let bytes = words::bytes_of(block);
                hasher.update(bytes);
                temporary.file.write_all_at(bytes, end).map_err(failed)?;
                end += bytes.len() as u64;
                Ok(())
            })?;
            sections.push(Section { lane, first, last, records });
        }
        let records = sections.iter().map(|section| section.records).sum();
        let tail = self.tail_of_file(end, records, hasher.finalize(), &sections);
        temporary.file.write_all_at(words::bytes_of(&tail), end).map_err(failed)?;
        temporary.file.write_all_at(&preamble(records)?, 0).map_err(failed)?;
        temporary.file.sync_all().map_err(failed)?;
        temporary.rename(path).map_err(failed)?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        Ok(records)
    }

    fn all_rows(&self) -> Result<Vec<(usize, u64, u64)>> {
        let oldest = |last: u64| last.saturating_sub(self.lane_capacity() as u64) + 1;
        let lanes = self.committed()?.into_iter().enumerate().filter(|(_, last)| *last > 0);
        Ok(lanes.map(|(lane, last)| (lane, oldest(last), last)).collect())
    }

    /// Give the rows of a range as blocks of records to `sink`; how many.
    fn copy_rows(&self, lane: usize, first: u64, last: u64, mut sink: impl FnMut(&[u64]) -> Result<()>) -> Result<u64> {
        let ring = self.ring()?;
        let words = record_words(self.schema());
        let mut block = vec![0; (BLOCK / (words * 8)).max(1) * words];
        let (mut filled, mut count) = (0, 0);
        let last = last.min(ring.committed(lane));
        let mut ticket = first;
        while ticket <= last {
            let (row, behind) = block[filled..filled + words].split_at_mut(words - EXTRA);
            match ring.read(ring.slot(lane, ticket), row) {
                Some(mark) if mark.ticket() == ticket => {
                    behind.copy_from_slice(&[mark.meta, ticket]);
                    filled += words;
                    count += 1;
                    ticket += 1;
                }
                // Lost, or a later row is there: go on with the oldest that may be left.
                _ => {
                    let oldest = ring.committed(lane).saturating_sub(self.lane_capacity() as u64) + 1;
                    ticket = oldest.max(ticket + 1);
                }
            }
            if filled == block.len() {
                sink(&block)?;
                filled = 0;
            }
        }
        sink(&block[..filled])?;
        Ok(count)
    }

    /// Header, sections and trailer of a file whose records end at byte `end`.
    fn tail_of_file(&self, end: u64, records: u64, checksum: u32, sections: &[Section]) -> Vec<u64> {
        let sizes = [self.buffer_size(), self.lanes(), self.schema().stride()].map(|size| size as u64);
        let params = [&sizes[..], &[records, sections.len() as u64]].concat();
        let header = Header::new(Stream::SavedReplay, self.header().run_id, &params, self.schema().fields().to_vec());
        let sections: Vec<u64> = sections
            .iter()
            .flat_map(|section| [section.lane as u64, section.first, section.last, section.records])
            .collect();
        let total = |header: &[u64]| end + (header.len() + sections.len() + TRAILER) as u64 * 8;
        let mut tail = header.words(total(&header.words(0)));
        tail.extend(sections);
        let trailer = [u64::from(checksum), end];
        let checksum = checksum_of_tail(&tail, &trailer);
        tail.extend(trailer);
        tail.extend([u64::from(checksum), MAGIC]);
        tail
    }
}

/// A file of its owner only, which goes away unless it is renamed.
struct Temporary {
    file: File,
    path: PathBuf,
}

impl Temporary {
    fn new(folder: &Path) -> io::Result<Self> {
        let mut name = [0; 8];
        rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())?;
        let path = folder.join(format!("{TEMPORARY}{:016x}", u64::from_le_bytes(name)));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { file, path })
    }

    /// Dropping it afterwards finds nothing to remove: the name is random.
    fn rename(self, to: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, to)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // the error that led here says more
    }
}
