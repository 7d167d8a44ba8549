//! Against a plain float64 network, whose own gradients are checked by finite differences.

use std::ops::Range;

use proptest::prelude::*;

use super::{Isa, Machine, Rows, Shape, Step, Wanted, adam, backward, commit, forward, polyak};
use crate::policy::Activation;

/// Numbers between -1 and 1 that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Parameters of a size that keeps activations near 1.
fn parameters(shape: &Shape, seed: u64) -> Vec<f32> {
    let mut flat = numbers(shape.numel(), seed);
    for layer in shape.layers() {
        let size = shape.members * layer.weights();
        let scale = (3.0 / layer.input as f32).sqrt();
        flat[layer.weight..layer.weight + size].iter_mut().for_each(|value| *value *= scale);
    }
    flat
}

/// The networks in float64, one row at a time; gradients by the chain rule, as a textbook has it.
struct Reference {
    y: Vec<f64>,
    dflat: Vec<f64>,
    dx: Vec<f64>,
}

fn activate(activation: Activation, x: f64) -> (f64, f64) {
    match activation {
        Activation::Relu => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        Activation::Tanh => (x.tanh(), 1.0 - x.tanh() * x.tanh()),
        Activation::Silu => {
            let s = 1.0 / (1.0 + (-x).exp());
            (x * s, s + x * s * (1.0 - s))
        }
        Activation::Elu => {
            if x > 0.0 {
                (x, 1.0)
            } else {
                (x.exp() - 1.0, x.exp())
            }
        }
    }
}

/// To bf16, the nearest and of two the even one.
fn narrow(value: f64) -> f64 {
    f64::from(half::bf16::from_f64(value).to_f32())
}

/// With `bf16` the factors of the hidden layers' products are rounded, and nothing else.
fn reference(shape: &Shape, flat: &[f64], x: &[f64], dy: &[f64]) -> Reference {
    let (layers, rows) = (shape.layers(), x.len() / shape.inputs);
    let (mut y, mut dflat, mut dx) = (Vec::new(), vec![0.0; flat.len()], vec![0.0; x.len()]);
    for member in 0..shape.used {
        for row in 0..rows {
            let mut values = vec![x[row * shape.inputs..][..shape.inputs].to_vec()];
            let (mut slopes, mut normals) = (Vec::new(), Vec::new());
            for (index, layer) in layers.iter().enumerate() {
                let weight = &flat[layer.weight + member * layer.weights()..];
                let input = values.last().unwrap();
                let factor = if layer.bf16 { narrow } else { |value| value };
                let mut z: Vec<f64> = (0..layer.output)
                    .map(|o| {
                        let dot: f64 =
                            (0..layer.input).map(|i| factor(input[i]) * factor(weight[i * layer.output + o])).sum();
                        dot + flat[layer.bias + member * layer.output + o]
                    })
                    .collect();
                if let Some((scale, shift)) = layer.norm {
                    let count = layer.output as f64;
                    let mean = z.iter().sum::<f64>() / count;
                    let variance = z.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / count;
                    let inverse = 1.0 / (variance + 1e-5).sqrt();
                    let normal: Vec<f64> = z.iter().map(|z| (z - mean) * inverse).collect();
                    let own = member * layer.output;
                    z = (0..layer.output).map(|o| normal[o] * flat[scale + own + o] + flat[shift + own + o]).collect();
                    normals.push((normal, inverse));
                }
                if index + 1 < layers.len() {
                    slopes.push(z.iter().map(|&z| activate(shape.activation, z).1).collect::<Vec<_>>());
                    z.iter_mut().for_each(|z| *z = activate(shape.activation, *z).0);
                }
                values.push(z);
            }
            y.extend(values.last().unwrap());
            let mut delta = dy[(member * rows + row) * shape.outputs..][..shape.outputs].to_vec();
            for (index, layer) in layers.iter().enumerate().rev() {
                if index + 1 < layers.len() {
                    delta.iter_mut().zip(&slopes[index]).for_each(|(delta, slope)| *delta *= slope);
                    if let Some((scale, shift)) = layer.norm {
                        let (normal, inverse) = &normals[index];
                        let own = member * layer.output;
                        for o in 0..layer.output {
                            dflat[scale + own + o] += delta[o] * normal[o];
                            dflat[shift + own + o] += delta[o];
                            delta[o] *= flat[scale + own + o];
                        }
                        let count = layer.output as f64;
                        let plain = delta.iter().sum::<f64>() / count;
                        let along = delta.iter().zip(normal).map(|(d, n)| d * n).sum::<f64>() / count;
                        for (delta, normal) in delta.iter_mut().zip(normal) {
                            *delta = inverse * (*delta - plain - normal * along);
                        }
                    }
                }
                let at = layer.weight + member * layer.weights();
                let factor = if layer.bf16 { narrow } else { |value| value };
                let mut below = vec![0.0; layer.input];
                for i in 0..layer.input {
                    for o in 0..layer.output {
                        dflat[at + i * layer.output + o] += factor(values[index][i]) * factor(delta[o]);
                        below[i] += factor(flat[at + i * layer.output + o]) * factor(delta[o]);
                    }
                }
                for o in 0..layer.output {
                    dflat[layer.bias + member * layer.output + o] += delta[o];
                }
                delta = below;
            }
            dx[row * shape.inputs..][..shape.inputs].iter_mut().zip(delta).for_each(|(dx, delta)| *dx += delta);
        }
    }
    Reference { y, dflat, dx }
}

