//! n-step folding against the definition, through the ring and its seam.

use proptest::prelude::*;
use rlz_core::replay::{FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED, FoldedFields, Meta, NStep, NStepWriter, Replay};
use rlz_core::schema::{Dtype, Field, Schema};
use rlz_core::{Error, WorkerId};

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    None,
    Terminated,
    Truncated,
    /// The environment reports both at once: terminal.
    Both,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    reward: f32,
    end: End,
}

fn step() -> impl Strategy<Value = Step> {
    let end =
        prop_oneof![8 => Just(End::None), 1 => Just(End::Terminated), 1 => Just(End::Truncated), 1 => Just(End::Both)];
    (-4.0f32..4.0, end).prop_map(|(reward, end)| Step { reward, end })
}

fn fields(reward: Dtype) -> Vec<Field> {
    let field = |name: &str, dtype, shape: &[usize]| Field::new(name, dtype, shape).unwrap();
    vec![
        field("obs", Dtype::U8, &[3]),
        field("next_obs", Dtype::U8, &[5]),
        field("reward", reward, &[]),
        field("discount", Dtype::F32, &[]),
        field("next_goal", Dtype::U16, &[1]),
    ]
}

const NEXT: FoldedFields<'_> =
    FoldedFields { reward: "reward", discount: "discount", next: &["next_obs", "next_goal"] };

fn offset(schema: &Schema, name: &str) -> usize {
    schema.fields().iter().find(|placed| placed.field.name == name).unwrap().offset
}

fn flags(end: End) -> u16 {
    match end {
        End::None => 0,
        End::Terminated => FLAG_TERMINATED,
        End::Truncated => FLAG_TRUNCATED,
        End::Both => FLAG_TERMINATED | FLAG_TRUNCATED,
    }
}

