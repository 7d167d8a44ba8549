//! Header of a `.npy` file for records (numpy's format 1.0 and 2.0, `numpy.lib.format`).

use std::fmt::Write as _;

use crate::replay::saved::EXTRA;
use crate::schema::{Dtype, Schema};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Unit of the header's length, so that the array behind it is aligned.
const ALIGN: usize = 64;
/// Begin of the names of the fields that stand behind a row.
const RESERVED: &str = "rlz.";
/// The meta word, its parts in the order of their bytes, and the ticket.
const BEHIND: &str = "('rlz.flags', '<u2'), ('rlz.env', '<u2'), ('rlz.version', '<u4'), ('rlz.ticket', '<u8'), ";

/// Everything before the first record. As long for any number of records.
pub(super) fn preamble(schema: &Schema, records: u64) -> Result<Vec<u8>, String> {
    let mut descr = String::new();
    let mut end = 0;
    for placed in schema.fields() {
        let field = &placed.field;
        if field.name.starts_with(RESERVED) {
            return Err(format!("field {:?}: names that begin with {RESERVED:?} are taken in files", field.name));
        }
        pad(&mut descr, placed.offset - end);
        let _ = write!(descr, "({}, '{}'", quoted(&field.name), type_string(field.dtype));
        if !field.shape.is_empty() {
            descr.push_str(", (");
            for dim in &field.shape {
                let _ = write!(descr, "{dim}, ");
            }
            descr.push(')');
        }
        descr.push_str("), ");
        end = placed.offset + field.bytes();
    }
    pad(&mut descr, schema.stride() - end);
    descr.push_str(BEHIND);
    debug_assert_eq!(EXTRA, 2, "BEHIND describes two words");
    let mut text = format!("{{'descr': [{descr}], 'fortran_order': False, 'shape': ({records:<20},), }}");
    // Version 1.0 has two bytes for the length of the text, 2.0 has four.
    let (version, length) = if text.len() + ALIGN < usize::from(u16::MAX) { (1, 2) } else { (2, 4) };
    let before = MAGIC.len() + 2 + length;
    let total = (before + text.len() + 1).next_multiple_of(ALIGN);
    text.extend(std::iter::repeat_n(' ', total - before - text.len() - 1));
    text.push('\n');
    let mut preamble = [MAGIC, &[version, 0]].concat();
    #[allow(clippy::cast_possible_truncation)] // a field table is far below 4 GiB
    preamble.extend_from_slice(&(text.len() as u32).to_le_bytes()[..length]);
    preamble.extend_from_slice(text.as_bytes());
    Ok(preamble)
}

/// Bytes without a name.
fn pad(descr: &mut String, bytes: usize) {
    if bytes > 0 {
        let _ = write!(descr, "('', '|V{bytes}'), ");
    }
}

fn type_string(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "<f2",
        Dtype::Bf16 | Dtype::U16 => "<u2", // numpy has no bfloat16: its bits
        Dtype::F32 => "<f4",
        Dtype::F64 => "<f8",
        Dtype::U8 => "|u1",
        Dtype::I8 => "|i1",
        Dtype::I16 => "<i2",
        Dtype::U32 => "<u4",
        Dtype::I32 => "<i4",
        Dtype::U64 => "<u8",
        Dtype::I64 => "<i8",
        Dtype::Bool => "|b1",
    }
}

/// A Python string literal in ASCII.
fn quoted(name: &str) -> String {
    let mut text = String::from("'");
    for char in name.chars() {
        match char {
            '\'' | '\\' => text.extend(['\\', char]),
            ' '..='~' => text.push(char),
            _ => {
                let _ = write!(text, "\\U{:08x}", u32::from(char));
            }
        }
    }
    text.push('\'');
    text
}
