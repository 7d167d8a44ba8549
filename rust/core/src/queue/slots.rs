//! The queue's protocol: one word per slot, one CAS per transition. No payload is touched here.
//!
//! ```text
//! word = ticket 44 | deliveries 4 | owner 14 | state 2          0 = free
//!
//!  FREE --claim--> WRITING(me) --commit--> FULL(ticket) --pop--> READING(me, ticket) --release--> FREE
//!   | ended          | abort, reap            | claim_oldest        | reap
//!   v                v                        v                     v
//!  SEALED           FREE                 WRITING(me)           FULL (same ticket, deliveries + 1) or FREE
//! ```
//!
//! A slot being written carries a number of its writer's handle where the ticket will stand: a handle that was reaped
//! cannot commit what a later one with the same id writes there.
//!
//! The end: once the queue is closed nobody begins to claim, but somebody may be in the middle of it, and what is being
//! written or read may still come (again). So a consumer seals every free slot, in one CAS each, and is at the end when
//! nothing but sealed slots is left. SEALED is for ever, so a commit after that cannot be.
//!
//! A killed worker leaves WRITING or READING with its id in it. The reaper turns the first into FREE and the second
//! into FULL again (or FREE, by option), in one CAS each, so whoever is killed at whatever instruction, every slot is
//! in a state that somebody alive can move on.
//!
//! Order: a ticket is taken at commit, so tickets of one producer grow in the order of its commits. Consumers take the
//! lowest ticket among those that were given out *before* they began to look: a scan is not a snapshot, and without
//! that bound it could miss a slot filled behind it and take a later one of the same producer.

use crate::kill::kill_point;
use crate::owner::{Holder, WorkerId};
use crate::sync::{AtomicU64, Ordering, fence};

/// States of a slot: the low two bits of its word.
pub(crate) const FREE: u64 = 0;
pub(crate) const WRITING: u64 = 1;
pub(crate) const FULL: u64 = 2;
pub(crate) const READING: u64 = 3;

const OWNER_SHIFT: u32 = 2;
const OWNER_MASK: u64 = (1 << 14) - 1;
const DELIVERIES_SHIFT: u32 = 16;
const DELIVERIES_MASK: u64 = 15;
const TICKET_SHIFT: u32 = 20;

/// Free for ever: no worker has this id.
const SEALED: Word = Word(1023 << OWNER_SHIFT | FREE);

/// Most deliveries that the word can count.
pub const MAX_DELIVERIES: u64 = DELIVERIES_MASK;

/// State word of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(pub(crate) u64);

impl Word {
    fn new(ticket: u64, deliveries: u64, owner: u64, state: u64) -> Self {
        debug_assert!(deliveries <= DELIVERIES_MASK && owner <= OWNER_MASK && state <= READING);
        Self(ticket << TICKET_SHIFT | deliveries << DELIVERIES_SHIFT | owner << OWNER_SHIFT | state)
    }

    /// The writer's handle stands in the ticket's bits, as far as they go.
    fn writing(me: Holder) -> Self {
        Self(me.handle() << TICKET_SHIFT | me.worker() << OWNER_SHIFT | WRITING)
    }

    /// Number of the commit, from 1; 0 while free or being written.
    #[must_use]
    pub fn ticket(self) -> u64 {
        if self.state() >= FULL { self.0 >> TICKET_SHIFT } else { 0 }
    }

    /// Deliveries that ended with the death of the consumer.
    #[must_use]
    pub fn deliveries(self) -> u64 {
        self.0 >> DELIVERIES_SHIFT & DELIVERIES_MASK
    }

    /// Worker that writes or reads it; 0 = nobody.
    #[must_use]
    pub fn owner(self) -> u64 {
        if self == SEALED { 0 } else { self.0 >> OWNER_SHIFT & OWNER_MASK }
    }

    pub(crate) fn state(self) -> u64 {
        self.0 & READING
    }

    /// Whether a segment being read is delivered again when its reader dies.
    fn comes_back(self, redelivery: Redelivery, max_deliveries: u64) -> bool {
        redelivery == Redelivery::AtLeastOnce && self.deliveries() + 1 < max_deliveries.min(MAX_DELIVERIES)
    }
}

/// What happens to a segment whose consumer was killed while it held it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Redelivery {
    /// It is delivered again, until it was delivered `max_deliveries` times.
    AtLeastOnce = 0,
    /// It is dropped and counted.
    AtMostOnce = 1,
}

/// Counters of the queue: shared words that only grow.
///
/// A worker that is killed between a transition and its counting leaves the count one short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Segments not accepted because the queue was full (`DropNew`).
    DroppedNew = 0,
    /// Committed segments overwritten because the queue was full (`DropOldest`).
    DroppedOldest,
    /// Segments given back for another delivery after the death of their consumer.
    Redelivered,
    /// Segments dropped because as many consumers as allowed died with them.
    DroppedDeliveries,
    /// Segments dropped at the death of their consumer (`AtMostOnce`).
    DroppedAtMostOnce,
    /// Slots taken back from producers that died while writing.
    Reclaimed,
    /// Segments of which somebody keeps a private copy, because arrays on their slot outlived it.
    Copied,
    /// Segments released by their consumers.
    Consumed,
}

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = 8;
}

