//! The protocol of the inference stream: one word per lane, one CAS per transition. No row is touched here.
//!
//! ```text
//! word = request 36 | tries 5 | client 10 | server 10 | state 3          0 = a lane that nobody has
//!
//!  IDLE(me) --ask--> ASKED(me) --take--> TAKEN(me, server) --answer--> ANSWERED(me) --ask--> ASKED(me) ...
//!    ^                  ^  |                |     |                        |
//!    | claim            |  | client dies    |     | client dies            | client dies
//!  IDLE(nobody) <-------|--+--(request)-----|-----|------------------------+
//!    ^                  +--- server dies ---+     v
//!    +---- answer, or server dies ---------- ORPHAN(server)
//! ```
//!
//! Who may touch the rows of a lane: its client while IDLE and ANSWERED, its server while TAKEN and ORPHAN, nobody
//! while ASKED. So an answer that comes late is written while nobody else looks, and goes with the ORPHAN: a lane whose
//! client died is free again only when the server has let go of it.
//!
//! `request` grows by one with each claim and each request, so the answer to one request is never taken for that to
//! another. `tries` grows when a server dies: one that was taken for dead and lives cannot answer what its successor
//! with the same id has taken (unless 32 of them died meanwhile).

use crate::kill::kill_point;
use crate::owner::WorkerId;
use crate::sync::{AtomicU64, Ordering};

/// States of a lane: the low three bits of its word.
pub(crate) const IDLE: u64 = 0;
pub(crate) const ASKED: u64 = 1;
pub(crate) const TAKEN: u64 = 2;
pub(crate) const ORPHAN: u64 = 3;
pub(crate) const ANSWERED: u64 = 4;

const STATE_MASK: u64 = 7;
const SERVER_SHIFT: u32 = 3;
const CLIENT_SHIFT: u32 = 13;
const ID_MASK: u64 = (1 << 10) - 1;
const TRIES_SHIFT: u32 = 23;
const TRIES_MASK: u64 = (1 << 5) - 1;
const REQUEST_SHIFT: u32 = 28;

/// State word of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    fn new(request: u64, tries: u64, client: u64, server: u64, state: u64) -> Self {
        debug_assert!(client <= ID_MASK && server <= ID_MASK && state <= STATE_MASK);
        let tries = tries & TRIES_MASK;
        Self(request << REQUEST_SHIFT | tries << TRIES_SHIFT | client << CLIENT_SHIFT | server << SERVER_SHIFT | state)
    }

    /// Number of the request, or of the claim.
    #[must_use]
    pub fn request(self) -> u64 {
        self.0 >> REQUEST_SHIFT
    }

    /// Worker whose lane it is; 0 = nobody.
    #[must_use]
    pub fn client(self) -> u64 {
        self.0 >> CLIENT_SHIFT & ID_MASK
    }

    /// Worker that answers; 0 = nobody.
    #[must_use]
    pub fn server(self) -> u64 {
        self.0 >> SERVER_SHIFT & ID_MASK
    }

    pub(crate) fn state(self) -> u64 {
        self.0 & STATE_MASK
    }

    fn tries(self) -> u64 {
        self.0 >> TRIES_SHIFT & TRIES_MASK
    }

    fn with(self, client: u64, server: u64, state: u64) -> Self {
        Self::new(self.request(), self.tries(), client, server, state)
    }

    fn free(self) -> Self {
        self.with(0, 0, IDLE)
    }

    /// Without its client.
    fn deserted(self) -> Self {
        if self.state() == TAKEN { self.with(0, self.server(), ORPHAN) } else { self.free() }
    }

    /// Without its server.
    fn unanswered(self) -> Self {
        match self.state() {
            TAKEN => Self::new(self.request(), self.tries() + 1, self.client(), 0, ASKED),
            _ => self.free(),
        }
    }

    /// Whether it is in the hands of the client that has seen `held`, however far its request has come.
    fn is_of(self, held: Self) -> bool {
        self.request() == held.request() && self.client() == held.client() && self.state() != ORPHAN
    }
}

/// What reaping found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Lanes of the dead client.
    pub lanes: usize,
    /// Requests that the dead server had taken, to be answered by another one.
    pub returned: usize,
}

/// View of the protocol's words, one per lane. All zero at first.
#[derive(Debug, Clone, Copy)]
pub struct Cells<'a>(&'a [AtomicU64]);

impl<'a> Cells<'a> {
    /// View them.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    /// Take a lane: its word from now on, None while a server still has the request of a dead client. The word found
    /// when it is another's.
    pub fn claim(&self, lane: usize, me: WorkerId) -> Result<Option<Word>, Word> {
        loop {
            let word = self.load(lane, Ordering::Relaxed);
            if word.state() == ORPHAN {
                return Ok(None);
            }
            if word.client() != 0 {
                return Err(word);
            }
            let mine = Word::new(word.request() + 1, 0, me.get(), 0, IDLE);
            // Acquire, pairs with the Release exchanges in `answer`, `leave` and `reap`: what was read and written in
            // the rows before lies before what we write.
            if self.swap(lane, word, mine, Ordering::Acquire) {
                kill_point("inference: lane claimed");
                return Ok(Some(mine));
            }
        }
    }

