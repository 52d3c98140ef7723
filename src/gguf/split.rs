//! Models split into `name-00001-of-0000N.gguf` and so on (llama.cpp, tools/gguf-split): names and checks.

use std::path::{Path, PathBuf};

use super::reader::Header;
use super::{Gguf, GgufError, Value};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// `split.count` is 16 bits wide in the files llama.cpp writes.
const MAX_PARTS: u32 = 65_535;

/// The file name of shard `no` (from 0) of `count`: `<prefix>-00001-of-00003.gguf` for the first of three.
pub fn split_file_name(prefix: &str, no: u32, count: u32) -> String {
    format!("{prefix}{}", suffix(no, count))
}

fn suffix(no: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", no.saturating_add(1))
}

/// A `split.*` key of a header as a number.
fn number(header: &Header, key: &'static str) -> Result<Option<u32>, GgufError> {
    let convert = |value: &Value| {
        value.as_u32().ok_or_else(|| GgufError::WrongType {
            key: key.to_owned(),
            found: value.to_string(),
            expected: "an unsigned 32-bit integer",
        })
    };
    header.get(key).map(convert).transpose()
}

/// How many shards the model has: 1 where the keys are absent.
fn shard_count(path: &Path, header: &Header) -> Result<u32, GgufError> {
    let count = number(header, COUNT)?.unwrap_or(1);
    if count > MAX_PARTS {
        return Err(GgufError::SplitMismatch {
            path: path.to_owned(),
            key: COUNT,
            found: count.to_string(),
            expected: format!("at most {MAX_PARTS}"),
        });
    }
    Ok(count)
}