/// What reaping found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Slots that the dead worker was writing, free again.
    pub reclaimed: usize,
    /// Slots that it was reading, full again.
    pub redelivered: usize,
    /// Slots that it was reading, dropped (delivery limit or at most once).
    pub dropped: usize,
}

/// A slot popped by a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Its index.
    pub slot: usize,
    /// Its word in state READING.
    pub word: Word,
}

/// View of the protocol's words.
#[derive(Debug, Clone, Copy)]
pub struct Slots<'a> {
    tickets: &'a AtomicU64,
    closed: &'a AtomicU64,
    counters: &'a [AtomicU64],
    words: &'a [AtomicU64],
}

impl<'a> Slots<'a> {
    /// `tickets`: count of tickets given out. `closed`: 1 once no more are to be claimed. `counters`:
    /// [`Counter::COUNT`] words. `words`: one per slot. All zero at first.
    #[must_use]
    pub fn new(
        tickets: &'a AtomicU64,
        closed: &'a AtomicU64,
        counters: &'a [AtomicU64],
        words: &'a [AtomicU64],
    ) -> Self {
        assert_eq!(counters.len(), Counter::COUNT, "counters of a queue");
        Self { tickets, closed, counters, words }
    }

    /// No more claims from now on, but for those that have begun.
    pub fn close(&self) {
        self.closed.store(1, Ordering::Release); // pairs with the Acquire load in `is_closed`
    }

