//! A worker's bond to its parent: the whole process group goes when the parent does.

#![allow(unsafe_code)] // signal disposition, prctl, kill

use std::sync::Mutex;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpgid, getpid, getppid, pidfd_open, setpgid};

use crate::failure::{Failure, Result};
use crate::whole;

/// Stack of the watcher: it calls poll and kill.
const WATCHER_STACK: usize = 64 << 10;

/// End the caller's whole process group, itself included, now.
extern "C" fn kill_group(_: libc::c_int) {
    // SAFETY: kill is async-signal-safe and takes no pointers. 0 means the caller's group, which it leads (see below).
    unsafe { libc::kill(0, libc::SIGKILL) };
}

/// A real-time signal that neither Python nor a library is likely to use.
fn death_signal() -> libc::c_int {
    libc::SIGRTMAX() - 3
}

/// See `_native.pyi`.
///
/// Two mechanisms, because each has a hole. PDEATHSIG acts at once and needs no thread, but belongs to the parent's
/// *thread* that spawned, and is lost when the parent dies before it is set. The pidfd follows the process, but the
/// watcher needs a moment of a processor.
#[pyfunction]
pub(crate) fn bind_to_parent(#[pyo3(from_py_with = whole::parent_pid)] parent_pid: i32) -> Result<()> {
    static BOUND: Mutex<Option<i32>> = Mutex::new(None);
    let mut bound = BOUND.lock().map_err(|_| Failure::value("bind_to_parent failed before"))?;
    match *bound {
        Some(parent) if parent == parent_pid => return Ok(()),
        Some(parent) => return Err(Failure::value(format!("already bound to parent {parent}, not to {parent_pid}"))),
        None => {}
    }
    let parent = Pid::from_raw(parent_pid)
        .filter(|pid| pid.as_raw_nonzero().get() > 0)
        .ok_or_else(|| Failure::value(format!("parent_pid: given {parent_pid}, expected a process id above 0")))?;
    let system = |what: &'static str| move |error: Errno| os_error(what, error);

    // The group that dies must be ours alone.
    if getpgid(None).map_err(system("getpgid"))? != getpid() {
        setpgid(None, None).map_err(system("setpgid"))?;
    }
    // First the signal, then the look at the parent: whatever happens in between is seen by one of them.
    install_handler().map_err(|error| os_error_raw("sigaction", &error))?;
    // SAFETY: PR_SET_PDEATHSIG takes one integer.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, death_signal() as libc::c_ulong) } != 0 {
        return Err(os_error_raw("prctl(PR_SET_PDEATHSIG)", &std::io::Error::last_os_error()));
    }
    let parent_fd = match pidfd_open(parent, PidfdFlags::empty()) {
        Ok(fd) => Some(fd),
        Err(Errno::SRCH) => None,
        Err(error) => return Err(os_error("pidfd_open (rlz needs Linux 5.14 or newer)", error)),
    };
    let (Some(parent_fd), Some(actual)) = (parent_fd, getppid()) else {
        kill_group(0);
        return Ok(());
    };
    if actual != parent {
        kill_group(0);
        return Ok(());
    }
    std::thread::Builder::new()
        .name("parent-watch".to_owned())
        .stack_size(WATCHER_STACK)
        .spawn(move || {
            block_signals();
            loop {
                // A pidfd becomes readable when its process has ended.
                match poll(&mut [PollFd::new(&parent_fd, PollFlags::IN)], None) {
                    Ok(0) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => {}
                    Ok(_) | Err(_) => kill_group(0),
                }
            }
        })
        .map_err(|error| os_error_raw("starting the thread that watches the parent", &error))?;
    *bound = Some(parent_pid);
    Ok(())
}

fn install_handler() -> std::io::Result<()> {
    // SAFETY: all zero is a valid sigaction (no flags, empty mask); the handler is async-signal-safe. The signal set
    // lives across the calls that read it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = kill_group as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        if libc::sigaction(death_signal(), &raw const action, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, death_signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
    Ok(())
}

/// Leave signals to the other threads: Python's main thread must be the one that they wake.
fn block_signals() {
    // SAFETY: the set lives across the calls that write and read it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigdelset(&raw mut set, death_signal());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

fn os_error(what: &str, error: Errno) -> Failure {
    os_error_raw(what, &error.into())
}

fn os_error_raw(what: &str, error: &std::io::Error) -> Failure {
    Failure::Python(PyOSError::new_err((error.raw_os_error(), format!("{what}: {error}"))))
}
