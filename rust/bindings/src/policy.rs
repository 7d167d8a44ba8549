//! `rlz._native.Policy`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use rlz_core::policy::{Actions, Activation, Epsilon, Extras, Head, Moment, Policy as Core, Rng, Spec, Value};

use crate::array::{ArrayView, describe, output};
use crate::borrow::{Dim, reading};
use crate::doorway::seed as seed_words;
use crate::failure::{Failure, Result};
use crate::parameters::Subscriber;
use crate::whole;

/// (name, dtype, shape) as Python sees a tensor.
pub(crate) type Tensor<'py> = (String, &'static str, Bound<'py, PyTuple>);

/// Largest width of a layer: far beyond any policy, and no product of two overflows.
const MAX_WIDTH: usize = 1 << 20;

/// Names of extras.
const LOG_PROB: &str = "log_prob";
const VALUE: &str = "value";

/// An [`Epsilon`] as a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct EpsilonItems {
    start: f64,
    end: f64,
    over: f64,
    spread: f64,
}

#[pyclass(module = "rlz._native")]
pub(crate) struct Policy {
    core: Core,
    version: u64,
    /// Observations as float32.
    obs: Vec<f32>,
    /// Parameters on their way from the store to the network.
    parameters: Vec<u8>,
}

#[pymethods]
impl Policy {
    #[new]
    #[pyo3(signature = (
        *, obs_dim, action_dim, hidden, activation, layer_norm, head, seed, exploration_noise=0.0, choices=vec![],
        epsilon=None, value="none", obs_clip=None
    ))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = whole::obs_dim)] obs_dim: usize,
        #[pyo3(from_py_with = whole::action_dim)] action_dim: usize,
        #[pyo3(from_py_with = whole::hidden)] hidden: Vec<usize>,
        activation: &str,
        layer_norm: bool,
        head: &str,
        seed: &Bound<'_, PyAny>,
        exploration_noise: f32,
        #[pyo3(from_py_with = whole::choices)] choices: Vec<usize>,
        epsilon: Option<EpsilonItems>,
        value: &str,
        obs_clip: Option<f32>,
    ) -> Result<Self> {
        let activation = Activation::parse(activation).ok_or_else(|| {
            let known = Activation::NAMES.join(", ");
            Failure::value(format!("activation: given {activation:?}, expected one of {known}"))
        })?;
        let epsilon = epsilon.map(|EpsilonItems { start, end, over, spread }| Epsilon { start, end, over, spread });
        let head = Head::parse(head, exploration_noise, &choices, epsilon)?;
        for (what, size) in [("obs_dim", obs_dim), ("action_dim", action_dim)]
            .into_iter()
            .chain(hidden.iter().map(|&size| ("hidden", size)))
            .chain(choices.iter().map(|&size| ("choices", size)))
        {
            if !(1..=MAX_WIDTH).contains(&size) {
                return Err(Failure::value(format!("{what}: given {size}, expected 1 to {MAX_WIDTH}")));
            }
        }
        if head.choices().is_some_and(|choices| choices.len() != action_dim) {
            return Err(Failure::value(format!(
                "choices: given {}, expected one number for each of the {action_dim} components of an action",
                choices.len()
            )));
        }
        let value = Value::parse(value)?;
        if let Some(clip) = obs_clip.filter(|clip| !(clip.is_finite() && *clip > 0.0)) {
            return Err(Failure::value(format!("obs_clip: given {clip}, expected a number above 0")));
        }
        let rng = Rng::new(seed_words(Some(seed), py)?);
        let core = Core::new(Spec { obs_dim, action_dim, hidden, activation, layer_norm, head, value, obs_clip }, rng);
        Ok(Self { core, version: 0, obs: Vec::new(), parameters: Vec::new() })
    }

    #[getter]
    fn manifest<'py>(&self, py: Python<'py>) -> Result<Vec<Tensor<'py>>> {
        let tensors = self.core.manifest().into_iter();
        tensors.map(|(name, shape)| Ok((name, "f32", PyTuple::new(py, shape)?))).collect()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.core.nbytes()
    }

    fn load(&mut self, parameters: &Bound<'_, PyAny>) -> Result<()> {
        let bytes = reading::<u8>("parameters", parameters, &[Dim::Any("bytes")])?;
        if bytes.len() != self.core.nbytes() {
            return Err(Failure::value(format!(
                "parameters: given {} bytes, expected {} (see manifest)",
                bytes.len(),
                self.core.nbytes()
            )));
        }
        self.core.load(&bytes);
        Ok(())
    }

    fn refresh(&mut self, py: Python<'_>, subscriber: &Subscriber) -> Result<u64> {
        let newest = subscriber.newest()?;
        if newest != self.version {
            let Self { core, parameters, version, .. } = self;
            parameters.resize(core.nbytes(), 0);
            *version = py
                .detach(|| {
                    let publication = subscriber.read_into(parameters)?;
                    core.load(parameters);
                    Ok::<_, Failure>(publication)
                })?
                .version;
        }
        Ok(self.version)
    }

    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    #[pyo3(signature = (obs, actions, *, progress=1.0, deterministic=false, ranks=None, extras=None))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn act(
        &mut self,
        obs: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        progress: f64,
        deterministic: bool,
        ranks: Option<&Bound<'_, PyAny>>,
        extras: Option<&Bound<'_, PyDict>>,
    ) -> Result<()> {
        let asked = extras.map(|extras| self.asked(extras)).transpose()?.unwrap_or_default();
        let width = self.core.obs_dim();
        let wrong = |got: &Bound<'_, PyAny>| {
            format!("obs: expected a C-contiguous array of shape (m, {width}) of a real dtype, got {}", describe(got))
        };
        let input = ArrayView::new(obs).ok_or_else(|| Failure::kind(wrong(obs)))?;
        let &[rows, given] = input.shape() else { return Err(Failure::value(wrong(obs))) };
        if given != width {
            return Err(Failure::value(wrong(obs)));
        }
        let mut actions = self.actions(actions, rows)?;
        let mut outputs = Vec::with_capacity(asked.len()); // no allocation for none
        for (name, array) in &asked {
            let output = output::<f32>(name, array, &[rows])?;
            if output.overlaps(&actions) || outputs.iter().any(|(_, other)| output.overlaps(other)) {
                return Err(Failure::value(format!("actions and {name}, or two of the extras, share memory")));
            }
            outputs.push((*name, output));
        }
        let ranks = ranks.map(|ranks| reading::<f32>("ranks", ranks, &[Dim::Exactly(rows)])).transpose()?;
        let ranks = ranks.as_deref().unwrap_or_default();
        self.obs.clear();
        input.to_f32(&mut self.obs);
        let mut extras = Extras::default();
        for (name, output) in &mut outputs {
            let into = output.elements_mut::<f32>();
            match *name {
                LOG_PROB => extras.log_prob = into,
                _ => extras.value = into,
            }
        }
        let moment = Moment { progress, deterministic, ranks };
        let actions = kind_of(&mut actions, self.core.head());
        Ok(self.core.act(&self.obs, actions, extras, moment)?)
    }

    fn uniform(&mut self, actions: &Bound<'_, PyAny>) -> Result<()> {
        let rows = ArrayView::new(actions).and_then(|view| view.shape().first().copied()).unwrap_or(0);
        let mut actions = self.actions(actions, rows)?;
        let actions = kind_of(&mut actions, self.core.head());
        self.core.uniform(actions);
        Ok(())
    }

    #[getter]
    fn state<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.core.rng_mut().to_bytes())
    }

    #[setter]
    fn set_state(&mut self, value: &[u8]) -> Result<()> {
        *self.core.rng_mut() = Rng::from_bytes(value)?;
        Ok(())
    }
}

