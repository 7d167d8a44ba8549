//! Trajectory queue: producers and consumers, with nothing to be lost, and with everything that may be dropped.

use std::os::fd::{AsFd, BorrowedFd};

use rlz_core::memory::Segment;
use rlz_core::queue::{Options, Queue, ReadSlot, Redelivery, WhenFull, WriteSlot};
use rlz_core::sync::{AtomicU64, Ordering};
use rlz_core::{Error, WorkerId};

use crate::child::{Files, Seat};
use crate::common::{id, pattern, words_field};
use crate::harness::{Kills, Role, Scene, TORN, Verdict, demand};

const PRODUCERS: usize = 2;
const WORDS: usize = 1024;
const SLOTS: usize = 8;
/// Segments that a consumer takes at a time.
const BATCH: usize = 3;
/// Segments per producer that the ledger has room for.
const MOST: u64 = 1 << 26;

// Words of the ledger: then per producer a bitmap of committed and one of consumed segments.
const AGAIN: usize = 0;
const NEXT: usize = 8;
const BITMAPS: usize = 64;
const BITMAP: usize = (MOST / 64) as usize;

/// The ledger says which segments were committed, and which were consumed.
pub struct Trajectories<const DROPPING: bool> {
    queue: Queue,
    ledger: Segment,
}

const CONSUMER_POINTS: &[&str] =
    &["queue: popped", "queue: before release", "queue: released", "event: before the wake", "event: announced"];

impl<const DROPPING: bool> Scene for Trajectories<DROPPING> {
    const NAME: &'static str = if DROPPING { "dropping queue" } else { "queue" };
    const ROLES: &'static [Role] = &[
        Role {
            name: "producer",
            seats: PRODUCERS,
            points: &[
                "queue: before commit",
                "queue: ticket taken",
                "queue: committed",
                "event: before the wake",
                // One that drops the oldest never waits.
                if DROPPING { "queue: claimed the oldest" } else { "event: announced" },
                "queue: claimed",
                "queue: aborted",
            ],
        },
        // And consumers behind such a one hardly ever.
        Role { name: "consumer", seats: 2, points: CONSUMER_POINTS.split_at(if DROPPING { 4 } else { 5 }).0 },
    ];
    const REAP_POINTS: &'static [&'static str] = &["queue: reaped one slot"];

    fn create() -> Self {
        let (when_full, redelivery) = match DROPPING {
            true => (WhenFull::DropOldest, Redelivery::AtMostOnce),
            false => (WhenFull::Block, Redelivery::AtLeastOnce),
        };
        // Fifteen deaths in a row over one segment do not happen by chance.
        let options = Options { slots: SLOTS, when_full, redelivery, max_deliveries: 15 };
        let bytes = (BITMAPS + PRODUCERS * 2 * BITMAP) * 8;
        let queue = Queue::create(&words_field(WORDS), options, 1).unwrap();
        Self { queue, ledger: Segment::create("ledger", bytes).unwrap() }
    }

    fn attach(_: &str, files: &Files) -> Self {
        Self { queue: Queue::attach(files.open(0, true).as_fd()).unwrap(), ledger: files.segment(1) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.queue.as_fd(), self.ledger.as_fd()]
    }

    fn play(&self, role: &str, seat: &Seat) {
        match role {
            "producer" => self.produce(seat),
            _ => self.consume(seat.worker, if seat.index == 0 { 1 } else { BATCH }, || seat.tick(1)),
        }
    }

    fn reap(&self, dead: WorkerId) {
        self.queue.reap(dead).unwrap();
    }

    fn held_by(&self, worker: WorkerId) -> usize {
        self.queue.owners().unwrap().into_iter().filter(|owner| *owner == worker.get()).count()
    }

    fn check(&self) -> Verdict {
        Ok(()) // the consumers check everything that is delivered
    }

    fn settle(&self, kills: &Kills) -> Verdict<String> {
        // What is left in the queue is whole and can be consumed, and then every slot is free.
        self.queue.close().unwrap();
        self.consume(id(1022), 1, || {});
        let occupancy = self.queue.occupancy().unwrap();
        demand(occupancy.free == SLOTS, || format!("slots leaked: {occupancy:?}"))?;
        let (mut committed, mut lost) = (0, 0);
        for producer in 0..PRODUCERS {
            for (written, read) in self.bitmap(producer, false).iter().zip(self.bitmap(producer, true)) {
                let (written, read) = (written.load(Ordering::Relaxed), read.load(Ordering::Relaxed));
                committed += u64::from(written.count_ones());
                lost += u64::from((written & !read).count_ones());
            }
        }
        let again = self.words(AGAIN, 1)[0].load(Ordering::Relaxed);
        if DROPPING {
            demand(again == 0, || format!("{again} segments were consumed twice"))?;
            demand(lost > 0, || "the ledger sees no dropped segment: it would see no lost one".to_owned())?;
        } else {
            demand(lost == 0, || format!("{lost} committed segments are lost"))?;
            let most = kills.of("consumer") * BATCH as u64;
            demand(again <= most, || format!("{again} segments were consumed twice by {most} deaths"))?;
        }
        demand(committed > 20, || format!("{committed} segments only"))?;
        Ok(format!("{committed} segments committed, {lost} dropped or lost, {again} consumed twice"))
    }
}

