//! What the models share: bounded checking, and the proof that a model notices a missing ordering.

#![allow(unreachable_pub, clippy::disallowed_types)] // flags outside of the model

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use rlz_core::WorkerId;
use rlz_core::sync::AtomicU64;
use rlz_core::sync::words::{Site, sites, thorough, weakened};

pub fn id(worker: u64) -> WorkerId {
    WorkerId::new(worker).unwrap()
}

pub fn zeros(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Run `model` under every schedule with at most `preemptions` forced switches.
pub fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000; // beyond: somebody waits for ever
    builder.check(model);
}

/// As [`check`], under more schedules.
pub fn check_thoroughly(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    thorough(|| check(preemptions, model));
}

/// Run `model` with a kill at point 0, 1, 2, ... until no schedule reaches the point; how many points there are.
///
/// `model` gets the number and says whether the kill happened.
pub fn check_kills(preemptions: usize, model: impl Fn(u32) -> bool + Send + Sync + Copy + 'static) -> u32 {
    for point in 0.. {
        let reached = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&reached);
        check(preemptions, move || {
            if model(point) {
                seen.store(true, Ordering::Relaxed);
            }
        });
        if !reached.load(Ordering::Relaxed) {
            return point;
        }
    }
    unreachable!()
}

/// Weaken each ordering that the models use in `file`, one by one, and list those whose loss none of them notices, as
/// the source lines say them. The first models are checked thoroughly.
pub fn unnoticed(file: &str, thoroughly: &[(usize, fn())], plainly: &[(usize, fn())]) -> Vec<String> {
    quiet();
    let thoroughly = thoroughly.iter().map(|model| (model, check_thoroughly as fn(usize, fn())));
    let plainly = plainly.iter().map(|model| (model, check as fn(usize, fn())));
    let mut survivors: BTreeMap<Site, bool> = BTreeMap::new();
    for (&(preemptions, model), check) in thoroughly.chain(plainly) {
        for site in sites(|| check(preemptions, model)).into_iter().filter(|site| site.file.contains(file)) {
            let survives = survivors.entry(site).or_insert(true);
            *survives =
                *survives && std::thread::spawn(move || weakened(site, || check(preemptions, model))).join().is_ok();
        }
    }
    assert!(!survivors.is_empty(), "the models use no ordering of {file}");
    println!("{file}: {} orderings weakened one by one", survivors.len());
    survivors.iter().filter(|(_, survives)| **survives).map(|(site, _)| source_line(site)).collect()
}

fn source_line(site: &Site) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let text = std::fs::read_to_string(format!("{root}{}", site.file)).unwrap();
    text.lines().nth(site.line as usize - 1).unwrap().trim().to_owned()
}

/// Whether a model finds a fault.
pub fn fails(preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> bool {
    quiet();
    std::thread::spawn(move || check_thoroughly(preemptions, model)).join().is_err()
}

/// Negative controls panic by the dozen: print only those of the test's own thread.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some() {
                print(info);
            }
        }));
    });
}
