//! Fields of a row and their packed layout.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::memory::round_up;

/// Unit of a row's stride in bytes: a cache line.
pub const ROW_ALIGN: usize = 64;

/// Largest number of dimensions of a field.
pub const MAX_DIMS: usize = 8;

/// Largest row in bytes.
pub const MAX_ROW: usize = 1 << 30;

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:literal $code:literal;)+) => {
        /// Type of a field's elements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)] // the names say it all
        pub enum Dtype { $($variant = $code),+ }

        impl Dtype {
            /// Every dtype.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Short name, for instance `f32`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Bytes per element, which is also its alignment.
            #[must_use]
            pub fn size(self) -> usize {
                match self { $(Self::$variant => $size),+ }
            }
        }
    };
}

dtypes! {
    F16 "f16" 2 1;
    Bf16 "bf16" 2 2;
    F32 "f32" 4 3;
    F64 "f64" 8 4;
    U8 "u8" 1 5;
    I8 "i8" 1 6;
    U16 "u16" 2 7;
    I16 "i16" 2 8;
    U32 "u32" 4 9;
    I32 "i32" 4 10;
    U64 "u64" 8 11;
    I64 "i64" 8 12;
    Bool "bool" 1 13;
}

impl Dtype {
    /// The dtype of a code in a segment header.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| *dtype as u8 == code)
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|dtype| dtype.name()).collect();
            Error::invalid("dtype", format!("{name:?}"), format!("one of {}", known.join(" ")))
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A named array in a row, or a named parameter tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Field {
    /// Unique name.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape, empty for a scalar.
    pub shape: Vec<usize>,
}

impl Field {
    /// Check and make a field.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[usize]) -> Result<Self> {
        let field = Self { name: name.into(), dtype, shape: shape.to_vec() };
        if field.name.is_empty() || field.name.len() > 255 {
            return Err(Error::invalid("field name", format!("{:?}", field.name), "1 to 255 bytes of text"));
        }
        if field.shape.len() > MAX_DIMS || field.checked_bytes().is_none() {
            return Err(Error::invalid(
                "field shape",
                format!("{field}"),
                format!("at most {MAX_DIMS} dimensions, none of them 0, and at most {MAX_ROW} bytes"),
            ));
        }
        Ok(field)
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes without padding.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    fn checked_bytes(&self) -> Option<usize> {
        let mut bytes = self.dtype.size();
        for dim in &self.shape {
            bytes = bytes.checked_mul(*dim)?;
        }
        (1..=MAX_ROW).contains(&bytes).then_some(bytes)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{:?}", self.name, self.dtype, self.shape)
    }
}

/// A field and its byte offset.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlacedField {
    /// The field.
    pub field: Field,
    /// Byte offset of its first element.
    pub offset: usize,
}

impl fmt::Display for PlacedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.field, self.offset)
    }
}

/// An error for a name that comes twice. A header may have tens of thousands.
pub(crate) fn check_names<'a>(what: &'static str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::invalid(what, format!("{name:?} twice"), "names that differ"));
        }
    }
    Ok(())
}

/// Packed layout of a row: fields in the given order, each at its natural alignment, the whole a number of cache lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    fields: Vec<PlacedField>,
    stride: usize,
}

impl Schema {
    /// Lay fields out.
    pub fn new(fields: &[Field]) -> Result<Self> {
        let mut placed: Vec<PlacedField> = Vec::with_capacity(fields.len());
        let mut end = 0;
        check_names("fields", fields.iter().map(|field| field.name.as_str()))?;
        for field in fields {
            // Built by hand or not: the same checks.
            let field = Field::new(field.name.clone(), field.dtype, &field.shape)?;
            // Neither step overflows: `end` and a field are at most MAX_ROW.
            let offset = round_up(end, field.dtype.size()).expect("row offset");
            end = offset + field.bytes();
            if end > MAX_ROW {
                return Err(Error::invalid(
                    "row",
                    format!("{end} bytes at {field}"),
                    format!("at most {MAX_ROW} bytes"),
                ));
            }
            placed.push(PlacedField { field, offset });
        }
        if placed.is_empty() {
            return Err(Error::invalid("fields", "none", "at least one field"));
        }
        Ok(Self { fields: placed, stride: round_up(end, ROW_ALIGN).expect("row stride") })
    }

    /// Fields with their offsets.
    #[must_use]
    pub fn fields(&self) -> &[PlacedField] {
        &self.fields
    }

    /// Bytes per row.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Words per row.
    #[must_use]
    pub fn words(&self) -> usize {
        self.stride / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, dtype: Dtype, shape: &[usize]) -> Field {
        Field::new(name, dtype, shape).unwrap()
    }

    #[test]
    fn an_ant_row_is_256_bytes() {
        let schema = Schema::new(&[
            field("obs", Dtype::F32, &[27]),
            field("action", Dtype::F32, &[8]),
            field("next_obs", Dtype::F32, &[27]),
            field("reward", Dtype::F32, &[]),
            field("discount", Dtype::F32, &[]),
        ])
        .unwrap();
        assert_eq!(schema.stride(), 256);
        let offsets: Vec<_> = schema.fields().iter().map(|f| f.offset).collect();
        assert_eq!(offsets, [0, 108, 140, 248, 252]);
    }

    #[test]
    fn natural_alignment() {
        let schema = Schema::new(&[
            field("image", Dtype::U8, &[3, 3]),
            field("x", Dtype::F64, &[2]),
            field("flag", Dtype::Bool, &[]),
            field("h", Dtype::Bf16, &[3]),
        ])
        .unwrap();
        let offsets: Vec<_> = schema.fields().iter().map(|f| f.offset).collect();
        assert_eq!(offsets, [0, 16, 32, 34]);
        assert_eq!(schema.stride(), 64);
    }

    #[test]
    fn bad_fields_are_named() {
        assert!(Schema::new(&[]).is_err());
        let twice = [field("a", Dtype::F32, &[]), field("a", Dtype::U8, &[])];
        assert!(Schema::new(&twice).unwrap_err().to_string().contains("\"a\" twice"));
        assert!(Field::new("", Dtype::F32, &[]).is_err());
        assert!(Field::new("x", Dtype::F32, &[0]).is_err());
        assert!(Field::new("x", Dtype::F32, &[usize::MAX, 2]).is_err());
        assert!(Field::new("x", Dtype::F32, &[1; 9]).is_err());
        assert!("f33".parse::<Dtype>().unwrap_err().to_string().contains("f32"));
    }

    #[test]
    fn names_and_codes_round_trip() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse::<Dtype>().unwrap(), *dtype);
            assert_eq!(Dtype::from_code(*dtype as u8), Some(*dtype));
        }
        assert_eq!(Dtype::from_code(0), None);
    }
}
