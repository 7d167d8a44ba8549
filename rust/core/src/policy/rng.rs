//! The crate's own random numbers: small, fast, and with a state that fits into a checkpoint.

use std::f64::consts::PI;
use std::sync::LazyLock;

use crate::error::{Error, Result};

/// xoshiro256++ (Blackman and Vigna, 2019): period 2^256 - 1, four words of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Length of [`Rng::to_bytes`].
    pub const BYTES: usize = 32;

    /// Start from four seed words, for instance those of numpy's `SeedSequence.generate_state(4, np.uint64)`.
    ///
    /// The words become the state itself. All zeros, the one state that xoshiro cannot leave, stands for four words
    /// of a fixed constant sequence.
    #[must_use]
    pub fn new(seed: [u64; 4]) -> Self {
        if seed == [0; 4] {
            let mut word = 0_u64;
            return Self { state: std::array::from_fn(|_| splitmix64(&mut word)) };
        }
        Self { state: seed }
    }

    /// The state as 32 little-endian bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.state) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The generator whose state [`Rng::to_bytes`] gave; an error for another length or the all-zero state.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let words = bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk));
        let state = <[u64; 4]>::try_from(words.collect::<Vec<_>>());
        state
            .ok()
            .filter(|state| bytes.len() == Self::BYTES && *state != [0; 4])
            .map(|state| Self { state })
            .ok_or_else(|| {
                let expected = format!("{} bytes that are not all zero, as read from `state`", Self::BYTES);
                Error::invalid("state", format!("{} bytes", bytes.len()), expected)
            })
    }

    /// 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..bound`, without bias (Lemire, 2019); 0 when `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let mut product = u128::from(self.next_u64()) * u128::from(bound);
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// Uniform in [0, 1), 53 bits.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in [-1, 1), with the 24 bits that a float32 holds.
    #[inline]
    pub fn symmetric(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 * (1.0 / (1_u32 << 23) as f32) - 1.0
    }

    /// Standard normal, by the ziggurat of Marsaglia and Tsang (2000) with 256 layers.
    ///
    /// Nothing is kept between calls, so the four words are the whole state.
    #[inline]
    pub fn normal(&mut self) -> f64 {
        let table = &*ZIGGURAT;
        loop {
            let bits = self.next_u64();
            let layer = (bits & 0xff) as usize;
            // 53 bits for the position, none of them shared with the layer.
            let position = (bits >> 11) as f64 * (2.0 / (1_u64 << 53) as f64) - 1.0;
            let x = position * table.edge[layer];
            if x.abs() < table.edge[layer + 1] {
                return x;
            }
            if layer == 0 {
                return self.normal_tail().copysign(position);
            }
            let height = table.density[layer + 1] + (table.density[layer] - table.density[layer + 1]) * self.uniform();
            if height < density(x) {
                return x;
            }
        }
    }

    /// The tail beyond the outermost layer (Marsaglia, 1964).
    #[cold]
    fn normal_tail(&mut self) -> f64 {
        loop {
            // 1 - u lies in (0, 1], so the logarithm is finite.
            let x = -(1.0 - self.uniform()).ln() / OUTER_EDGE;
            let y = -(1.0 - self.uniform()).ln();
            if 2.0 * y > x * x {
                return OUTER_EDGE + x;
            }
        }
    }
}

fn splitmix64(word: &mut u64) -> u64 {
    *word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *word;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const LAYERS: usize = 256;
/// Where the outermost of 256 layers ends, as tabulated by Marsaglia and Tsang.
const OUTER_EDGE: f64 = 3.654_152_885_361_009;

/// exp(-x^2 / 2): the normal density without its factor.
fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp()
}

struct Ziggurat {
    edge: [f64; LAYERS + 1],
    density: [f64; LAYERS + 1],
}

