//! How fast are the dense layers? Networks of SAC on Ant-v4, at a share of this core's own multiply-add peak.
//!
//!     cargo run --release -p rlz-core --example dense -- [batch] [threads]
//!
//! Prints for each instruction set and dtype the peak, then outputs, outputs that are kept, both gradients and the
//! gradient of the inputs alone (median and best of 30), and the dense part of a whole update.

use std::time::Instant;

use rlz_core::dense::{Isa, Machine, Rows, Shape, Step, Wanted, adam, backward, forward, polyak};
use rlz_core::policy::Activation;

struct Net {
    shape: Shape,
    flat: Vec<f32>,
    gradient: Vec<f32>,
    moments: [Vec<f32>; 2],
    new: [Vec<f32>; 3],
    y: Vec<f32>,
    kept: Vec<f32>,
    dy: Vec<f32>,
    dx: Vec<f32>,
}

impl Net {
    fn new(members: usize, inputs: usize, outputs: usize, batch: usize, bf16: bool) -> Self {
        let hidden = vec![256, 256];
        let activation = Activation::Relu;
        let shape = Shape { members, used: members, inputs, hidden, outputs, activation, layer_norm: false, bf16 };
        let size = shape.numel();
        let mut state = 1_u32;
        let flat = (0..size).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 9) as f32 / 83_886_080.0 - 0.05
        });
        Self {
            flat: flat.collect(),
            gradient: vec![0.0; size],
            moments: [vec![0.0; size], vec![1e-4; size]],
            new: [vec![0.0; size], vec![0.0; size], vec![0.0; size]],
            y: vec![0.0; members * batch * outputs],
            kept: vec![0.0; batch * shape.kept()],
            dy: vec![0.0; members * batch * outputs],
            dx: vec![0.0; batch * inputs],
            shape,
        }
    }

    fn forward(&mut self, machine: Machine, x: &[f32], keep: bool) {
        let width = self.shape.inputs;
        let kept = keep.then_some(&mut self.kept[..]);
        forward(machine, &self.shape, &self.flat, Rows::new(x, x.len() / width, width, width), &mut self.y, kept);
    }

    /// `inputs`: the last so many. Of the networks each has the gradient of a share of the rows, as under a minimum.
    fn backward(&mut self, machine: Machine, weights: bool, inputs: usize) {
        let share = self.dy.len() / self.shape.outputs / self.shape.members;
        for (at, dy) in self.dy.iter_mut().enumerate() {
            let (member, row) = (at / self.shape.outputs / share, at / self.shape.outputs % share);
            *dy = if weights || row % self.shape.members == member { 0.01 } else { 0.0 };
        }
        let rows = self.dx.len() / self.shape.inputs;
        let wanted = Wanted {
            parameters: weights.then_some(&mut self.gradient[..]),
            inputs: (inputs > 0)
                .then(|| (self.shape.inputs - inputs..self.shape.inputs, &mut self.dx[..rows * inputs])),
        };
        backward(machine, &self.shape, &self.flat, &self.kept, rows, &self.dy, wanted);
    }

    fn step(&mut self, machine: Machine) {
        let step = Step { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, size: 1e-9, correction: 1.0 };
        let [p, m, v] = &mut self.new;
        adam(machine, step, [&self.flat, &self.moments[0], &self.moments[1]], &self.gradient, [p, m, v]);
    }

    /// Multiplications of one pass over the weights, without those of the inputs where `first` is false.
    fn products(&self, first: bool) -> f64 {
        let layers = [self.shape.inputs * 256, 256 * 256, 256 * self.shape.outputs];
        let count: usize = layers[usize::from(!first)..].iter().sum();
        (2 * self.shape.members * count) as f64 * (self.dx.len() / self.shape.inputs) as f64
    }
}

fn median(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

fn timed(calls: usize, mut work: impl FnMut()) -> (f64, f64) {
    work();
    median(
        (0..30)
            .map(|_| {
                let begin = Instant::now();
                (0..calls).for_each(|_| work());
                begin.elapsed().as_secs_f64() / calls as f64
            })
            .collect(),
    )
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let (batch, threads) = (arguments.next().unwrap_or(256), arguments.next().unwrap_or(1));
    let calls = (4096 / batch).max(1);
    let forms = Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]);
    for (isa, bf16) in forms.filter(|(isa, bf16)| isa.bf16() || !bf16) {
        let machine = Machine { isa, threads };
        let peak = isa.peak(bf16) * threads as f64;
        let (name, dtype) = (isa.name(), if bf16 { "bf16" } else { "float32" });
        println!("{name}, {dtype}, batch {batch}, {threads} threads; peak {:.1} GFLOP/s", peak / 1e9);
        let say = |what: &str, flops: f64, (middle, best): (f64, f64)| {
            println!(
                "  {what:34} {:8.1} us, best {:8.1}; {:6.1} GFLOP/s = {:.3} of the peak",
                middle * 1e6,
                best * 1e6,
                flops / middle / 1e9,
                flops / middle / peak
            );
        };
        let (mut actor, mut critics, mut targets) =
            (Net::new(1, 27, 16, batch, bf16), Net::new(2, 35, 1, batch, bf16), Net::new(2, 35, 1, batch, bf16));
        let (obs, rows) = (vec![0.1; batch * 27], vec![0.1; batch * 35]);
        let flops = critics.products(true);
        say("critics, outputs", flops, timed(calls, || critics.forward(machine, &rows, false)));
        say("critics, outputs that are kept", flops, timed(calls, || critics.forward(machine, &rows, true)));
        let both = flops + critics.products(false);
        say("critics, gradient of weights", both, timed(calls, || critics.backward(machine, true, 0)));
        say("critics, gradient of inputs", flops, timed(calls, || critics.backward(machine, false, 8)));
        say("actor, outputs that are kept", actor.products(true), timed(calls, || actor.forward(machine, &obs, true)));
        let both = actor.products(true) + actor.products(false);
        say("actor, gradient of weights", both, timed(calls, || actor.backward(machine, true, 0)));
        say("critics, Adam", 0.0, timed(calls, || critics.step(machine)));
        let mut average = vec![0.0; targets.flat.len()];
        say(
            "critics, moving average",
            0.0,
            timed(calls, || polyak(machine, &targets.flat, &critics.flat, 0.005, &mut average)),
        );
        let flops = 4.0 * actor.products(true) + 5.0 * critics.products(true) + critics.products(false)
            - actor.products(true)
            + actor.products(false);
        let update = timed(1, || {
            actor.forward(machine, &obs, false);
            targets.forward(machine, &rows, false);
            critics.forward(machine, &rows, true);
            critics.backward(machine, true, 0);
            critics.step(machine);
            polyak(machine, &targets.flat, &critics.flat, 0.005, &mut average);
            actor.forward(machine, &obs, true);
            critics.forward(machine, &rows, true);
            critics.backward(machine, false, 8);
            actor.backward(machine, true, 0);
            actor.step(machine);
        });
        say("the dense part of an update of SAC", flops, update);
        println!("  {:.0} a second, {:.3} GFLOP each", 1.0 / update.0, flops / 1e9);
    }
}