impl<const DROPPING: bool> Trajectories<DROPPING> {
    fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        self.ledger.words(at * 8, count).unwrap()
    }

    fn bitmap(&self, producer: usize, consumed: bool) -> &[AtomicU64] {
        self.words(BITMAPS + (producer * 2 + usize::from(consumed)) * BITMAP, BITMAP)
    }

    /// Note a segment; whether it was noted before.
    fn mark(&self, producer: usize, consumed: bool, number: u64) -> bool {
        let bit = 1 << (number % 64);
        self.bitmap(producer, consumed)[usize::try_from(number / 64).unwrap()].fetch_or(bit, Ordering::SeqCst) & bit
            != 0
    }

    fn produce(&self, seat: &Seat) {
        let producer = seat.index;
        let mut end = self.queue.producer(seat.worker).unwrap();
        loop {
            // Counted first: a number is never used twice.
            let number = self.words(NEXT + producer, 1)[0].fetch_add(1, Ordering::SeqCst);
            assert!(number < MOST, "the ledger is full");
            let mut slot = end.acquire(None, &mut || true).unwrap().unwrap();
            fill_slot(&mut slot, producer, number);
            match number % 16 {
                0 => drop(slot), // not committed
                1 => {
                    // Somebody keeps an array on the slot, and writes to it later.
                    let (kept, memory) = slot.view().unwrap();
                    slot.commit().unwrap();
                    self.mark(producer, false, number);
                    scribble(kept);
                    drop(memory);
                }
                _ => {
                    slot.commit().unwrap();
                    self.mark(producer, false, number);
                }
            }
            seat.tick(0);
        }
    }

    /// Until the queue is closed and empty, `batch` segments at a time where so many are ready. (A batch of
    /// [`Consumer::pop_each`](rlz_core::queue::Consumer::pop_each) that waits has given its slots back: what it has
    /// goes with its process. So that is used with one.)
    fn consume(&self, worker: WorkerId, batch: usize, tick: impl Fn()) {
        let mut newest = [0; PRODUCERS];
        let mut end = self.queue.consumer(worker).unwrap();
        loop {
            let mut visit = |slot: &ReadSlot| {
                let (producer, number) = identify(slot);
                if slot.redeliveries() == 0 {
                    let newest = &mut newest[producer];
                    assert!(number >= *newest, "segment {number} of producer {producer} after {newest}");
                    *newest = number + 1;
                }
                // Before the release: killed in between, it is consumed twice, never lost.
                if self.mark(producer, true, number) {
                    self.words(AGAIN, 1)[0].fetch_add(1, Ordering::Relaxed);
                }
                tick();
            };
            let popped = if batch == 1 {
                end.pop_each(1, None, &mut || true, |_, slot| visit(slot)).map(drop)
            } else {
                end.pop(None, &mut || true).map(|first| {
                    let mut held = vec![first];
                    while held.len() < batch
                        && let Ok(slot) = end.pop(Some(std::time::Duration::ZERO), &mut || true)
                    {
                        held.push(slot);
                    }
                    held.iter().for_each(&mut visit);
                })
            };
            match popped {
                Ok(()) => {}
                Err(Error::Closed { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Write over a whole segment at an address that was shown.
#[allow(unsafe_code)]
fn scribble(at: *mut u8) {
    // SAFETY: as many bytes of a window that the caller keeps.
    unsafe { std::ptr::write_bytes(at, 0xab, WORDS * 8) };
}

fn fill_slot(slot: &mut WriteSlot, producer: usize, number: u64) {
    slot.set_note((producer as u64) << 48 | number).unwrap();
    for (i, bytes) in slot.bytes_mut().chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&pattern(producer as u64, number, i).to_le_bytes());
    }
}

/// Producer and number of a segment that is whole.
fn identify(slot: &ReadSlot) -> (usize, u64) {
    let note = slot.note().unwrap();
    let (producer, number) = (note >> 48, note & ((1 << 48) - 1));
    let whole = |(i, bytes): (usize, &[u8])| bytes == pattern(producer, number, i).to_le_bytes();
    if producer >= PRODUCERS as u64 || !slot.bytes().chunks_exact(8).enumerate().all(whole) {
        std::process::exit(TORN);
    }
    (usize::try_from(producer).unwrap(), number)
}
