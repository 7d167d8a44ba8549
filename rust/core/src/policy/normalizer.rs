//! Observations in units of their deviation from their mean.

/// Normalises by two tensors that belong to a policy's parameters: clip((x - mean) * scale).
#[derive(Debug)]
pub struct Normalizer {
    mean: Vec<f32>,
    scale: Vec<f32>,
    clip: f32,
    normal: Vec<f32>,
}

impl Normalizer {
    /// For observations of this length; mean and scale are zero. `clip`: largest size of a result.
    #[must_use]
    pub fn new(obs_dim: usize, clip: f32) -> Self {
        Self { mean: vec![0.0; obs_dim], scale: vec![0.0; obs_dim], clip, normal: Vec::new() }
    }

    /// (name, shape) of its tensors, in the order of [`Normalizer::load`].
    #[must_use]
    pub fn manifest(obs_dim: usize) -> [(String, Vec<usize>); 2] {
        ["obs.mean", "obs.scale"].map(|name| (name.to_owned(), vec![obs_dim]))
    }

    /// Take mean and scale: float32, little endian, packed.
    ///
    /// # Panics
    /// When `bytes` has not twice the length of an observation.
    pub fn load(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), 8 * self.mean.len());
        for (value, bytes) in self.mean.iter_mut().chain(&mut self.scale).zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }

    /// Normal observations [rows, obs_dim].
    pub fn apply(&mut self, obs: &[f32]) -> &[f32] {
        let Self { mean, scale, clip, normal } = self;
        normal.clear();
        for row in obs.chunks_exact(mean.len()) {
            let values = row.iter().zip(mean.iter()).zip(scale.iter());
            normal.extend(values.map(|((x, mean), scale)| ((x - mean) * scale).clamp(-*clip, *clip)));
        }
        normal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_deviations_and_clipped() {
        let mut normalizer = Normalizer::new(2, 3.0);
        let bytes: Vec<u8> = [5.0_f32, -1.0, 0.5, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        normalizer.load(&bytes);
        assert_eq!(normalizer.apply(&[6.0, -1.5, 5.0, 9.0]), [0.5, -1.0, 0.0, 3.0]);
        assert!(normalizer.apply(&[f32::NAN, 0.0])[0].is_nan());
    }
}
