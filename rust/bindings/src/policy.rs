//! `rlz._native.Policy`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use rlz_core::policy::{Activation, Head, Policy as Core, Rng};

use crate::array::{ArrayView, describe, output};
use crate::borrow::{Dim, reading};
use crate::doorway::seed as seed_words;
use crate::failure::{Failure, Result};
use crate::parameters::Subscriber;

/// (name, dtype, shape) as Python sees a tensor.
pub(crate) type Tensor<'py> = (String, &'static str, Bound<'py, PyTuple>);

/// Largest width of a layer: far beyond any policy, and no product of two overflows.
const MAX_WIDTH: usize = 1 << 20;

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
    #[pyo3(signature = (*, obs_dim, action_dim, hidden, activation, layer_norm, head, seed, exploration_noise=0.0))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn new(
        py: Python<'_>,
        obs_dim: usize,
        action_dim: usize,
        hidden: Vec<usize>,
        activation: &str,
        layer_norm: bool,
        head: &str,
        seed: &Bound<'_, PyAny>,
        exploration_noise: f32,
    ) -> Result<Self> {
        let choice = |what: &str, given: &str, known: &[&str]| {
            Failure::value(format!("{what}: given {given:?}, expected one of {}", known.join(", ")))
        };
        let activation =
            Activation::parse(activation).ok_or_else(|| choice("activation", activation, &Activation::NAMES))?;
        if !exploration_noise.is_finite() || exploration_noise < 0.0 {
            return Err(Failure::value(format!("exploration_noise: given {exploration_noise}, expected at least 0")));
        }
        let head = Head::parse(head, exploration_noise).ok_or_else(|| choice("head", head, &Head::NAMES))?;
        if head == Head::SquashedGaussian && exploration_noise > 0.0 {
            return Err(Failure::value(format!(
                "exploration_noise: given {exploration_noise}, expected 0 for the head squashed_gaussian, whose actions \
                 are drawn from its own distribution"
            )));
        }
        for (what, size) in [("obs_dim", obs_dim), ("action_dim", action_dim)]
            .into_iter()
            .chain(hidden.iter().map(|&size| ("hidden", size)))
        {
            if !(1..=MAX_WIDTH).contains(&size) {
                return Err(Failure::value(format!("{what}: given {size}, expected 1 to {MAX_WIDTH}")));
            }
        }
        let rng = Rng::new(seed_words(Some(seed), py)?);
        let core = Core::new(obs_dim, action_dim, hidden, activation, layer_norm, head, rng);
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

    #[pyo3(signature = (obs, actions, *, progress=1.0, deterministic=false, extras=None))]
    fn act(
        &mut self,
        obs: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        progress: f64,
        deterministic: bool,
        extras: Option<&Bound<'_, PyDict>>,
    ) -> Result<()> {
        let _ = progress; // for policies with a schedule; this one has none
        let log_prob = extras.map(log_prob_of).transpose()?.flatten();
        let width = self.core.obs_dim();
        let wrong = |got: &Bound<'_, PyAny>| {
            format!("obs: expected a C-contiguous array of shape (m, {width}) of a real dtype, got {}", describe(got))
        };
        if log_prob.is_some() && self.core.head() != Head::SquashedGaussian {
            return Err(Failure::value("log_prob: the actions of a deterministic head have no density; leave it out"));
        }
        let input = ArrayView::new(obs).ok_or_else(|| Failure::kind(wrong(obs)))?;
        let &[rows, given] = input.shape() else { return Err(Failure::value(wrong(obs))) };
        if given != width {
            return Err(Failure::value(wrong(obs)));
        }
        let mut actions = output::<f32>("actions", actions, &[rows, self.core.action_dim()])?;
        let mut log_prob = log_prob.as_ref().map(|array| output::<f32>("log_prob", array, &[rows])).transpose()?;
        if log_prob.as_ref().is_some_and(|log_prob| log_prob.overlaps(&actions)) {
            return Err(Failure::value("actions and log_prob share memory"));
        }
        self.obs.clear();
        input.to_f32(&mut self.obs);
        let actions = actions.elements_mut::<f32>().unwrap_or_default();
        let log_prob = log_prob.as_mut().and_then(ArrayView::elements_mut::<f32>);
        self.core.act(&self.obs, actions, log_prob, deterministic);
        Ok(())
    }

    fn uniform(&mut self, actions: &Bound<'_, PyAny>) -> Result<()> {
        let width = self.core.action_dim();
        let rows = ArrayView::new(actions).and_then(|view| view.shape().first().copied()).unwrap_or(0);
        let mut actions = output::<f32>("actions", actions, &[rows, width])?;
        self.core.uniform(actions.elements_mut::<f32>().unwrap_or_default());
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

/// The array for log_prob among the extras that are asked for.
fn log_prob_of<'py>(extras: &Bound<'py, PyDict>) -> Result<Option<Bound<'py, PyAny>>> {
    for name in extras.keys() {
        if name.extract::<&str>().ok() != Some("log_prob") {
            return Err(Failure::value(format!("extras: given {name}, expected log_prob alone")));
        }
    }
    Ok(extras.get_item("log_prob")?)
}