    /// Post the request whose row was written; its word, or the one found when the lane is not this client's any more.
    pub fn ask(&self, lane: usize, held: Word) -> Result<Word, Word> {
        kill_point("inference: request written");
        let asked = Word::new(held.request() + 1, 0, held.client(), 0, ASKED);
        // Release, pairs with the Acquire exchange in `take`: a request comes after its row.
        self.transition(lane, held, asked, Ordering::Release)?;
        kill_point("inference: asked");
        Ok(asked)
    }

    /// The word of a request that was answered, so that the lane is its client's; None while it was not. The word found
    /// when the lane is not this client's any more.
    pub fn answered(&self, lane: usize, asked: Word) -> Result<Option<Word>, Word> {
        // Acquire, pairs with the Release exchange in `answer`: the answer's row is there.
        let word = self.load(lane, Ordering::Acquire);
        if !word.is_of(asked) {
            return Err(word);
        }
        Ok((word.state() == ANSWERED).then_some(word))
    }

    /// Take a request to answer, where there is one.
    #[must_use]
    pub fn take(&self, lane: usize, me: WorkerId) -> Option<Word> {
        let word = self.load(lane, Ordering::Relaxed);
        if word.state() != ASKED {
            return None;
        }
        let taken = word.with(word.client(), me.get(), TAKEN);
        // Acquire, pairs with the Release exchange in `ask`. After the death of another server it still does: the
        // exchanges in between are read-modify-writes and go on with the client's release sequence.
        self.swap(lane, word, taken, Ordering::Acquire).then(|| {
            kill_point("inference: taken");
            taken
        })
    }

    /// Whether somebody has asked and nobody taken it.
    #[must_use]
    pub fn is_asked(&self, lane: usize) -> bool {
        self.load(lane, Ordering::Relaxed).state() == ASKED
    }

    /// Hand over the answer whose row was written: true; false when nobody waits for it any more. The word found when
    /// the request is not this server's any more.
    pub fn answer(&self, lane: usize, taken: Word) -> Result<bool, Word> {
        kill_point("inference: answer written");
        // Release, pairs with the Acquire load in `answered`.
        let answered = self.transition(lane, taken, taken.with(taken.client(), 0, ANSWERED), Ordering::Release);
        match answered {
            Ok(()) => {
                kill_point("inference: answered");
                Ok(true)
            }
            Err(found) if found == taken.deserted() => {
                // Release, pairs with the Acquire exchange in `claim`.
                self.transition(lane, found, found.free(), Ordering::Release)?;
                kill_point("inference: orphan freed");
                Ok(false)
            }
            Err(found) => Err(found),
        }
    }

    /// Give a lane back. Nothing when it is not this client's any more.
    pub fn leave(&self, lane: usize, held: Word) {
        self.change(lane, |word| word.is_of(held).then(|| word.deserted()));
    }

    /// Give a request back that was taken. Nothing when it is not this server's any more.
    pub fn put_back(&self, lane: usize, taken: Word) {
        self.change(lane, |word| (word == taken || word == taken.deserted()).then(|| word.unanswered()));
    }

    /// Take back what a worker, proven dead, held as a client and as a server. Another reaper may have been killed
    /// half-way.
    pub fn reap(&self, dead: WorkerId) -> Reaped {
        let (mut reaped, dead) = (Reaped::default(), dead.get());
        for lane in 0..self.0.len() {
            if self.change(lane, |word| (word.client() == dead).then(|| word.deserted())) {
                kill_point("inference: reaped a client");
                reaped.lanes += 1;
            }
            if self.change(lane, |word| (word.server() == dead).then(|| word.unanswered())) {
                kill_point("inference: reaped a server");
                reaped.returned += 1;
            }
        }
        reaped
    }

    /// State words, for figures and tests.
    pub fn words(&self) -> impl Iterator<Item = Word> + 'a {
        self.0.iter().map(|word| Word(word.load(Ordering::Relaxed)))
    }

    /// Move a lane on, as long as `next` wants it; whether it was.
    fn change(&self, lane: usize, next: impl Fn(Word) -> Option<Word>) -> bool {
        loop {
            let word = self.load(lane, Ordering::Relaxed);
            let Some(next) = next(word) else { return false };
            // AcqRel: Release pairs with the Acquire exchanges in `claim` and `take`, as if the worker itself had gone
            // on; Acquire takes over what it did.
            if self.swap(lane, word, next, Ordering::AcqRel) {
                return true;
            }
        }
    }

    #[cfg_attr(loom, track_caller)] // the ordering stands at the caller
    fn load(&self, lane: usize, order: Ordering) -> Word {
        Word(self.0[lane].load(order))
    }

    #[cfg_attr(loom, track_caller)]
    fn transition(&self, lane: usize, from: Word, to: Word, success: Ordering) -> Result<(), Word> {
        self.0[lane].compare_exchange(from.0, to.0, success, Ordering::Relaxed).map(|_| ()).map_err(Word)
    }

    #[cfg_attr(loom, track_caller)]
    fn swap(&self, lane: usize, from: Word, to: Word, success: Ordering) -> bool {
        self.transition(lane, from, to, success).is_ok()
    }
}