/// Largest difference, relative to the size of what is expected.
fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(1e-30, |size: f64, value| size.max(value.abs()));
    found
        .iter()
        .zip(expected)
        .map(|(&f, e)| (f64::from(f) - e).abs())
        .fold(0.0, |most, each| if each.is_nan() { f64::INFINITY } else { f64::max(most, each) })
        / size
}

/// Length of the difference, relative to that of what is expected.
fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let apart = length(&mut found.iter().zip(expected).map(|(&f, e)| f64::from(f) - e));
    if apart.is_nan() { f64::INFINITY } else { apart / length(&mut expected.iter().copied()).max(1e-30) }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Outputs and both gradients. Every slice begins in the middle of a cache line, and rows are further apart than wide.
fn run(machine: Machine, shape: &Shape, flat: &[f32], x: &[f32], dy: &[f32]) -> [Vec<f32>; 3] {
    let rows = x.len() / shape.inputs;
    let step = shape.inputs + 3;
    let mut strided = vec![f32::NAN; 1 + rows * step];
    for row in 0..rows {
        strided[1 + row * step..][..shape.inputs].copy_from_slice(&x[row * shape.inputs..][..shape.inputs]);
    }
    let shifted = |values: &[f32]| [&[f32::NAN], values].concat();
    let (flat, dy) = (shifted(flat), shifted(dy));
    let mut y = vec![f32::NAN; 1 + shape.used * rows * shape.outputs];
    let mut kept = vec![f32::NAN; 1 + rows * shape.kept()];
    let (mut dflat, mut dx) = (vec![f32::NAN; flat.len()], vec![f32::NAN; 1 + x.len()]);
    let view = Rows::new(&strided[1..], rows, shape.inputs, step);
    forward(machine, shape, &flat[1..], view, &mut y[1..], None);
    let without = y.clone();
    forward(machine, shape, &flat[1..], view, &mut y[1..], Some(&mut kept[1..]));
    assert!(bits(&without) == bits(&y), "outputs do not depend on what is kept");
    let back = |parameters: Option<&mut Vec<f32>>, columns: Range<usize>, dx: Option<&mut Vec<f32>>| {
        let wanted = Wanted {
            parameters: parameters.map(|gradient| &mut gradient[1..]),
            inputs: dx.map(|dx| (columns, &mut dx[1..])),
        };
        backward(machine, shape, &flat[1..], &kept[1..], rows, &dy[1..], wanted);
    };
    let all = 0..shape.inputs;
    back(Some(&mut dflat), all.clone(), Some(&mut dx));
    let (mut only_flat, mut only_x) = (dflat.clone(), dx.clone());
    back(Some(&mut only_flat), 0..0, None);
    back(None, all, Some(&mut only_x));
    let same = bits(&only_flat) == bits(&dflat) && bits(&only_x) == bits(&dx);
    assert!(same, "one gradient does not depend on the other");
    let some = shape.inputs / 3..shape.inputs;
    let mut columns = vec![f32::NAN; 1 + rows * some.len()];
    back(None, some.clone(), Some(&mut columns));
    let expected: Vec<f32> = dx[1..].chunks_exact(shape.inputs).flat_map(|row| &row[some.clone()]).copied().collect();
    assert!(bits(&columns[1..]) == bits(&expected), "some columns are those of the whole");
    [y, dflat, dx].map(|values| values[1..].to_vec())
}

