//! SIGKILL storms over every stream, with real processes.
#![cfg(not(loom))]
#![allow(unreachable_pub)] // modules of one program

mod child;
#[path = "../common/mod.rs"]
mod common;
mod events;
mod harness;
mod inference;
mod limiter;
mod parameters;
mod queue;
mod replay;
mod stats;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use common::{id, words_field};
use events::Wakes;
use harness::{Length, Reaping, Scene, storm, torn_is_seen};
use inference::Questions;
use limiter::Steps;
use parameters::Parameters;
use queue::Trajectories;
use replay::Lanes;
use rlz_core::Error;
use rlz_core::queue::Options;
use stats::Board;

type Queue = Trajectories<false>;
type DroppingQueue = Trajectories<true>;

/// Calls a macro with every scene, and its share of 10,000 kills.
macro_rules! scenes {
    ($each:ident) => {
        $each!(
            Lanes, 2_500;
            Queue, 2_000;
            DroppingQueue, 1_000;
            Parameters, 2_000;
            Questions, 1_500;
            Steps, 1_500;
            Wakes, 500;
            Board, 500;
        );
    };
}

/// Together about 25 s.
mod a_short_storm {
    use super::*;

    fn blow<S: Scene>() {
        println!("{}", storm::<S>(Length::For(Duration::from_millis(2_900)), Reaping::AtOnce).unwrap());
    }

    #[test]
    fn replay_buffer() {
        blow::<Lanes>();
    }

    #[test]
    fn queue() {
        blow::<Queue>();
    }

    #[test]
    fn dropping_queue() {
        blow::<DroppingQueue>();
    }

    #[test]
    fn parameter_store() {
        blow::<Parameters>();
    }

    #[test]
    fn inference() {
        blow::<Questions>();
    }

    #[test]
    fn limiter() {
        blow::<Steps>();
    }

    #[test]
    fn event_count() {
        blow::<Wakes>();
    }

    #[test]
    fn stats_board() {
        blow::<Board>();
    }
}

/// `make kill`: every stream in turn.
#[test]
#[ignore = "minutes; make kill"]
fn ten_thousand_kills() {
    let (mut kills, mut at_points, mut started, mut checked, mut seconds) = (0, 0, 0, 0, 0.0);
    macro_rules! long_storms {
        ($($scene:ty, $kills:expr;)*) => {
            $(
                let summary = storm::<$scene>(Length::Kills($kills), Reaping::AtOnce).unwrap();
                println!("{summary}");
                kills += summary.kills.total();
                at_points += summary.kills.by_point.values().sum::<u64>();
                started += summary.started;
                checked += summary.checked;
                seconds += summary.seconds;
            )*
        };
    }
    scenes!(long_storms);
    println!(
        "all streams: {kills} kills ({at_points} at exact points), {started} processes started, {checked} rows, segments, \
         versions, steps, turns and events checked, {seconds:.0} s; 0 torn, 0 stuck, 0 leaked, 0 lost"
    );
    assert!(kills >= 10_000);
}

/// Not a test by itself: what the started processes do.
#[test]
fn child() {
    let Some(errand) = child::errand() else { return };
    macro_rules! children {
        ($($scene:ty, $kills:expr;)*) => { $( child::run::<$scene>(&errand); )* };
    }
    scenes!(children);
}

/// A kill point that is added to the protocols is added to a storm.
#[test]
fn every_kill_point_is_in_a_storm() {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    macro_rules! points {
        ($($scene:ty, $kills:expr;)*) => {
            $(
                known.extend(<$scene>::ROLES.iter().flat_map(|role| role.points));
                known.extend(<$scene>::REAP_POINTS);
            )*
        };
    }
    scenes!(points);
    let mut named = BTreeSet::new();
    collect_points(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut named);
    assert_eq!(named, known.into_iter().map(str::to_owned).collect());
}

fn collect_points(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_points(&path, into);
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            let calls = text.split("kill_point(\"").skip(1);
            into.extend(calls.map(|call| call.split('"').next().unwrap().to_owned()));
        }
    }
}

mod control {
    use super::*;

    #[test]
    fn without_the_second_look_torn_rows_are_seen() {
        torn_is_seen::<Lanes>("careless");
    }

    #[test]
    fn without_the_stamps_torn_versions_are_seen() {
        torn_is_seen::<Parameters>("careless");
    }

    fn fault<S: Scene>(reaping: Reaping) -> String {
        let error = storm::<S>(Length::For(Duration::from_secs(30)), reaping).err();
        error.expect("a storm without proper reaping sees a fault")
    }

    #[test]
    fn without_reaping_slots_are_stuck() {
        let fault = fault::<Queue>(Reaping::Never);
        assert!(fault.contains("stuck"), "{fault}");
    }

    #[test]
    fn without_reaping_lanes_have_no_successor() {
        let fault = fault::<Lanes>(Reaping::Never);
        assert!(fault.contains("a writer ended by itself"), "{fault}");
    }

    #[test]
    fn without_reaping_requests_are_stuck() {
        let fault = fault::<Questions>(Reaping::Never);
        assert!(fault.contains("ended by itself") || fault.contains("stuck"), "{fault}");
    }

    #[test]
    fn without_reaping_publishers_have_no_successor() {
        let fault = fault::<Parameters>(Reaping::Never);
        assert!(fault.contains("a publisher ended by itself"), "{fault}");
    }

    /// An id that is given out again before the reaping: what its new holder has would be taken for the dead one's.
    #[test]
    fn ids_are_not_used_again_before_the_reaping() {
        let queue = rlz_core::queue::Queue::create(&words_field(8), Options::new(2), 1).unwrap();
        let mut dead = queue.producer(id(5)).unwrap();
        std::mem::forget(dead.acquire(Some(Duration::ZERO), &mut || true).unwrap().unwrap()); // killed
        std::mem::forget(dead);
        assert!(matches!(queue.producer(id(5)), Err(Error::Owned { .. })));
        assert_eq!(queue.reap(id(5)).unwrap().reclaimed, 1);
        let mut successor = queue.producer(id(5)).unwrap();
        successor.acquire(Some(Duration::ZERO), &mut || true).unwrap().unwrap().commit().unwrap();
    }
}
