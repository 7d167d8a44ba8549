//! What the kernels ask of a register, and how a kernel is compiled for one instruction set.

#![allow(unsafe_code)] // Declares what must hold; `Isa::run` alone vouches for it.

/// One register of float32.
///
/// # Safety
/// Every function is compiled for the instruction set of its implementor: call them from [`Kernel::run`] alone, which
/// `Isa::run` starts on a processor that has the instructions. Pointers need no alignment.
pub(super) unsafe trait Vector: Copy {
    /// Numbers in a register.
    const LANES: usize;
    /// Rows of the largest tile of sums.
    const ROWS: usize;
    /// Registers of one row of a tile. `ROWS * VECTORS` sums, one row of the right side and a number of the left one
    /// fit into the register file.
    const VECTORS: usize;
    /// `f32::mul_add` is one instruction.
    const FMA: bool;
    /// Factors of `add_product` are pairs of bf16: each 32 bits hold two numbers, whose two products are added.
    const PAIRS: bool = false;

    /// # Safety
    /// As the trait; `LANES` numbers can be read.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// As the trait; `LANES` numbers can be written.
    unsafe fn store(self, to: *mut f32);
    /// # Safety
    /// As the trait.
    unsafe fn splat(value: f32) -> Self;
    /// `self + a * b`; sums are float32.
    /// # Safety
    /// As the trait.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    /// The larger of 0 and each number; NaN stays NaN.
    /// # Safety
    /// As the trait.
    unsafe fn relu(self) -> Self;
    /// `self` where `sign` is above 0, else 0.
    /// # Safety
    /// As the trait.
    unsafe fn where_positive(self, sign: Self) -> Self;
    /// All numbers added up.
    /// # Safety
    /// As the trait.
    unsafe fn sum(self) -> f32;
    /// `to[c][r] = from[r][c]` for 8 x 8 numbers; rows are `from_step` and `to_step` apart.
    /// # Safety
    /// As the trait; both blocks can be accessed.
    unsafe fn transpose(from: *const f32, from_step: usize, to: *mut f32, to_step: usize);
    /// The numbers of `low`, then those of `high`, as bf16. Where there are `PAIRS`.
    /// # Safety
    /// As the trait.
    unsafe fn narrow(low: Self, high: Self) -> Self {
        _ = (low, high);
        unreachable!("no bf16")
    }
    /// Pairs of bf16 of the numbers at the same place, `even` in the low half. Where there are `PAIRS`.
    /// # Safety
    /// As the trait.
    unsafe fn pair(even: Self, odd: Self) -> Self {
        _ = (even, odd);
        unreachable!("no bf16")
    }
}

/// A loop nest that is compiled once for each instruction set. Mark `run` `#[inline(always)]`, and all that it calls,
/// so that it becomes part of the function that has the instructions.
pub(super) trait Kernel {
    type Output;

    /// # Safety
    /// The processor has the instructions of `V`.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

/// The instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every processor of the architecture has.
    Portable,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, with AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same, with products of bf16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Isa {
    /// Every set that this processor runs, best first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            if is_x86_feature_detected!("avx512f") {
                if is_x86_feature_detected!("avx512bf16") {
                    sets.push(Self::Avx512Bf16);
                }
                sets.push(Self::Avx512);
            }
            sets.push(Self::Avx2);
        }
        sets.push(Self::Portable);
        sets
    }

    /// Name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "AVX-512 (BF16)",
        }
    }

    /// There are products of bf16.
    #[must_use]
    pub fn bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let found = self == Self::Avx512Bf16;
        #[cfg(not(target_arch = "x86_64"))]
        let found = false;
        found
    }

    /// Floating-point operations a second of one core that does nothing but multiply and add, float32 or bf16: the best
    /// of a few milliseconds.
    #[must_use]
    pub fn peak(self, bf16: bool) -> f64 {
        let measure = || {
            let begin = std::time::Instant::now();
            std::hint::black_box(self.run_products(bf16, Sums(20_000)));
            20_000.0 / begin.elapsed().as_secs_f64()
        };
        let numbers = self.run_products(bf16, Numbers) as f64;
        (0..20).map(|_| measure()).fold(0.0, f64::max) * numbers * 2.0
    }

    /// Run a kernel with these instructions.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            // SAFETY: every processor of the architecture has the baseline.
            Self::Portable => unsafe { kernel.run::<super::portable::Lanes>() },
            // SAFETY: whoever has this value got it from `available`, which found the instructions.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { super::avx2::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 => unsafe { super::avx512::run(kernel) },
        }
    }

    /// As `run`; with `bf16` on registers whose factors are pairs of bf16.
    ///
    /// # Panics
    /// When there are no such products.
    pub(super) fn run_products<K: Kernel>(self, bf16: bool, kernel: K) -> K::Output {
        match self {
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 if bf16 => unsafe { super::avx512_bf16::run(kernel) },
            _ => {
                assert!(!bf16, "{} has no products of bf16", self.name());
                self.run(kernel)
            }
        }
    }
}

/// Independent sums that hide the latency of an addition.
const SUMS: usize = 12;

/// Adds products to `SUMS` registers so many times.
struct Sums(usize);

impl Kernel for Sums {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the caller's word.
        unsafe {
            let factor = V::splat(std::hint::black_box(0.5));
            let mut sums = [factor; SUMS];
            for _ in 0..self.0 {
                for sum in &mut sums {
                    *sum = factor.add_product(*sum, factor);
                }
            }
            sums.into_iter().map(|sum| sum.sum()).sum()
        }
    }
}

/// Numbers that one round of [`Sums`] multiplies.
struct Numbers;

impl Kernel for Numbers {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> usize {
        SUMS * V::LANES * if V::PAIRS { 2 } else { 1 }
    }
}
