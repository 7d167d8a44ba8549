//! Adam and moving averages of flat parameters, in one pass over memory each.

#![allow(unsafe_code)] // Parts of shared memory: each item writes its own numbers.

use super::Machine;
use super::memory::Shared;
use super::vector::{Kernel, Vector};
use crate::elementary::multiply_add;

/// Numbers of an item.
const ITEM: usize = 1 << 13;

/// Adam's constants and what depends on the step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Learning rate over 1 - beta1^t.
    pub size: f32,
    /// Root of 1 - beta2^t.
    pub correction: f32,
}

/// One Adam step (Kingma and Ba 2015, algorithm 1): parameters, first and second moments from `old` into `new`.
///
/// # Panics
/// When lengths differ.
pub fn adam(machine: Machine, step: Step, old: [&[f32]; 3], gradient: &[f32], new: [&mut [f32]; 3]) {
    let len = gradient.len();
    assert!(old.iter().all(|old| old.len() == len) && new.iter().all(|new| new.len() == len));
    let new = new.map(Shared::new);
    machine.run(len.div_ceil(ITEM), |item| {
        let (start, count) = (item * ITEM, ITEM.min(len - item * ITEM));
        // SAFETY: each stretch of numbers is one item's.
        let new = new.map(|new| unsafe { new.part(start, count) });
        let old = old.map(|old| &old[start..start + count]);
        machine.isa.run(Adam { step, old, gradient: &gradient[start..start + count], new });
    });
}

struct Adam<'a> {
    step: Step,
    old: [&'a [f32]; 3],
    gradient: &'a [f32],
    new: [&'a mut [f32]; 3],
}

impl Kernel for Adam<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        if V::FMA { self.steps::<true>() } else { self.steps::<false>() }
    }
}

impl Adam<'_> {
    #[inline(always)]
    fn steps<const FMA: bool>(self) {
        let Self { step, old: [p, m, v], gradient, new: [new_p, new_m, new_v] } = self;
        let count = gradient.len();
        let (p, m, v) = (&p[..count], &m[..count], &v[..count]);
        let (new_p, new_m, new_v) = (&mut new_p[..count], &mut new_m[..count], &mut new_v[..count]);
        let Step { beta1, beta2, epsilon, size, correction } = step;
        for i in 0..count {
            let g = gradient[i];
            let mean = multiply_add::<FMA>(1.0 - beta1, g - m[i], m[i]);
            let square = multiply_add::<FMA>((1.0 - beta2) * g, g, beta2 * v[i]);
            new_m[i] = mean;
            new_v[i] = square;
            // One division: m / (sqrt(v) / c + e) = c m / (sqrt(v) + c e).
            let moved = size * correction * mean / multiply_add::<FMA>(correction, epsilon, square.sqrt());
            new_p[i] = p[i] - moved;
        }
    }
}

/// `new = target + tau * (online - target)`.
///
/// # Panics
/// When lengths differ.
pub fn polyak(machine: Machine, target: &[f32], online: &[f32], tau: f32, new: &mut [f32]) {
    let len = new.len();
    assert!(target.len() == len && online.len() == len);
    let new = Shared::new(new);
    machine.run(len.div_ceil(ITEM), |item| {
        let range = item * ITEM..len.min((item + 1) * ITEM);
        // SAFETY: each stretch of numbers is one item's.
        let new = unsafe { new.part(range.start, range.len()) };
        for ((new, target), online) in new.iter_mut().zip(&target[range.clone()]).zip(&online[range]) {
            *new = target + tau * (online - target);
        }
    });
}

/// Copies each source into its target: states after an update into those before it.
///
/// # Panics
/// When lengths differ.
pub fn commit(machine: Machine, pairs: Vec<(&mut [f32], &[f32])>) {
    let mut items = Vec::new();
    let pairs: Vec<_> = pairs.into_iter().map(|(to, from)| (to.len(), Shared::new(to), from)).collect();
    for (index, (len, _, from)) in pairs.iter().enumerate() {
        assert!(*len == from.len());
        items.extend((0..*len).step_by(ITEM).map(|start| (index, start)));
    }
    machine.run(items.len(), |item| {
        let (index, start) = items[item];
        let (len, to, from) = &pairs[index];
        let count = ITEM.min(len - start);
        // SAFETY: each stretch of numbers is one item's.
        unsafe { to.part(start, count) }.copy_from_slice(&from[start..start + count]);
    });
}