fn check(shape: &Shape, rows: usize, seed: u64) {
    let (flat, x) = (parameters(shape, seed), numbers(rows * shape.inputs, seed + 1));
    let mut dy = numbers(shape.used * rows * shape.outputs, seed + 2);
    if seed.is_multiple_of(2) {
        // Rows of one network without a gradient, as where another one was the smallest.
        dy.chunks_exact_mut(shape.outputs).step_by(3).for_each(|row| row.fill(0.0));
    }
    let expected = reference(shape, &wide(&flat), &wide(&x), &wide(&dy));
    // A sum that is rounded to bf16 the other way in float32 than in float64 moves some numbers by 2^-8, and may turn a
    // ReLU.
    let limit = if shape.bf16 { 1e-2 } else { 2e-4 };
    for isa in Isa::available().into_iter().filter(|isa| isa.bf16() || !shape.bf16) {
        let found = run(Machine { isa, threads: 1 }, shape, &flat, &x, &dy);
        for (name, found, expected) in [
            ("outputs", &found[0], &expected.y),
            ("gradient of parameters", &found[1], &expected.dflat),
            ("gradient of inputs", &found[2], &expected.dx),
        ] {
            let error = if shape.bf16 { distance(found, expected) } else { error(found, expected) };
            assert!(error < limit, "{} of {shape:?}, {rows} rows, {}: {error}", name, isa.name());
        }
        assert!(found == run(Machine { isa, threads: 3 }, shape, &flat, &x, &dy), "threads do not change a bit");
    }
}

fn shape(members: usize, used: usize, sizes: [usize; 2], hidden: &[usize]) -> Shape {
    let [inputs, outputs] = sizes;
    let (activation, hidden) = (Activation::Relu, hidden.to_vec());
    Shape { members, used, inputs, hidden, outputs, activation, layer_norm: false, bf16: false }
}

