//! Metadata values: the twelve scalar and string types of GGUF, and arrays of them.

use std::fmt;

use super::GgufError;
use super::cursor::Cursor;

/// The longest strings in real files are chat templates and tokenizer JSON, below 32 MiB; a longer one is damage.
const MAX_STRING: u64 = 64 << 20;
/// Vocabularies and merge lists stay below a million entries; a longer array is damage, and would be copied to memory.
const MAX_ARRAY: u64 = 1 << 24;
/// Real files nest arrays at most once; the cap bounds the recursion.
const MAX_ARRAY_DEPTH: usize = 4;

/// Says each type once: its variant, what holds it, and its id and name in the specification.
macro_rules! types {
    ($($variant:ident($held:ty) = $id:literal, $name:literal;)*) => {
        /// One metadata value.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Value {
            $(#[doc = concat!("Type ", $id, ", ", $name, ".")] $variant($held),)*
        }

        /// An array value: all elements are of one type.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Array {
            $(#[doc = concat!("Elements of type ", $id, ", ", $name, ".")] $variant(Vec<$held>),)*
        }

        impl Value {
            /// Reads the value of `key`, of the type with this id.
            pub(super) fn read(
                cursor: &mut Cursor<'_>,
                key: &str,
                type_id: u32,
            ) -> Result<Self, GgufError> {
                let place = Place { key, depth: 0, element: None };
                match type_id {
                    $($id => Held::read(cursor, place).map(Value::$variant),)*
                    id => Err(unknown_type(key, id)),
                }
            }

            /// Appends the type id and the value.
            pub(super) fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Value::$variant(v) => {
                        out.extend(u32::to_le_bytes($id));
                        v.write(out);
                    })*
                }
            }

            /// The text that stands for the value in messages.
            fn shown(&self) -> String {
                match self { $(Value::$variant(v) => v.shown(),)* }
            }

            /// The type's name, as the specification spells it in lower case.
            pub fn type_name(&self) -> &'static str {
                match self { $(Value::$variant(_) => $name,)* }
            }
        }

        impl Held for Array {
            const LEAST: u64 = 4 + 8;

            fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError> {
                let Place { key, depth, .. } = place;
                if depth >= MAX_ARRAY_DEPTH {
                    let problem = format!("nests arrays deeper than {MAX_ARRAY_DEPTH} levels");
                    return Err(GgufError::key(key, problem));
                }
                let what = || format!("the array of metadata key {key}");
                match cursor.u32(what)? {
                    $($id => elements(cursor, place, what).map(Array::$variant),)*
                    id => Err(unknown_type(key, id)),
                }
            }

            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Array::$variant(v) => {
                        out.extend(u32::to_le_bytes($id));
                        out.extend((v.len() as u64).to_le_bytes());
                        v.iter().for_each(|v| v.write(out));
                    })*
                }
            }

            fn shown(&self) -> String {
                match self { $(Array::$variant(v) => format!("of {} {}", v.len(), $name),)* }
            }
        }

        $(
            impl From<$held> for Value {
                fn from(v: $held) -> Value {
                    Value::$variant(v)
                }
            }

            impl From<Vec<$held>> for Value {
                fn from(v: Vec<$held>) -> Value {
                    Value::Array(Array::$variant(v))
                }
            }
        )*
    };
}
types! {
    U8(u8) = 0, "uint8";
    I8(i8) = 1, "int8";
    U16(u16) = 2, "uint16";
    I16(i16) = 3, "int16";
    U32(u32) = 4, "uint32";
    I32(i32) = 5, "int32";
    F32(f32) = 6, "float32";
    Bool(bool) = 7, "bool";
    String(String) = 8, "string";
    Array(Array) = 9, "array";
    U64(u64) = 10, "uint64";
    I64(i64) = 11, "int64";
    F64(f64) = 12, "float64";
}

impl Value {
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
        let Value::Array(array) = self else {
            return None;
        };
        match array {
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

impl fmt::Display for Value {
    /// Type and value on one line; long strings and arrays are cut, so that an error message stays a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.type_name(), self.shown())
    }
}

/// A Rust type that holds a value or an element of an array.
trait Held: Sized {
    /// The least bytes that one takes in a file.
    const LEAST: u64;

    /// Reads the one at `place`.
    fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError>;

    /// Appends the bytes that [`read`](Self::read) takes.
    fn write(&self, out: &mut Vec<u8>);

    /// The text that stands for it in messages.
    fn shown(&self) -> String;
}

/// The place of a value in the metadata.
#[derive(Clone, Copy)]
struct Place<'a> {
    key: &'a str,
    /// The number of arrays that the value is in.
    depth: usize,
    /// The value's number in the innermost array.
    element: Option<usize>,
}

impl Place<'_> {
    /// The value's name in an error.
    fn name(self) -> String {
        let key = self.key;
        match self.element {
            Some(i) => format!("element {i} of metadata key {key}"),
            None => format!("the value of metadata key {key}"),
        }
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Held for $number {
            const LEAST: u64 = size_of::<$number>() as u64;

            fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError> {
                cursor.array(|| place.name()).map(<$number>::from_le_bytes)
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn shown(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
numbers!(u8 i8 u16 i16 u32 i32 f32 u64 i64 f64);

impl Held for bool {
    const LEAST: u64 = 1;

    fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError> {
        match cursor.array(|| place.name())? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(GgufError::key(
                place.key,
                format!("holds {found} as a boolean; 0 or 1 was expected"),
            )),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Held for String {
    const LEAST: u64 = 8;

    fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Self, GgufError> {
        let (text, valid) = cursor.text(MAX_STRING, || place.name())?;
        if !valid && cursor.invalid.is_none() {
            cursor.invalid = Some(place.name());
        }
        Ok(text)
    }

    fn write(&self, out: &mut Vec<u8>) {
        push_string(out, self);
    }

    fn shown(&self) -> String {
        const SHOWN: usize = 40;
        match self.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{:?}...", &self[..end]),
            None => format!("{self:?}"),
        }
    }
}

/// Reads how many elements the array at `place` has, and the elements. `what` names the array in an error.
fn elements<T: Held>(
    cursor: &mut Cursor<'_>,
    place: Place<'_>,
    what: impl Fn() -> String,
) -> Result<Vec<T>, GgufError> {
    let count = u64::from_le_bytes(cursor.array(&what)?);
    let count = cursor.count(count, MAX_ARRAY, T::LEAST, &what)?;
    let element = |i| {
        let place = Place {
            depth: place.depth + 1,
            element: Some(i),
            ..place
        };
        T::read(cursor, place)
    };
    (0..count).map(element).collect()
}

fn unknown_type(key: &str, id: u32) -> GgufError {
    let problem = format!("has the unknown value type {id}; known are 0 to 12");
    GgufError::key(key, problem)
}

/// Appends a string as a file has it.
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

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
