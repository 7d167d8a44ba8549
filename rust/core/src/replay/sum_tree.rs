//! Prefix sums over many weights that change: eight children per node, one cache line.
//!
//! Every inner value is the sum of its eight children in order, computed anew whenever one of them changes. So nothing
//! drifts, and the same leaves give the same bits however they came about. Private to one process: in shared memory a
//! killed writer would leave sums that no reaper could repair in a bounded time.

/// Children per node.
const WIDTH: usize = 8;

/// A node's children; aligned so that looking at all of them touches one cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Node([f64; WIDTH]);

impl Node {
    fn sum(&self) -> f64 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + b) + (c + d)) + ((e + f) + (g + h))
    }

    /// The child in whose part of the sum `mass` lies, and how far into it. Without branches: which child it is cannot
    /// be predicted.
    #[inline]
    fn child(&self, mass: f64) -> (usize, f64) {
        let (mut at, mut before, mut sum) = (0, 0.0, 0.0);
        for weight in self.0 {
            sum += weight;
            let beyond = sum <= mass;
            at += usize::from(beyond);
            before = if beyond { sum } else { before };
        }
        // Below the first sum beyond `mass` there is a weight. Rounding may leave `mass` at or beyond the end.
        if at < WIDTH { (at, mass - before) } else { self.last_child(mass) }
    }

    /// The last child that has a weight, for a mass beyond all of them.
    #[cold]
    fn last_child(&self, mass: f64) -> (usize, f64) {
        let last = self.0.iter().rposition(|weight| *weight > 0.0).expect("a sum tree with a weight above 0");
        (last, mass - self.0[..last].iter().sum::<f64>())
    }
}

/// Sums of weights (finite, not negative; callers keep that).
#[derive(Debug, Clone)]
pub struct SumTree {
    /// From the leaves up; the last level is one node.
    levels: Vec<Vec<Node>>,
    leaves: usize,
}

impl SumTree {
    /// All weights zero. Panics for no leaves.
    #[must_use]
    pub fn new(leaves: usize) -> Self {
        assert!(leaves > 0, "leaves of a sum tree");
        let mut levels = Vec::new();
        let mut count = leaves;
        loop {
            count = count.div_ceil(WIDTH);
            levels.push(vec![Node::default(); count]);
            if count == 1 {
                return Self { levels, leaves };
            }
        }
    }