#[test]
fn agrees_with_float64_at_the_sizes_of_training() {
    for bf16 in [false, true] {
        check(&Shape { bf16, ..shape(2, 2, [35, 1], &[256, 256]) }, 256, 1);
        check(&Shape { bf16, ..shape(1, 1, [27, 16], &[256, 256]) }, 300, 2);
        check(&Shape { bf16, ..shape(5, 2, [7, 1], &[64, 40, 33]) }, 129, 3);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_float64(
        members in 1_usize..6,
        unused in 0_usize..3,
        inputs in 1_usize..40,
        outputs in prop_oneof![1_usize..6, 6_usize..40],
        hidden in prop::collection::vec(prop_oneof![1_usize..9, 20_usize..70], 0..5),
        rows in prop_oneof![1_usize..14, 100_usize..300],
        activation in 0_usize..4,
        layer_norm: bool,
        bf16: bool,
        seed: u64,
    ) {
        let activation = Activation::parse(Activation::NAMES[activation]).unwrap();
        // ReLU's gradient jumps: float32 and float64 may fall on different sides. LayerNorm of two equal numbers too.
        // In bf16 that is a thousand times as likely, so ReLU is left to the fixed numbers above.
        let bf16 = bf16 && activation != Activation::Relu;
        let hidden: Vec<_> = hidden.into_iter().map(|width| if layer_norm { width + 8 } else { width }).collect();
        let shape = Shape { activation, layer_norm, bf16, ..shape(members, members.saturating_sub(unused).max(1), [inputs, outputs], &hidden) };
        check(&shape, rows, seed >> 1);
    }
}

#[test]
fn the_reference_agrees_with_finite_differences() {
    for (index, name) in Activation::NAMES.into_iter().enumerate() {
        for layer_norm in [false, true] {
            let shape =
                Shape { activation: Activation::parse(name).unwrap(), layer_norm, ..shape(2, 2, [3, 2], &[9, 7]) };
            let seed = 10 * index as u64;
            let (flat, x) = (wide(&parameters(&shape, seed + 1)), wide(&numbers(4 * 3, seed + 2)));
            let dy = wide(&numbers(2 * 4 * 2, seed + 3));
            let given = reference(&shape, &flat, &x, &dy);
            let value = |flat: &[f64], x: &[f64]| -> f64 {
                reference(&shape, flat, x, &dy).y.iter().zip(&dy).map(|(y, dy)| y * dy).sum()
            };
            let slope = |values: &[f64], at: usize, f: &dyn Fn(&[f64]) -> f64| {
                let moved = |by: f64| {
                    let mut values = values.to_vec();
                    values[at] += by;
                    f(&values)
                };
                (moved(1e-6) - moved(-1e-6)) / 2e-6
            };
            for at in (0..flat.len()).step_by(5) {
                let expected = slope(&flat, at, &|flat| value(flat, &x));
                assert!((given.dflat[at] - expected).abs() < 1e-6, "{name} {layer_norm} parameter {at}");
            }
            for at in 0..x.len() {
                let expected = slope(&x, at, &|x| value(&flat, x));
                assert!((given.dx[at] - expected).abs() < 1e-6, "{name} {layer_norm} input {at}");
            }
        }
    }
}

#[test]
fn no_rows_have_no_gradient() {
    let shape = shape(2, 1, [3, 2], &[8]);
    let flat = parameters(&shape, 1);
    let machine = Machine { isa: Isa::available()[0], threads: 2 };
    let mut dflat = vec![f32::NAN; flat.len()];
    forward(machine, &shape, &flat, Rows::new(&[], 0, 3, 3), &mut [], Some(&mut []));
    let wanted = Wanted { parameters: Some(&mut dflat), inputs: Some((0..3, &mut [])) };
    backward(machine, &shape, &flat, &[], 0, &[], wanted);
    assert!(dflat.iter().all(|&value| value == 0.0));
}

#[test]
fn what_is_not_finite_shows() {
    for (value, bf16) in [(f32::NAN, false), (f32::INFINITY, false), (f32::NAN, true), (f32::INFINITY, true)] {
        let shape = Shape { bf16, ..shape(1, 1, [4, 1], &[40, 40]) };
        for isa in Isa::available().into_iter().filter(|isa| isa.bf16() || !bf16) {
            let (mut flat, x) = (parameters(&shape, 1), numbers(8 * 4, 2));
            flat[5] = value;
            let [y, dflat, _] = run(Machine { isa, threads: 1 }, &shape, &flat, &x, &[1.0; 8]);
            let bad = y.iter().chain(&dflat).any(|value| !value.is_finite());
            assert!(bad, "{} hides {value}", isa.name());
        }
    }
}

#[test]
fn tiny_numbers_are_numbers() {
    let shape = shape(1, 1, [4, 3], &[40]);
    let mut flat = parameters(&shape, 1);
    let layer = shape.layers()[0];
    flat[layer.weight..layer.weight + layer.weights()].iter_mut().for_each(|value| *value *= 1e-38);
    flat[layer.bias..layer.bias + layer.output].fill(1e-40); // below the smallest normal number
    let (x, dy) = (numbers(9 * 4, 2), numbers(9 * 3, 3));
    let expected = reference(&shape, &wide(&flat), &wide(&x), &wide(&dy));
    for isa in Isa::available() {
        let [y, dflat, dx] = run(Machine { isa, threads: 1 }, &shape, &flat, &x, &dy);
        assert!(error(&y, &expected.y) < 1e-5 && error(&dflat, &expected.dflat) < 1e-5);
        assert!(error(&dx, &expected.dx) < 1e-2, "{}: {}", isa.name(), error(&dx, &expected.dx));
    }
}

#[test]
fn a_shape_is_checked() {
    let shape = Shape::parse(&[2, 1, 35, 1, 0, 0, 0, 256, 256]).unwrap();
    assert_eq!(shape, self::shape(2, 1, [35, 1], &[256, 256]));
    assert_eq!(shape.numel(), 2 * (35 * 256 + 256 + 256 * 256 + 256 + 256 + 1));
    for wrong in [
        &[2, 3, 35, 1, 0, 0, 0][..],
        &[1, 1, 0, 1, 0, 0, 0],
        &[1, 1, 4, 1, 4, 0, 0],
        &[1, 1, 4, 1, 0, 2, 0],
        &[1, 1, 4, 1, 0, 0, 2],
        &[1, 1, 4],
        &[1, 1, 4, 1, 0, 0],
        &[1, 1, 4, 1, -1, 0, 0],
        &[1, 1, 4, 1, 0, 0, 0, -8],
        &[1, 1, 4, 1, 0, 0, 0, 1 << 40],
    ] {
        assert!(Shape::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn adam_and_polyak_agree_with_float64() {
    for count in [1, 7, 16, 20_011] {
        let [p, m, g] = [1, 2, 3].map(|seed| numbers(count, seed));
        let v: Vec<f32> = numbers(count, 4).iter().map(|v| v * v * 1e-3).collect();
        let step = Step { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, size: 3e-3, correction: 0.2 };
        for isa in Isa::available() {
            let machine = Machine { isa, threads: 3 };
            let mut new = [(); 3].map(|()| vec![f32::NAN; count]);
            let [a, b, c] = &mut new;
            adam(machine, step, [&p, &m, &v], &g, [a, b, c]);
            for i in 0..count {
                let [p, m, v, g] = [p[i], m[i], v[i], g[i]].map(f64::from);
                let mean = m + (1.0 - f64::from(0.9_f32)) * (g - m);
                let square = f64::from(0.999_f32) * v + (1.0 - f64::from(0.999_f32)) * g * g;
                let moved = f64::from(step.size) * mean / (square.sqrt() / f64::from(step.correction) + 1e-8);
                assert!((f64::from(new[1][i]) - mean).abs() < 1e-6 && (f64::from(new[2][i]) - square).abs() < 1e-6);
                assert!((f64::from(new[0][i]) - (p - moved)).abs() < 2e-7 + 1e-5 * moved.abs());
            }
            let mut target = vec![f32::NAN; count];
            polyak(machine, &p, &m, 0.005, &mut target);
            for i in 0..count {
                let expected = f64::from(p[i]) + 0.005 * (f64::from(m[i]) - f64::from(p[i]));
                assert!((f64::from(target[i]) - expected).abs() < 1e-6);
            }
            let [mut a, mut b] = [vec![0.0; count], vec![0.0; 3]];
            commit(machine, vec![(&mut a, &g), (&mut b, &[1.0, 2.0, 3.0])]);
            assert!(a == g && b == [1.0, 2.0, 3.0]);
        }
    }
}
