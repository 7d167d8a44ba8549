//! Whole numbers from Python: one that does not fit is refused with the argument's name, what was expected and given.
//!
//! Every argument of that kind is converted by the function of its name here. Without it Python's words would be
//! "can't convert negative int to unsigned", of no argument in particular. A test asks all of them.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::array::describe;
use crate::failure::Failure;

/// Types of such arguments.
pub(crate) trait Whole: Sized {
    /// What is expected, in words.
    const EXPECTED: &'static str;
    /// Convert it as Python's protocols say.
    fn take(given: &Bound<'_, PyAny>) -> PyResult<Self>;
}

macro_rules! wholes {
    ($($kind:ty: $expected:literal),+ $(,)?) => { $(
        impl Whole for $kind {
            const EXPECTED: &'static str = $expected;

            #[inline]
            fn take(given: &Bound<'_, PyAny>) -> PyResult<Self> {
                given.extract()
            }
        }
    )+ };
}

wholes! {
    u16: "a whole number from 0 to 65535",
    u64: "a whole number from 0 to 2**64 - 1",
    usize: "a whole number from 0 to 2**64 - 1",
    i32: "a whole number from -2**31 to 2**31 - 1",
    Vec<u16>: "a sequence of whole numbers from 0 to 65535",
    Vec<usize>: "a sequence of whole numbers from 0 to 2**64 - 1",
    Vec<i64>: "a sequence of whole numbers from -2**63 to 2**63 - 1",
    Vec<Vec<usize>>: "sequences of whole numbers from 0 to 2**64 - 1",
    Vec<(usize, u64, u64)>: "sequences of three whole numbers from 0 to 2**64 - 1",
    (u64, u64): "two whole numbers from 0 to 2**64 - 1",
}

impl<T: Whole> Whole for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    #[inline]
    fn take(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if given.is_none() { Ok(None) } else { T::take(given).map(Some) }
    }
}

/// ValueError for a number that does not fit, TypeError for anything else.
#[cold]
fn refused<T: Whole>(name: &str, given: &Bound<'_, PyAny>, error: &PyErr) -> PyErr {
    let too_large = error.is_instance_of::<PyOverflowError>(given.py());
    let shown = given.repr().map(|text| text.to_string()).ok().filter(|text| too_large && text.len() <= 100);
    let message = format!("{name}: expected {}, got {}", T::EXPECTED, shown.unwrap_or_else(|| describe(given)));
    if too_large { Failure::value(message).into() } else { Failure::kind(message).into() }
}

macro_rules! arguments {
    ($($name:ident)+) => { $(
        #[inline]
        pub(crate) fn $name<T: Whole>(given: &Bound<'_, PyAny>) -> PyResult<T> {
            T::take(given).map_err(|error| refused::<T>(stringify!($name), given, &error))
        }
    )+ };
}

arguments! {
    action_dim buffer_size choices control_fd count env_steps event_capacity event_width fd first first_ticket flags
    group groups hidden index lane lanes learning_starts leases max_deliveries most n_step nbytes note obs_dim
    parent_pid payload_fd phase position ranges ratio
    rows run_id shape since slot slots threads ticket total_timesteps updates
    version which worker
}
