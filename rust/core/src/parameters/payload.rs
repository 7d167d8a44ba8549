//! The bytes of one version: where each tensor lies, whether its floats are finite, and their way to shared words.

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::memory::ReadWord;
use crate::schema::{Dtype, Field, PlacedField, check_names};
use crate::sync::{AtomicU64, Ordering};

pub(super) fn pack(fields: &[Field]) -> Result<Vec<PlacedField>> {
    let mut offset = 0_usize;
    let mut placed: Vec<PlacedField> = Vec::with_capacity(fields.len());
    check_names("manifest", fields.iter().map(|field| field.name.as_str()))?;
    for field in fields {
        let field = Field::new(field.name.clone(), field.dtype, &field.shape)?;
        let next = offset.checked_add(field.bytes());
        placed.push(PlacedField { field, offset });
        offset = next.ok_or_else(|| Error::invalid("manifest", "its tensors", "less than 2^63 bytes"))?;
    }
    if placed.is_empty() {
        return Err(Error::invalid("manifest", "none", "at least one tensor"));
    }
    Ok(placed)
}

pub(super) fn packed_bytes(manifest: &[PlacedField]) -> usize {
    manifest.last().map_or(0, |last| last.offset + last.field.bytes())
}

/// Error for the first float that is not finite.
pub(super) fn check_finite(manifest: &[PlacedField], bytes: &[u8]) -> Result<()> {
    for PlacedField { field, offset } in manifest {
        let tensor = &bytes[*offset..*offset + field.bytes()];
        let bad = match field.dtype {
            Dtype::F32 => first_bad(tensor, |b| f32::from_le_bytes(b).is_finite()),
            Dtype::F64 => first_bad(tensor, |b| f64::from_le_bytes(b).is_finite()),
            Dtype::F16 => first_bad(tensor, |b| f16::from_le_bytes(b).is_finite()),
            Dtype::Bf16 => first_bad(tensor, |b| bf16::from_le_bytes(b).is_finite()),
            _ => None,
        };
        if let Some(index) = bad {
            return Err(Error::NonFinite { what: field.name.clone(), index });
        }
    }
    Ok(())
}

fn first_bad<const N: usize>(bytes: &[u8], finite: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let element = |bytes: &[u8]| bytes.try_into().expect("chunks of N");
    // Whole blocks first, without leaving early: this vectorises.
    if bytes.chunks_exact(N).fold(true, |all, bytes| all & finite(element(bytes))) {
        return None;
    }
    bytes.chunks_exact(N).position(|bytes| !finite(element(bytes)))
}

pub(super) fn store_bytes(from: &[u8], into: &[AtomicU64]) {
    let (whole, rest) = from.as_chunks::<8>();
    for (word, bytes) in into.iter().zip(whole) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        into[whole.len()].store(u64::from_le_bytes(last), Ordering::Relaxed);
    }
}

pub(super) fn load_bytes(from: &[ReadWord], into: &mut [u8]) {
    let (whole, rest) = into.as_chunks_mut::<8>();
    for (bytes, word) in whole.iter_mut().zip(from) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if !rest.is_empty() {
        let last = from[whole.len()].load(Ordering::Relaxed).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}
