//! Reads a file from its beginning on, and never beyond its end.

use std::path::Path;

use super::GgufError;

/// A position in the file; every read checks what is left.
pub(super) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub pos: usize,
    pub path: &'a Path,
    /// The first string of the metadata value read last that is not valid UTF-8.
    pub invalid: Option<String>,
}

impl<'a> Cursor<'a> {
    fn truncated(&self, what: String, len: u64) -> GgufError {
        GgufError::Truncated {
            path: self.path.to_owned(),
            what,
            need: (self.pos as u64).saturating_add(len),
            have: self.bytes.len() as u64,
        }
    }

    /// The next `len` bytes; `what` names them in the error.
    fn take(&mut self, len: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], GgufError> {
        let left = &self.bytes[self.pos..];
        if len > left.len() as u64 {
            return Err(self.truncated(what(), len));
        }
        let taken = &left[..len as usize];
        self.pos += taken.len();
        Ok(taken)
    }

    pub fn array<const N: usize>(
        &mut self,
        what: impl FnOnce() -> String,
    ) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(|| what.to_owned())?))
    }

    /// A count of things that take at least `min_len` bytes each, refused when the rest of the file cannot hold them:
    /// so no allocation is larger than the file warrants.
    pub fn count(
        &self,
        count: u64,
        limit: u64,
        min_len: u64,
        what: impl Fn() -> String,
    ) -> Result<usize, GgufError> {
        if count > limit {
            return Err(GgufError::TooLong {
                what: what(),
                found: count,
                limit,
                unit: "entries",
            });
        }
        let least = count * min_len;
        if least > (self.bytes.len() - self.pos) as u64 {
            return Err(self.truncated(format!("{} of {count} entries", what()), least));
        }
        Ok(count as usize)
    }

    pub fn string(&mut self, limit: u64, what: impl Fn() -> String) -> Result<String, GgufError> {
        let (text, valid) = self.text(limit, &what)?;
        match valid {
            true => Ok(text),
            false => Err(GgufError::InvalidUtf8 { what: what() }),
        }
    }

    /// A string, and whether it is valid UTF-8. What is not is replaced by U+FFFD.
    pub fn text(
        &mut self,
        limit: u64,
        what: impl Fn() -> String,
    ) -> Result<(String, bool), GgufError> {
        let len = u64::from_le_bytes(self.array(&what)?);
        if len > limit {
            return Err(GgufError::TooLong {
                what: what(),
                found: len,
                limit,
                unit: "bytes",
            });
        }
        let bytes = self.take(len, &what)?;
        Ok(match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), true),
            Err(_) => (String::from_utf8_lossy(bytes).into_owned(), false),
        })
    }
}
