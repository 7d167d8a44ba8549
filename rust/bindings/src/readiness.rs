//! A descriptor that is readable while a consumer has something to pop: for `select`, `poll` and asyncio.
//!
//! Waits of the queue are futexes, which no poll can wait for. So a thread waits, and says it through an eventfd. The
//! descriptor stays readable until a pop has found nothing.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rlz_core::queue::Watch;
use rustix::event::{EventfdFlags, eventfd};

use crate::failure::{Failure, Result};

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// The thread waits for a segment.
    Waiting,
    /// The descriptor is readable.
    Ready,
    /// The thread is to end.
    Closed,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    fd: OwnedFd,
}

impl Shared {
    fn set(&self, state: State) {
        let mut now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *now == State::Closed || *now == state {
            return;
        }
        match state {
            State::Ready => _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes()),
            State::Waiting => _ = rustix::io::read(&self.fd, &mut [0_u8; 8]),
            State::Closed => {}
        }
        *now = state;
        self.changed.notify_all();
    }

    fn get(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the state is not Ready: what it is then.
    fn until_asked(&self) -> State {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *self.changed.wait_while(state, |state| *state == State::Ready).unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptor and its thread.
#[derive(Debug)]
pub(crate) struct Readiness {
    shared: Arc<Shared>,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Readiness {
    pub(crate) fn new(watch: Watch) -> Result<Self> {
        let system = |what: &'static str, error: std::io::Error| Failure::from(rlz_core::Error::system(what, error));
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("eventfd", error.into()))?;
        let shared = Arc::new(Shared { state: Mutex::new(State::Waiting), changed: Condvar::new(), fd });
        let watch = Arc::new(watch);
        let thread = std::thread::Builder::new()
            .name("rlz-queue-fd".to_owned())
            .spawn({
                let (shared, watch) = (Arc::clone(&shared), Arc::clone(&watch));
                move || {
                    while shared.until_asked() == State::Waiting {
                        // An error is one that a pop would raise as well: then let it.
                        let found = watch.ready(None, &mut || shared.get() == State::Waiting);
                        if !matches!(found, Err(rlz_core::Error::Interrupted)) {
                            shared.set(State::Ready);
                        }
                    }
                }
            })
            .map_err(|error| system("starting the thread behind a queue's descriptor", error))?;
        Ok(Self { shared, watch, thread: Some(thread) })
    }

    pub(crate) fn fd(&self) -> i32 {
        self.shared.fd.as_raw_fd()
    }

    /// A pop found nothing: wait again.
    pub(crate) fn found_nothing(&self) {
        self.shared.set(State::Waiting);
    }

    /// There is something of which the thread does not know.
    pub(crate) fn something_left(&self) {
        self.shared.set(State::Ready);
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        self.shared.set(State::Closed);
        // In a forked child there is no such thread, and the queue says so.
        if self.watch.wake().is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join(); // it needs no GIL
        }
    }
}