/// The paths of shards 1.. of the model whose first shard is `path`; none if it is one file.
pub(super) fn other_shards(path: &Path, first: &Header) -> Result<Vec<PathBuf>, GgufError> {
    let count = shard_count(path, first)?;
    if count <= 1 {
        return Ok(Vec::new());
    }
    let no = number(first, NO)?.unwrap_or(0);
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let expected = suffix(no, count);
    let Some(prefix) = name.strip_suffix(&expected) else {
        return Err(GgufError::SplitName {
            path: path.to_owned(),
            count,
            expected,
        });
    };
    if no != 0 {
        let first = split_file_name(prefix, 0, count);
        return Err(GgufError::NotFirstPart {
            path: path.to_owned(),
            no,
            count,
            first,
        });
    }
    let shards: Vec<PathBuf> = (1..count)
        .map(|no| path.with_file_name(split_file_name(prefix, no, count)))
        .collect();
    let missing: Vec<String> = shards
        .iter()
        .filter(|shard| !shard.exists())
        .filter_map(|shard| shard.file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    if !missing.is_empty() {
        return Err(GgufError::MissingParts {
            path: path.to_owned(),
            count,
            missing,
        });
    }
    Ok(shards)
}

/// Checks that the header of shard `no` (from 0) says so, and agrees on the number of shards.
pub(super) fn check_shard(
    path: &Path,
    no: usize,
    count: usize,
    header: &Header,
) -> Result<(), GgufError> {
    for (key, expected) in [(NO, no), (COUNT, count)] {
        let found = number(header, key)?;
        if found.map(|found| found as usize) != Some(expected) {
            return Err(GgufError::SplitMismatch {
                path: path.to_owned(),
                key,
                found: found.map_or("missing".to_owned(), |found| found.to_string()),
                expected: expected.to_string(),
            });
        }
    }
    Ok(())
}

/// Checks `split.tensors.count` of the first shard against the tensors of all shards.
pub(super) fn check_total(gguf: &Gguf) -> Result<(), GgufError> {
    let Some(expected) = gguf.get_u64(TENSORS)? else {
        return Ok(());
    };
    let found = gguf.tensors().len() as u64;
    if found != expected {
        return Err(GgufError::SplitMismatch {
            path: gguf.path().to_owned(),
            key: TENSORS,
            found: expected.to_string(),
            expected: format!("{found} tensors in all"),
        });
    }
    Ok(())
}

/// Refuses bytes that are one shard of a split model.
pub(super) fn refuse_split(path: &Path, header: &Header) -> Result<(), GgufError> {
    match shard_count(path, header)? {
        0 | 1 => Ok(()),
        count => Err(GgufError::SplitMismatch {
            path: path.to_owned(),
            key: COUNT,
            found: count.to_string(),
            expected: "1, embedded models being whole".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufWriter;
    use crate::quant::GgmlType;
    use std::fs;

    /// Shard `no` of `count` with one F32 tensor `t<tensor>` of 8 values, each `no`.
    fn shard(no: u16, count: u16, total: i32, tensor: u16) -> Vec<u8> {
        let mut writer = GgufWriter::new(Vec::new());
        writer.metadata("split.no", no).unwrap();
        writer.metadata("split.count", count).unwrap();
        writer.metadata("split.tensors.count", total).unwrap();
        writer
            .tensor(&format!("t{tensor}"), GgmlType::F32, &[8])
            .unwrap();
        let mut data = writer.begin_data().unwrap();
        data.write(bytemuck::cast_slice(&[f32::from(no); 8]))
            .unwrap();
        data.finish().unwrap()
    }

    fn write(shards: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in shards {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        dir
    }

    const A: &str = "m-00001-of-00003.gguf";
    const B: &str = "m-00002-of-00003.gguf";
    const C: &str = "m-00003-of-00003.gguf";

    #[test]
    fn three_shards_are_joined() {
        let dir = write(&[
            (A, shard(0, 3, 3, 0)),
            (B, shard(1, 3, 3, 1)),
            (C, shard(2, 3, 3, 2)),
        ]);
        let gguf = Gguf::open(&dir.path().join(A)).unwrap();
        assert_eq!(gguf.shard_count(), 3);
        for no in 0..3u8 {
            let tensor = gguf.tensor(&format!("t{no}")).unwrap();
            assert_eq!(
                gguf.data(tensor),
                bytemuck::cast_slice::<f32, u8>(&[f32::from(no); 8])
            );
        }
        let size: u64 = [A, B, C]
            .iter()
            .map(|n| fs::metadata(dir.path().join(n)).unwrap().len())
            .sum();
        assert_eq!(gguf.file_size(), size);
    }

    #[test]
    fn missing_shards_are_all_named() {
        let dir = write(&[(A, shard(0, 3, 3, 0))]);
        let error = Gguf::open(&dir.path().join(A)).unwrap_err();
        assert!(
            matches!(&error, GgufError::MissingParts { count: 3, missing, .. } if missing == &[B, C]),
            "{error}"
        );
    }

    #[test]
    fn a_later_shard_points_to_the_first() {
        let dir = write(&[(A, shard(0, 3, 3, 0)), (B, shard(1, 3, 3, 1))]);
        let error = Gguf::open(&dir.path().join(B)).unwrap_err();
        assert!(
            matches!(&error, GgufError::NotFirstPart { no: 1, first, .. } if first == A),
            "{error}"
        );
    }

    #[test]
    fn a_renamed_shard_is_refused() {
        let dir = write(&[("model.gguf", shard(0, 3, 3, 0))]);
        let error = Gguf::open(&dir.path().join("model.gguf")).unwrap_err();
        assert!(
            matches!(error, GgufError::SplitName { count: 3, .. }),
            "{error}"
        );
    }

    #[test]
    fn swapped_shards_are_refused() {
        let dir = write(&[
            (A, shard(0, 3, 3, 0)),
            (C, shard(1, 3, 3, 1)),
            (B, shard(2, 3, 3, 2)),
        ]);
        let error = Gguf::open(&dir.path().join(A)).unwrap_err();
        assert!(
            matches!(
                error,
                GgufError::SplitMismatch {
                    key: "split.no",
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_shard_of_another_split_is_refused() {
        let dir = write(&[
            (A, shard(0, 3, 3, 0)),
            (B, shard(1, 2, 3, 1)),
            (C, shard(2, 3, 3, 2)),
        ]);
        let error = Gguf::open(&dir.path().join(A)).unwrap_err();
        assert!(
            matches!(
                error,
                GgufError::SplitMismatch {
                    key: "split.count",
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_wrong_total_is_refused() {
        let dir = write(&[
            (A, shard(0, 3, 4, 0)),
            (B, shard(1, 3, 4, 1)),
            (C, shard(2, 3, 4, 2)),
        ]);
        let error = Gguf::open(&dir.path().join(A)).unwrap_err();
        assert!(
            matches!(
                error,
                GgufError::SplitMismatch {
                    key: "split.tensors.count",
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_tensor_in_two_shards_is_refused() {
        let dir = write(&[
            (A, shard(0, 3, 3, 0)),
            (B, shard(1, 3, 3, 1)),
            (C, shard(2, 3, 3, 1)),
        ]);
        let error = Gguf::open(&dir.path().join(A)).unwrap_err();
        assert!(
            matches!(&error, GgufError::DuplicateTensor { tensor } if tensor == "t1"),
            "{error}"
        );
    }

    #[test]
    fn a_shard_cannot_be_embedded() {
        let error = Gguf::from_static(Box::leak(shard(0, 3, 3, 0).into_boxed_slice()), "embedded")
            .unwrap_err();
        assert!(
            matches!(
                error,
                GgufError::SplitMismatch {
                    key: "split.count",
                    ..
                }
            ),
            "{error}"
        );
    }
}