impl Policy {
    /// The array for the actions of so many rows, of the head's dtype.
    fn actions<'a>(&self, actions: &'a Bound<'_, PyAny>, rows: usize) -> Result<ArrayView<'a>> {
        let shape = [rows, self.core.action_dim()];
        match self.core.head().choices() {
            Some(_) => output::<i64>("actions", actions, &shape),
            None => output::<f32>("actions", actions, &shape),
        }
    }

    /// The arrays of the extras that are asked for.
    fn asked<'py>(&self, extras: &Bound<'py, PyDict>) -> Result<Vec<(&'static str, Bound<'py, PyAny>)>> {
        let has = [(LOG_PROB, self.core.head().has_log_prob()), (VALUE, self.core.value() != Value::None)];
        let asked = extras.iter().map(|(name, array)| {
            match has.iter().find(|(known, _)| name.extract::<&str>().is_ok_and(|name| name == *known)) {
                Some((known, true)) => Ok((*known, array)),
                Some((LOG_PROB, _)) => Err(Failure::value(
                    "log_prob: the actions of this head (deterministic, epsilon_greedy) have no density; leave it out",
                )),
                Some(_) => Err(Failure::value("value: this policy values nothing (value=\"none\"); leave it out")),
                None => Err(Failure::value(format!("extras: given {name}, expected {LOG_PROB} or {VALUE}"))),
            }
        });
        asked.collect()
    }
}

/// The elements of an array of actions, as the head has them.
fn kind_of<'a>(actions: &'a mut ArrayView<'_>, head: &Head) -> Actions<'a> {
    match head.choices() {
        Some(_) => Actions::Choices(actions.elements_mut::<i64>().unwrap_or_default()),
        None => Actions::Reals(actions.elements_mut::<f32>().unwrap_or_default()),
    }
}