fn bytes(row: &[u64]) -> Vec<u8> {
    row.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pack(schema: &Schema, double: bool, number: u8, reward: f64, discount: f32, next: u8) -> Vec<u64> {
    let mut row = vec![0u8; schema.stride()];
    row[..3].fill(number);
    row[offset(schema, "next_obs")..][..5].fill(next);
    let at = offset(schema, "reward");
    if double {
        row[at..at + 8].copy_from_slice(&reward.to_le_bytes());
    } else {
        row[at..at + 4].copy_from_slice(&(reward as f32).to_le_bytes());
    }
    row[offset(schema, "discount")..][..4].copy_from_slice(&discount.to_le_bytes());
    row[offset(schema, "next_goal")..][..2].copy_from_slice(&u16::from(next).to_le_bytes());
    row.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The definition: for every step its own window, summed from its start.
fn expected(steps: &[Step], n: usize, gamma: f32, schema: &Schema, double: bool) -> Vec<(Vec<u64>, u16)> {
    let rows = steps.iter().enumerate().map(|(t, step)| {
        let (mut reward, mut discount) = (0.0f64, 1.0f64);
        let mut last = t;
        for (i, later) in steps[t..].iter().enumerate().take(n) {
            reward += discount * f64::from(later.reward);
            discount *= if matches!(later.end, End::Terminated | End::Both) { 0.0 } else { f64::from(gamma) };
            last = t + i;
            if later.end != End::None {
                break;
            }
        }
        let mut flags = flags(step.end);
        if t + 1 == steps.len() && flags == 0 {
            flags = FLAG_TRUNCATED; // flushed at the stop
        }
        (pack(schema, double, t as u8, reward, discount as f32, last as u8 + 1), flags)
    });
    rows.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn folds_as_defined(
        steps in prop::collection::vec(step(), 1..60), n in 1usize..8, double in any::<bool>(), gamma in 0.5f32..1.0,
    ) {
        let schema = Schema::new(&fields(if double { Dtype::F64 } else { Dtype::F32 })).unwrap();
        let mut fold = NStep::new(&schema, n, NEXT).unwrap();
        let mut out: Vec<(Vec<u64>, u16)> = Vec::new();
        let mut since_end = 0;
        for (t, step) in steps.iter().enumerate() {
            let discount = if matches!(step.end, End::Terminated | End::Both) { 0.0 } else { gamma };
            let row = pack(&schema, double, t as u8, f64::from(step.reward), discount, t as u8 + 1);
            fold.push(&row, t as u32, flags(step.end), |row, version, flags| {
                assert_eq!(version as usize, out.len(), "the version of the row's own step");
                out.push((row.to_vec(), flags));
                Ok(())
            }).unwrap();
            since_end = if step.end == End::None { since_end + 1 } else { 0 };
            prop_assert_eq!(fold.pending(), since_end.min(n - 1));
            prop_assert_eq!(out.len() + fold.pending(), t + 1);
        }
        fold.flush(|row, _, flags| { out.push((row.to_vec(), flags)); Ok(()) }).unwrap();
        prop_assert_eq!(fold.pending(), 0);
        // With n = 1 nothing is pending at the stop, so the last row went out before anybody knew.
        let mut expected = expected(&steps, n, gamma, &schema, double);
        let last = expected.len() - 1;
        if n == 1 {
            expected[last].1 = flags(steps[last].end);
        }
        for (t, (out, expected)) in out.iter().zip(&expected).enumerate() {
            prop_assert_eq!(bytes(&out.0), bytes(&expected.0), "step {}", t);
            prop_assert_eq!(out.1, expected.1, "flags of step {}", t);
        }
        prop_assert_eq!(out.len(), steps.len());
    }

    #[test]
    fn the_ring_holds_the_folded_rows_across_its_seam(steps in prop::collection::vec(step(), 30..80), n in 1usize..6) {
        let replay = Replay::create(&fields(Dtype::F32), 10, 1, 1).unwrap();
        let writer = replay.writer(&[0], WorkerId::new(1).unwrap()).unwrap();
        let mut writer = NStepWriter::new(writer, n, NEXT).unwrap();
        let schema = replay.schema().clone();
        for (t, step) in steps.iter().enumerate() {
            let discount = if matches!(step.end, End::Terminated | End::Both) { 0.0 } else { 0.9 };
            let row = pack(&schema, false, t as u8, f64::from(step.reward), discount, t as u8 + 1);
            writer.append_packed(0, &row, 0, flags(step.end)).unwrap();
            prop_assert_eq!(replay.committed().unwrap()[0] + writer.pending() as u64, t as u64 + 1);
        }
        writer.close().unwrap();
        prop_assert_eq!(replay.committed().unwrap()[0], steps.len() as u64);
        prop_assert_eq!(replay.owners().unwrap()[0], 0);
        let expected = expected(&steps, n, 0.9, &schema, false);
        let first = steps.len() - 10;
        let (mut rows, mut meta) = (vec![0; 10 * schema.words()], vec![0; 10]);
        prop_assert_eq!(replay.read_rows(0, first as u64 + 1, &mut rows, &mut meta).unwrap(), 10);
        for (i, row) in rows.chunks_exact(schema.words()).enumerate() {
            let t = first + i;
            prop_assert_eq!(bytes(row), bytes(&expected[t].0), "step {}", t);
            // A sequence starts exactly after an end, n-step or not.
            let starts = steps[t - 1].end != End::None;
            prop_assert_eq!(Meta::from_word(meta[i]).flags & FLAG_FIRST != 0, starts, "step {}", t);
        }
    }
}

#[test]
fn unusable_fields_are_named() {
    let schema = Schema::new(&fields(Dtype::F32)).unwrap();
    let text = |fields| NStep::new(&schema, 3, fields).unwrap_err().to_string();
    assert!(text(FoldedFields { reward: "gain", ..NEXT }).contains("\"gain\""));
    assert!(text(FoldedFields { reward: "obs", ..NEXT }).contains("obs u8[3]"));
    assert!(text(FoldedFields { next: &["nothing"], ..NEXT }).contains("next_goal"));
    assert!(NStep::new(&schema, 0, NEXT).is_err());
}

#[test]
fn a_failed_write_is_reported() {
    let schema = Schema::new(&fields(Dtype::F32)).unwrap();
    let mut fold = NStep::new(&schema, 1, NEXT).unwrap();
    let row = pack(&schema, false, 0, 1.0, 0.9, 1);
    let result = fold.push(&row, 0, 0, |_, _, _| Err(Error::Closed { stream: "test" }));
    assert!(matches!(result, Err(Error::Closed { .. })));
}