    /// Whether [`Slots::close`] was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0 // pairs with the Release store in `close`
    }

    /// What a slot becomes when it is given back. Who does not see the closing yet leaves the sealing to the consumers.
    fn vacant(&self) -> Word {
        if self.is_closed() { SEALED } else { Word(FREE) }
    }

    /// Whether a closed queue has nothing left for `me`, now and for ever: no segment waits, is being written, or may
    /// be delivered again.
    ///
    /// What others read may come back when they die, so whoever holds nothing waits for it. Who holds a segment itself
    /// does not: two consumers that hold one and ask for more would wait for each other. (One that holds none, or asks
    /// again later, gets what comes back.)
    #[must_use]
    pub fn ended(&self, me: WorkerId, redelivery: Redelivery, max_deliveries: u64) -> bool {
        let holding = self.words().any(|word| word.state() == READING && word.owner() == me.get());
        (0..self.words.len()).all(|slot| {
            loop {
                // Relaxed, the exchange as well: SEALED tells of nothing but itself, and nothing comes after it.
                let word = Word(self.words[slot].load(Ordering::Relaxed));
                match word.state() {
                    FREE if word == SEALED => return true,
                    FREE if self.swap(slot, word, SEALED, Ordering::Relaxed) => return true,
                    FREE => {} // claimed meanwhile, or sealed by another consumer
                    READING => return holding || !word.comes_back(redelivery, max_deliveries),
                    _ => return false,
                }
            }
        })
    }

    /// Take a free slot to write, looking from `hint` on.
    #[must_use]
    pub fn claim(&self, me: Holder, hint: usize) -> Option<usize> {
        let slots = self.words.len();
        let take = |slot: &usize| {
            self.words[*slot].load(Ordering::Relaxed) == FREE
                // Acquire, pairs with the Release exchanges in `release`, `abort` and `reap`: what the last owner read
                // or wrote lies before what we write.
                && self.swap(*slot, Word(FREE), Word::writing(me), Ordering::Acquire)
        };
        let hint = hint % slots;
        let claimed = (hint..slots).find(take).or_else(|| (0..hint).find(take))?;
        kill_point("queue: claimed");
        Some(claimed)
    }

    /// Take the oldest full slot to write over it; counted as dropped.
    #[must_use]
    pub fn claim_oldest(&self, me: Holder) -> Option<usize> {
        loop {
            let (slot, word) = self.oldest()?;
            // Acquire, pairs with the Release exchange in `release` of an earlier reader (through the RMW chain of this
            // word): nobody reads this slot any more.
            if self.swap(slot, word, Word::writing(me), Ordering::Acquire) {
                kill_point("queue: claimed the oldest");
                self.count(Counter::DroppedOldest, 1);
                return Some(slot);
            }
        }
    }

    /// Make a written slot visible to consumers; returns its ticket, or the word found when `me` no longer owns it.
    pub fn commit(&self, me: Holder, slot: usize) -> Result<u64, Word> {
        kill_point("queue: before commit");
        // Release, pairs with the Acquire load in `oldest`: who sees this ticket given out sees the earlier commits of
        // this producer.
        let ticket = self.tickets.fetch_add(1, Ordering::Release) + 1;
        kill_point("queue: ticket taken");
        // Release, pairs with the Acquire exchange in `pop`: a full slot comes after its content.
        self.transition(slot, Word::writing(me), Word::new(ticket, 0, 0, FULL), Ordering::Release)?;
        kill_point("queue: committed");
        Ok(ticket)
    }

    /// Give a written slot back without committing it.
    pub fn abort(&self, me: Holder, slot: usize) -> Result<(), Word> {
        // Release, pairs with the Acquire exchange in `claim`.
        self.transition(slot, Word::writing(me), self.vacant(), Ordering::Release)?;
        kill_point("queue: aborted");
        Ok(())
    }

    /// Take the full slot with the lowest ticket to read.
    #[must_use]
    pub fn pop(&self, me: WorkerId) -> Option<Delivery> {
        loop {
            let (slot, word) = self.oldest()?;
            let reading = Word::new(word.ticket(), word.deliveries(), me.get(), READING);
            // Acquire, pairs with the Release exchange in `commit`. After a redelivery it still does: the exchanges in
            // between are read-modify-writes and go on with the committer's release sequence.
            if self.swap(slot, word, reading, Ordering::Acquire) {
                kill_point("queue: popped");
                return Some(Delivery { slot, word: reading });
            }
        }
    }

    /// Give a read slot back, or the word found when its reader no longer owns it.
    pub fn release(&self, delivery: Delivery) -> Result<(), Word> {
        kill_point("queue: before release");
        // Release, pairs with the Acquire exchanges in `claim` and `claim_oldest`: our reads lie before their writes.
        self.transition(delivery.slot, delivery.word, self.vacant(), Ordering::Release)?;
        kill_point("queue: released");
        self.count(Counter::Consumed, 1);
        Ok(())
    }

    /// Take back what a worker, proven dead, was writing or reading. Another reaper may have been killed half-way.
    pub fn reap(&self, dead: WorkerId, redelivery: Redelivery, max_deliveries: u64) -> Reaped {
        let mut reaped = Reaped::default();
        for slot in 0..self.words.len() {
            let word = Word(self.words[slot].load(Ordering::Acquire));
            if word.owner() != dead.get() {
                continue;
            }
            let (next, counter, number) = match (word.state(), redelivery) {
                (READING, _) if word.comes_back(redelivery, max_deliveries) => {
                    let again = Word::new(word.ticket(), word.deliveries() + 1, 0, FULL);
                    (again, Counter::Redelivered, &mut reaped.redelivered)
                }
                (READING, Redelivery::AtLeastOnce) => (self.vacant(), Counter::DroppedDeliveries, &mut reaped.dropped),
                (READING, Redelivery::AtMostOnce) => (self.vacant(), Counter::DroppedAtMostOnce, &mut reaped.dropped),
                _ => (self.vacant(), Counter::Reclaimed, &mut reaped.reclaimed),
            };
            // AcqRel: Release pairs with the Acquire exchanges in `claim` and `pop`, as if the dead had released;
            // Acquire takes over what the dead did. Only another reaper can have changed a word with the dead worker's
            // id.
            if self.swap(slot, word, next, Ordering::AcqRel) {
                kill_point("queue: reaped one slot");
                *number += 1;
                self.count(counter, 1);
            }
        }
        reaped
    }

    /// State words, for figures and tests.
    pub fn words(&self) -> impl Iterator<Item = Word> + 'a {
        self.words.iter().map(|word| Word(word.load(Ordering::Relaxed)))
    }

    /// Tickets given out; a producer killed inside `commit` may have taken one in vain.
    #[must_use]
    pub fn tickets(&self) -> u64 {
        self.tickets.load(Ordering::Relaxed)
    }

    /// Value of a counter.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, counter: Counter, by: u64) {
        self.counters[counter as usize].fetch_add(by, Ordering::Relaxed); // a figure: orders nothing
    }

    /// Full slot with the lowest ticket, among the tickets given out before the look began.
    pub(crate) fn oldest(&self) -> Option<(usize, Word)> {
        loop {
            // Acquire, pairs with the Release addition in `commit`.
            let newest = self.tickets.load(Ordering::Acquire);
            // Words of full slots come in the order of their tickets. Without branches: which slots are full cannot be
            // predicted.
            let (mut slot, mut oldest) = (0, u64::MAX);
            for (at, word) in self.words.iter().enumerate() {
                let word = word.load(Ordering::Relaxed);
                let word = if word & READING == FULL { word } else { u64::MAX };
                slot = if word < oldest { at } else { slot };
                oldest = oldest.min(word);
            }
            if oldest == u64::MAX {
                return None;
            }
            if Word(oldest).ticket() <= newest {
                return Some((slot, Word(oldest)));
            }
            // Pairs with the Release exchange in `commit`: the next look sees the ticket of what was just seen full.
            fence(Ordering::Acquire);
        }
    }

    #[cfg_attr(loom, track_caller)] // the ordering stands at the caller
    fn transition(&self, slot: usize, from: Word, to: Word, success: Ordering) -> Result<(), Word> {
        self.words[slot].compare_exchange(from.0, to.0, success, Ordering::Relaxed).map(|_| ()).map_err(Word)
    }

    #[cfg_attr(loom, track_caller)]
    fn swap(&self, slot: usize, from: Word, to: Word, success: Ordering) -> bool {
        self.transition(slot, from, to, success).is_ok()
    }
}
