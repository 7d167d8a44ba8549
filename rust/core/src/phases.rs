//! Where a worker's time goes: a clock that says which phase it is in, and counts the seconds of each.
//!
//! A phase is a value of the worker's row on the stats board: a counter of seconds. Every phase that has ended also
//! goes into the ring of the same slot on a second board, the trace, with its begin and end: whoever reads that ring
//! often enough has the whole time line, and a run that nobody traces pays for three words.

use std::sync::Arc;

use crate::error::Result;
use crate::stats::StatsBoard;

/// Numbers of a record of the trace: index of the phase on the stats board, begin and end (seconds, monotonic clock).
pub const TRACE_WIDTH: usize = 3;

/// Values of a row of the trace: index of the phase that is open (-1: none), and since when.
pub const TRACE_VALUES: [&str; 2] = ["phase", "since"];

/// The clock of one worker; the boards are given at every call, so that whoever holds them may close them.
#[derive(Debug)]
pub struct PhaseClock {
    slot: usize,
    open: Option<usize>,
    since: f64,
}

impl PhaseClock {
    /// A clock for the worker of a slot; it is in no phase.
    #[must_use]
    pub fn new(slot: usize) -> Self {
        Self { slot, open: None, since: 0.0 }
    }

    /// End the open phase, if any, and begin another (None: no phase).
    pub fn enter(&mut self, phase: Option<usize>, stats: &StatsBoard, trace: Option<&Arc<StatsBoard>>) -> Result<()> {
        let now = monotonic();
        if let Some(ended) = self.open.take() {
            stats.add(self.slot, ended, now - self.since)?;
            if let Some(trace) = trace {
                trace.push_event(self.slot, &[ended as f64, self.since, now])?;
            }
        }
        if let Some(trace) = trace {
            trace.set(self.slot, 0, phase.map_or(-1.0, |index| index as f64))?;
            trace.set(self.slot, 1, now)?;
        }
        (self.open, self.since) = (phase, now);
        Ok(())
    }
}

/// Seconds on the monotonic clock, as Python's `time.monotonic()` gives them.
fn monotonic() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boards() -> (StatsBoard, Arc<StatsBoard>) {
        let names = ["a", "b"].map(str::to_owned);
        let stats = StatsBoard::create(2, &names, 1, 1, 7).unwrap();
        (stats, Arc::new(StatsBoard::create(2, &TRACE_VALUES.map(str::to_owned), TRACE_WIDTH, 8, 7).unwrap()))
    }

    #[test]
    fn seconds_and_records_agree() {
        let (stats, trace) = boards();
        let mut clock = PhaseClock::new(1);
        for phase in [Some(0), Some(1), Some(0), None, Some(1)] {
            clock.enter(phase, &stats, Some(&trace)).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let (mut values, mut open, mut records) = (vec![0.0; 4], vec![0.0; 4], Vec::new());
        stats.read(&mut values).unwrap();
        trace.read(&mut open).unwrap();
        assert_eq!(trace.events(1, 0, &mut records).unwrap(), 3);
        let records: Vec<&[f64]> = records.chunks_exact(TRACE_WIDTH).collect();
        assert_eq!(records.iter().map(|record| record[0]).collect::<Vec<_>>(), [0.0, 1.0, 0.0]);
        assert!(records.windows(2).all(|pair| pair[0][2] == pair[1][1]), "each begins where the one before it ends");
        for phase in [0, 1] {
            let seconds: f64 =
                records.iter().filter(|record| record[0] == phase as f64).map(|record| record[2] - record[1]).sum();
            assert!(seconds >= 0.002 && (values[2 + phase] - seconds).abs() < 1e-9);
        }
        assert_eq!((values[0], values[1], open[2]), (0.0, 0.0, 1.0));
        assert!(open[3] >= records[2][2] + 0.002, "the time without a phase is in none");
    }

    #[test]
    fn without_a_trace_the_seconds_are_counted() {
        let (stats, _) = boards();
        let mut clock = PhaseClock::new(0);
        clock.enter(Some(1), &stats, None).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        clock.enter(None, &stats, None).unwrap();
        let mut values = vec![0.0; 4];
        stats.read(&mut values).unwrap();
        assert!(values[1] >= 0.002 && values[0] == 0.0);
        assert!(clock.enter(Some(9), &stats, None).is_ok() && clock.enter(None, &stats, None).is_err());
    }
}