    /// Number of weights.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leaves
    }

    /// Never: there is at least one weight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves == 0
    }

    /// Sum of all weights.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.levels[self.levels.len() - 1][0].sum()
    }

    /// A weight.
    #[inline]
    #[must_use]
    pub fn get(&self, leaf: usize) -> f64 {
        self.levels[0][leaf / WIDTH].0[leaf % WIDTH]
    }

    /// Change a weight.
    #[inline]
    pub fn set(&mut self, leaf: usize, weight: f64) {
        debug_assert!(weight.is_finite() && weight >= 0.0 && leaf < self.leaves);
        let (mut at, mut value) = (leaf, weight);
        for level in &mut self.levels {
            let node = &mut level[at / WIDTH];
            node.0[at % WIDTH] = value;
            value = node.sum();
            at /= WIDTH;
        }
    }

    /// Change many weights: cheaper than one by one from about an eighth of all on.
    pub fn set_many(&mut self, weights: impl Iterator<Item = (usize, f64)>) {
        for (leaf, weight) in weights {
            debug_assert!(weight.is_finite() && weight >= 0.0 && leaf < self.leaves);
            self.levels[0][leaf / WIDTH].0[leaf % WIDTH] = weight;
        }
        for level in 1..self.levels.len() {
            let (below, above) = self.levels.split_at_mut(level);
            for (index, node) in below[level - 1].iter().enumerate() {
                above[0][index / WIDTH].0[index % WIDTH] = node.sum();
            }
        }
    }

    /// Change some weights, given as leaves and weights (the last one counts for a leaf given twice). Best when
    /// neighbours come one after another: they share their sums. Leaves `changes` in no useful state.
    pub fn set_batch(&mut self, changes: &mut Vec<(usize, f64)>) {
        if changes.len() > self.leaves / WIDTH {
            return self.set_many(changes.drain(..));
        }
        for (leaf, weight) in &mut *changes {
            debug_assert!(weight.is_finite() && *weight >= 0.0 && *leaf < self.leaves);
            self.levels[0][*leaf / WIDTH].0[*leaf % WIDTH] = *weight;
        }
        for level in 1..self.levels.len() {
            // From here on `changes` holds the nodes of the level below, without repeats in a row.
            for (at, _) in &mut *changes {
                *at /= WIDTH;
            }
            changes.dedup_by_key(|(at, _)| *at);
            let (below, above) = self.levels.split_at_mut(level);
            for (at, _) in &*changes {
                above[0][at / WIDTH].0[at % WIDTH] = below[level - 1][*at].sum();
            }
        }
    }

    /// The leaf in whose part of the sum `mass` (0 to [`SumTree::total`]) lies; never one of weight 0.
    ///
    /// Panics when all weights are 0.
    #[inline]
    #[must_use]
    pub fn find(&self, mass: f64) -> usize {
        let mut one = [(mass, 0)];
        self.find_many(&mut one);
        one[0].1
    }

    /// [`SumTree::find`] for many: masses in (with 0), weights and leaves out. Level by level, so that waits for memory
    /// overlap.
    pub fn find_many(&self, looks: &mut [(f64, usize)]) {
        let (leaves, inner) = self.levels.split_first().expect("a level");
        for level in inner.iter().rev() {
            for (mass, at) in &mut *looks {
                let (child, rest) = level[*at].child(*mass);
                *mass = rest;
                *at = *at * WIDTH + child;
            }
        }
        for (mass, at) in looks {
            let node = &leaves[*at];
            let (child, _) = node.child(*mass);
            *mass = node.0[child];
            *at = *at * WIDTH + child;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shapes() {
        for leaves in [1, 7, 8, 9, 64, 65, 513] {
            let mut tree = SumTree::new(leaves);
            tree.set(leaves - 1, 2.0);
            assert_eq!((tree.total(), tree.find(0.0), tree.find(2.0)), (2.0, leaves - 1, leaves - 1));
            assert_eq!((tree.len(), tree.is_empty()), (leaves, false));
        }
    }

    #[test]
    #[should_panic(expected = "weight above 0")]
    fn nothing_to_find() {
        let _ = SumTree::new(9).find(0.0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_sum(
            leaves in 1usize..700,
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0u32..100), 1..200),
            looks in prop::collection::vec(0.0..1.0f64, 20),
        ) {
            let mut tree = SumTree::new(leaves);
            let mut plain = vec![0.0; leaves];
            for (index, weight) in &changes {
                // Whole numbers: sums are exact, so the reference may add in any order.
                plain[index.index(leaves)] = f64::from(*weight);
                tree.set(index.index(leaves), f64::from(*weight));
            }
            let mut at_once = SumTree::new(leaves);
            at_once.set_many(plain.iter().copied().enumerate());
            let mut batch = SumTree::new(leaves);
            batch.set_batch(&mut changes.iter().map(|(index, w)| (index.index(leaves), f64::from(*w))).collect());
            prop_assert_eq!(batch.total(), at_once.total());
            let total: f64 = plain.iter().sum();
            prop_assert_eq!((tree.total(), at_once.total()), (total, total));
            prop_assume!(total > 0.0);
            for look in looks {
                let mass = look * total;
                let mut left = mass;
                let expected = plain.iter().position(|weight| { left -= weight; left < 0.0 }).unwrap();
                prop_assert_eq!([tree.find(mass), at_once.find(mass), batch.find(mass)], [expected; 3]);
                prop_assert_eq!(tree.get(expected), plain[expected]);
            }
        }

        #[test]
        fn never_finds_a_leaf_without_weight(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-12..1e12f64], 1..300), look in 0.0..=1.0f64,
        ) {
            let mut tree = SumTree::new(weights.len());
            tree.set_many(weights.iter().copied().enumerate());
            prop_assume!(tree.total() > 0.0);
            prop_assert!(weights[tree.find(look * tree.total())] > 0.0);
        }
    }
}
