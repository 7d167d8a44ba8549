use super::kernels::Isa;
use super::*;

fn random_mlp(spec: MlpSpec, isa: Isa, rng: &mut Rng) -> (Mlp, Vec<f32>) {
    let values: Vec<f32> = (0..spec.parameters()).map(|_| rng.symmetric() * 0.3).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut mlp = Mlp::with_isa(spec, isa);
    mlp.load(&bytes);
    (mlp, values)
}

/// The same network in float64, straight from the definition.
fn reference(spec: &MlpSpec, values: &[f32], x: &[f32]) -> Vec<f64> {
    let mut values = values.iter().map(|&v| f64::from(v));
    let mut x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let sizes: Vec<usize> = spec.hidden.iter().copied().chain([spec.output]).collect();
    for (i, &output) in sizes.iter().enumerate() {
        let mut y = vec![0.0; output];
        for &xi in &x {
            for y in &mut y {
                *y += xi * values.next().unwrap();
            }
        }
        y.iter_mut().for_each(|y| *y += values.next().unwrap());
        if i < spec.hidden.len() {
            if spec.layer_norm {
                let mean = y.iter().sum::<f64>() / output as f64;
                let variance = y.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / output as f64;
                y.iter_mut().for_each(|v| *v = (*v - mean) / (variance + 1e-5).sqrt());
                y.iter_mut().for_each(|v| *v *= values.next().unwrap());
                y.iter_mut().for_each(|v| *v += values.next().unwrap());
            }
            y.iter_mut().for_each(|v| {
                *v = match spec.activation {
                    Activation::Relu => v.max(0.0),
                    Activation::Tanh => v.tanh(),
                    Activation::Silu => *v / (1.0 + (-*v).exp()),
                    Activation::Elu => {
                        if *v > 0.0 {
                            *v
                        } else {
                            v.exp_m1()
                        }
                    }
                }
            });
        }
        x = y;
    }
    x
}

#[test]
fn every_instruction_set_agrees_with_the_definition() {
    let mut rng = Rng::new([1, 2, 3, 4]);
    for isa in Isa::available() {
        for activation in [Activation::Relu, Activation::Tanh, Activation::Silu, Activation::Elu] {
            for layer_norm in [false, true] {
                for hidden in [vec![], vec![1], vec![33], vec![64, 48], vec![256, 17, 100]] {
                    let (input, output) = (1 + rng.below(40) as usize, 1 + rng.below(40) as usize);
                    let spec = MlpSpec { input, hidden, output, activation, layer_norm };
                    let (mut mlp, values) = random_mlp(spec.clone(), isa, &mut rng);
                    for rows in [1, 2, 3, 5, 8] {
                        let x: Vec<f32> = (0..rows * input).map(|_| rng.normal() as f32).collect();
                        mlp.forward(&x, rows, |row, outputs| {
                            let expected = reference(&spec, &values, &x[row * input..(row + 1) * input]);
                            for (output, expected) in outputs.iter().zip(expected) {
                                let error = (f64::from(*output) - expected).abs();
                                assert!(error < 1e-5 * (1.0 + expected.abs()), "{isa:?} {spec:?}: {error}");
                            }
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch() {
    let mut rng = Rng::new([4, 3, 2, 1]);
    for isa in Isa::available() {
        let spec =
            MlpSpec { input: 27, hidden: vec![256, 256], output: 16, activation: Activation::Relu, layer_norm: false };
        let (mut mlp, _) = random_mlp(spec, isa, &mut rng);
        let x: Vec<f32> = (0..7 * 27).map(|_| rng.symmetric()).collect();
        let mut together = Vec::new();
        mlp.forward(&x, 7, |_, outputs| together.push(outputs.to_vec()));
        for (row, expected) in together.iter().enumerate() {
            mlp.forward(&x[row * 27..(row + 1) * 27], 1, |_, outputs| assert_eq!(outputs, expected));
        }
    }
}

#[test]
fn manifest_covers_the_parameters() {
    let spec = |head, value| Spec {
        obs_dim: 27,
        action_dim: 8,
        hidden: vec![256, 128],
        activation: Activation::Relu,
        layer_norm: true,
        head,
        value,
        obs_clip: None,
    };
    let names = |policy: &Policy| policy.manifest().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let policy = Policy::new(spec(Head::SquashedGaussian, Value::None), Rng::new([1; 4]));
    assert_eq!(
        names(&policy),
        [
            "actor.0.weight",
            "actor.0.bias",
            "actor.0.norm.weight",
            "actor.0.norm.bias",
            "actor.1.weight",
            "actor.1.bias",
            "actor.1.norm.weight",
            "actor.1.norm.bias",
            "actor.head.weight",
            "actor.head.bias"
        ]
    );
    assert_eq!(policy.nbytes(), 4 * (27 * 256 + 3 * 256 + 256 * 128 + 3 * 128 + 128 * 16 + 16));
    let body = 27 * 256 + 3 * 256 + 256 * 128 + 3 * 128;
    let policy = Policy::new(spec(Head::Gaussian, Value::Separate), Rng::new([1; 4]));
    assert_eq!([&names(&policy)[0], &names(&policy)[11]], ["actor.log_std", "critic.0.weight"]);
    assert_eq!(policy.nbytes(), 4 * (2 * body + 129 * 8 + 8 + 129));
    let mut shared = spec(Head::Gaussian, Value::Shared);
    assert_eq!(Policy::new(shared.clone(), Rng::new([1; 4])).nbytes(), 4 * (body + 129 * 9 + 8));
    shared.obs_clip = Some(10.0);
    let policy = Policy::new(shared, Rng::new([1; 4]));
    assert_eq!(names(&policy)[11..], ["obs.mean", "obs.scale"]);
    assert_eq!(policy.nbytes(), 4 * (body + 129 * 9 + 8 + 2 * 27));
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let mut rng = Rng::new([1, 2, 3, 4]);
    for isa in Isa::available() {
        for rows in [1, 4, 16, 64] {
            for activation in [Activation::Relu, Activation::Tanh] {
                let spec = MlpSpec { input: 27, hidden: vec![256, 256], output: 16, activation, layer_norm: false };
                let (mut mlp, _) = random_mlp(spec, isa, &mut rng);
                let x: Vec<f32> = (0..rows * 27).map(|_| rng.symmetric()).collect();
                let mut best = f64::MAX;
                for _ in 0..20 {
                    let start = std::time::Instant::now();
                    for _ in 0..100 {
                        mlp.forward(std::hint::black_box(&x), rows, |_, outputs| {
                            std::hint::black_box(outputs);
                        });
                    }
                    best = best.min(start.elapsed().as_secs_f64() / 100.0);
                }
                println!("{isa:?} {activation:?} rows {rows}: {:.2} us", best * 1e6);
            }
        }
    }
}