static ZIGGURAT: LazyLock<Ziggurat> = LazyLock::new(|| {
    // Each layer has the area of the base strip with its tail: r f(r) + integral of f over (r, inf).
    let area = OUTER_EDGE * density(OUTER_EDGE) + normal_tail_area(OUTER_EDGE);
    let mut edge = [0.0; LAYERS + 1];
    edge[0] = area / density(OUTER_EDGE);
    edge[1] = OUTER_EDGE;
    for i in 2..LAYERS {
        edge[i] = (-2.0 * (area / edge[i - 1] + density(edge[i - 1])).ln()).sqrt();
    }
    Ziggurat { edge, density: edge.map(density) }
});

/// Integral of exp(-t^2/2) over (x, inf), by the continued fraction of the Mills ratio; exact to 1e-15 for x > 3.
fn normal_tail_area(x: f64) -> f64 {
    debug_assert!(x * x > PI);
    let mut fraction = x;
    for k in (1..200).rev() {
        fraction = x + f64::from(k) / fraction;
    }
    density(x) / fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_sequence() {
        // First outputs of the reference C code for the state 1, 2, 3, 4.
        let mut rng = Rng::new([1, 2, 3, 4]);
        let expected = [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386];
        assert_eq!(expected.map(|_| rng.next_u64()), expected);
    }

    #[test]
    fn state_round_trip_continues_the_stream() {
        let mut rng = Rng::new([9, 8, 7, 6]);
        for _ in 0..100 {
            rng.normal();
        }
        let mut copy = Rng::from_bytes(&rng.to_bytes()).unwrap();
        for _ in 0..1000 {
            assert_eq!(rng.normal().to_bits(), copy.normal().to_bits());
        }
        assert!(Rng::from_bytes(&[0; 32]).is_err());
        assert!(Rng::from_bytes(&[1; 31]).is_err());
    }

    #[test]
    fn zero_seed_is_usable() {
        let mut rng = Rng::new([0; 4]);
        assert_ne!(rng.next_u64(), rng.next_u64());
    }

    #[test]
    fn below_covers_every_value_evenly() {
        let mut rng = Rng::new([5, 6, 7, 8]);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
        assert_eq!(rng.below(1), 0);
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn normal_moments_and_tails() {
        let mut rng = Rng::new([11, 12, 13, 14]);
        let n = 2_000_000;
        let (mut m1, mut m2, mut m3, mut m4) = (0.0, 0.0, 0.0, 0.0);
        let (mut beyond_one, mut beyond_three, mut beyond_edge) = (0, 0, 0);
        for _ in 0..n {
            let x = rng.normal();
            m1 += x;
            m2 += x * x;
            m3 += x * x * x;
            m4 += x * x * x * x;
            beyond_one += i32::from(x.abs() > 1.0);
            beyond_three += i32::from(x.abs() > 3.0);
            beyond_edge += i32::from(x.abs() > OUTER_EDGE);
        }
        let n = f64::from(n);
        assert!((m1 / n).abs() < 0.004, "mean {}", m1 / n);
        assert!((m2 / n - 1.0).abs() < 0.006, "variance {}", m2 / n);
        assert!((m3 / n).abs() < 0.015, "skew {}", m3 / n);
        assert!((m4 / n - 3.0).abs() < 0.04, "kurtosis {}", m4 / n);
        assert!((f64::from(beyond_one) / n - 0.317_310_5).abs() < 0.002);
        assert!((f64::from(beyond_three) / n - 0.002_699_8).abs() < 0.000_2);
        assert!((f64::from(beyond_edge) / n - 0.000_258).abs() < 0.000_06);
    }

    #[test]
    fn uniform_ranges() {
        let mut rng = Rng::new([21, 22, 23, 24]);
        let mut sum = 0.0;
        for _ in 0..100_000 {
            let u = rng.uniform();
            assert!((0.0..1.0).contains(&u));
            let s = rng.symmetric();
            assert!((-1.0..1.0).contains(&s));
            sum += f64::from(s);
        }
        assert!((sum / 100_000.0).abs() < 0.01);
    }
}
