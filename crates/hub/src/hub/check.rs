//! Checksums as hubs tell them: of a large file the SHA-256 of its bytes, of a small one the SHA-1 of git's blob.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::Digest;

/// The checksum of a file. It is also the name of the file's blob in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sum {
    /// The SHA-256 of the bytes, as git LFS names a file.
    Sha256(String),
    /// The SHA-1 of git's blob: the word `blob`, the length, a zero byte and the bytes.
    Git(String),
}

impl Sum {
    /// A checksum in hexadecimal; which one its length tells. Quotation marks around it, as headers have them, are dropped.
    pub(super) fn read(text: &str) -> Option<Self> {
        let text = text.strip_prefix("W/").unwrap_or(text);
        let text = text.trim_matches('"').to_ascii_lowercase();
        let hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match text.len() {
            64 if hexadecimal => Some(Self::Sha256(text)),
            40 if hexadecimal => Some(Self::Git(text)),
            _ => None,
        }
    }

    /// The checksum in hexadecimal.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::Git(text) => text,
        }
    }

    /// The checksum of the same kind of the file at `path`. `told` gets the bytes that are read, again and again.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn of_file(&self, path: &Path, told: &mut dyn FnMut(u64)) -> io::Result<String> {
        let file = File::open(path)?;
        match self {
            Self::Sha256(_) => digest(sha2::Sha256::new(), file, told),
            Self::Git(_) => {
                let head = format!("blob {}\0", file.metadata()?.len());
                digest(sha1::Sha1::new_with_prefix(head), file, told)
            }
        }
    }
}

fn digest(mut sum: impl Digest, mut file: File, told: &mut dyn FnMut(u64)) -> io::Result<String> {
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes) {
            Ok(0) => break,
            Ok(n) => {
                sum.update(&bytes[..n]);
                told(n as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let digits = |byte: &u8| format!("{byte:02x}");
    Ok(sum.finalize().iter().map(digits).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_that_git_and_sha256sum_tell() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        std::fs::write(&path, "abc").expect("it can be written");
        // FIPS 180-2 has the first; `git hash-object` prints the second.
        for sum in [
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f",
        ] {
            let expected = Sum::read(&format!("\"{}\"", sum.to_uppercase())).expect("a checksum");
            let mut read = 0;
            let found = expected
                .of_file(&path, &mut |n| read += n)
                .expect("it can be read");
            assert_eq!((found.as_str(), read), (sum, 3));
        }
        for wrong in [
            "",
            "abc",
            "../../../../../../../../../../../../../a",
            &"g".repeat(64),
        ] {
            assert_eq!(Sum::read(wrong), None, "{wrong}");
        }
    }
}
