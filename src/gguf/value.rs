//! Metadata values: the twelve scalar and string types of GGUF, and arrays of them.

use std::fmt;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Type 0.
    U8(u8),
    /// Type 1.
    I8(i8),
    /// Type 2.
    U16(u16),
    /// Type 3.
    I16(i16),
    /// Type 4.
    U32(u32),
    /// Type 5.
    I32(i32),
    /// Type 6.
    F32(f32),
    /// Type 7, one byte.
    Bool(bool),
    /// Type 8, UTF-8 behind a u64 length.
    String(String),
    /// Type 9.
    Array(Array),
    /// Type 10.
    U64(u64),
    /// Type 11.
    I64(i64),
    /// Type 12.
    F64(f64),
}

/// An array value: all elements are of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Elements of type 0.
    U8(Vec<u8>),
    /// Elements of type 1.
    I8(Vec<i8>),
    /// Elements of type 2.
    U16(Vec<u16>),
    /// Elements of type 3.
    I16(Vec<i16>),
    /// Elements of type 4.
    U32(Vec<u32>),
    /// Elements of type 5.
    I32(Vec<i32>),
    /// Elements of type 6.
    F32(Vec<f32>),
    /// Elements of type 7.
    Bool(Vec<bool>),
    /// Elements of type 8.
    String(Vec<String>),
    /// Elements of type 9; each brings its own element type.
    Array(Vec<Array>),
    /// Elements of type 10.
    U64(Vec<u64>),
    /// Elements of type 11.
    I64(Vec<i64>),
    /// Elements of type 12.
    F64(Vec<f64>),
}

impl Value {
    /// The type id of the GGUF specification.
    pub fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::Array(_) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }

    /// The type's name, as the specification spells it in lower case.
    pub fn type_name(&self) -> &'static str {
        type_name(self.type_id())
    }

    /// Any integer type whose value fits an unsigned 64-bit number.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Any integer type whose value fits an unsigned 32-bit number: converters disagree on the width.
    pub fn as_u32(&self) -> Option<u32> {
        self.as_u64().and_then(|v| v.try_into().ok())
    }

    /// A float of either width, rounded to 32 bits.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    /// An array of any element type.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }

    /// The elements of an array of strings.
    pub fn as_str_array(&self) -> Option<&[String]> {
        match self {
            Value::Array(Array::String(v)) => Some(v),
            _ => None,
        }
    }

    /// The elements of an array of 32-bit floats.
    pub fn as_f32_array(&self) -> Option<&[f32]> {
        match self {
            Value::Array(Array::F32(v)) => Some(v),
            _ => None,
        }
    }

    /// The elements of an array of integers of any width, if each fits an unsigned 32-bit number.
    pub fn as_u32_array(&self) -> Option<Vec<u32>> {
        fn convert<T: Copy + TryInto<u32>>(v: &[T]) -> Option<Vec<u32>> {
            v.iter().map(|&x| x.try_into().ok()).collect()
        }
        match self.as_array()? {
            Array::U8(v) => convert(v),
            Array::I8(v) => convert(v),
            Array::U16(v) => convert(v),
            Array::I16(v) => convert(v),
            Array::U32(v) => Some(v.clone()),
            Array::I32(v) => convert(v),
            Array::U64(v) => convert(v),
            Array::I64(v) => convert(v),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) | Array::Array(_) => {
                None
            }
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type id of the elements.
    pub fn element_type_id(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::String(_) => 8,
            Array::Array(_) => 9,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }
}

/// The name of a value type id; "unknown" outside 0..=12.
fn type_name(id: u32) -> &'static str {
    const NAMES: [&str; 13] = [
        "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string",
        "array", "uint64", "int64", "float64",
    ];
    NAMES.get(id as usize).copied().unwrap_or("unknown")
}

impl fmt::Display for Value {
    /// Type and value on one line; long strings and arrays are cut, so that an error message stays a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 40;
        match self {
            Value::U8(v) => write!(f, "uint8 {v}"),
            Value::I8(v) => write!(f, "int8 {v}"),
            Value::U16(v) => write!(f, "uint16 {v}"),
            Value::I16(v) => write!(f, "int16 {v}"),
            Value::U32(v) => write!(f, "uint32 {v}"),
            Value::I32(v) => write!(f, "int32 {v}"),
            Value::F32(v) => write!(f, "float32 {v}"),
            Value::Bool(v) => write!(f, "bool {v}"),
            Value::U64(v) => write!(f, "uint64 {v}"),
            Value::I64(v) => write!(f, "int64 {v}"),
            Value::F64(v) => write!(f, "float64 {v}"),
            Value::String(v) => match v.char_indices().nth(SHOWN) {
                Some((end, _)) => write!(f, "string {:?}...", &v[..end]),
                None => write!(f, "string {v:?}"),
            },
            Value::Array(a) => {
                write!(f, "array of {} {}", a.len(), type_name(a.element_type_id()))
            }
        }
    }
}

macro_rules! from {
    ($($t:ty => $variant:ident),* $(,)?) => {
        $(
            impl From<$t> for Value {
                fn from(v: $t) -> Value {
                    Value::$variant(v)
                }
            }
            impl From<Vec<$t>> for Value {
                fn from(v: Vec<$t>) -> Value {
                    Value::Array(Array::$variant(v))
                }
            }
        )*
    };
}
from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool, String => String,
    u64 => U64, i64 => I64, f64 => F64, Array => Array);

impl From<&str> for Value {
    fn from(v: &str) -> Value {
        Value::String(v.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_convert_only_when_they_fit() {
        assert_eq!(Value::U8(7).as_u32(), Some(7));
        assert_eq!(Value::I64(7).as_u32(), Some(7));
        assert_eq!(Value::I32(-1).as_u32(), None);
        assert_eq!(Value::U64(1 << 32).as_u32(), None);
        assert_eq!(Value::U64(1 << 32).as_u64(), Some(1 << 32));
        assert_eq!(Value::F32(7.0).as_u32(), None);
        assert_eq!(Value::Bool(true).as_u32(), None);
        assert_eq!(Value::from(vec![1i32, 2]).as_u32_array(), Some(vec![1, 2]));
        assert_eq!(Value::from(vec![1i32, -2]).as_u32_array(), None);
    }

    #[test]
    fn long_values_are_cut_in_messages_at_a_character() {
        assert_eq!(
            Value::from("é".repeat(50)).to_string(),
            format!("string \"{}\"...", "é".repeat(40))
        );
        assert_eq!(
            Value::from(vec![1.0f32; 9]).to_string(),
            "array of 9 float32"
        );
        assert_eq!(Value::I32(-3).to_string(), "int32 -3");
    }
}
