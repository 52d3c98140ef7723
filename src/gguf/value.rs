//! Metadata values: the twelve scalar and string types of GGUF, and arrays of them.

use std::fmt;

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
            /// The type id of the GGUF specification.
            pub fn type_id(&self) -> u32 {
                match self { $(Value::$variant(_) => $id,)* }
            }

            /// The type's name, as the specification spells it in lower case.
            pub fn type_name(&self) -> &'static str {
                match self { $(Value::$variant(_) => $name,)* }
            }
        }

        impl Array {
            /// Number of elements.
            pub fn len(&self) -> usize {
                match self { $(Array::$variant(v) => v.len(),)* }
            }

            /// The type id of the elements.
            pub fn element_type_id(&self) -> u32 {
                match self { $(Array::$variant(_) => $id,)* }
            }

            /// The name of their type.
            fn element_type_name(&self) -> &'static str {
                match self { $(Array::$variant(_) => $name,)* }
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
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
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
                write!(f, "array of {} {}", a.len(), a.element_type_name())
            }
        }
    }
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
