//! Models split into `name-00001-of-0000N.gguf` and so on (llama.cpp, tools/gguf-split): names and checks.

use std::path::{Path, PathBuf};

use super::reader::Header;
use super::{Gguf, GgufError, Value};
use crate::plural::named;

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
    let expected = "an unsigned 32-bit integer";
    header.metadata.typed(key, expected, Value::as_u32)
}

/// The number of the model's shards: 1 if the keys are absent.
fn shard_count(path: &Path, header: &Header) -> Result<u32, GgufError> {
    let count = number(header, COUNT)?.unwrap_or(1);
    if count > MAX_PARTS {
        return Err(mismatch(path, COUNT, count, format!("at most {MAX_PARTS}")));
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
        let problem = format!(
            "is one of {count} shards of a split model, but its name does not end in {expected}, so the others cannot be found"
        );
        return Err(GgufError::file(path, problem));
    };
    if no != 0 {
        let first = split_file_name(prefix, 0, count);
        let problem = format!(
            "is shard {} of {count} of a split model; open the first shard, {first}",
            no + 1
        );
        return Err(GgufError::file(path, problem));
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
        let problem = format!(
            "is split into {count} shards and these are missing: {}; put all of them into its folder",
            named(&missing, missing.len())
        );
        return Err(GgufError::file(path, problem));
    }
    Ok(shards)
}

/// Checks that the header of a model's first shard tells this number of shards.
pub(super) fn check_count(path: &Path, header: &Header, count: usize) -> Result<(), GgufError> {
    match shard_count(path, header)?.max(1) {
        found if found as usize == count => Ok(()),
        found => Err(mismatch(path, COUNT, found, count.to_string())),
    }
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
            let found = found.map_or("missing".to_owned(), |found| found.to_string());
            return Err(mismatch(path, key, found, expected.to_string()));
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
        let all = format!("{found} tensors in all");
        return Err(mismatch(gguf.path(), TENSORS, expected, all));
    }
    Ok(())
}

/// Refuses bytes that are one shard of a split model.
pub(super) fn refuse_split(path: &Path, header: &Header) -> Result<(), GgufError> {
    match shard_count(path, header)? {
        0 | 1 => Ok(()),
        count => {
            let expected = "1, embedded models being whole".to_owned();
            Err(mismatch(path, COUNT, count, expected))
        }
    }
}

fn mismatch(path: &Path, key: &'static str, found: impl ToString, expected: String) -> GgufError {
    GgufError::SplitMismatch {
        path: path.to_owned(),
        key,
        found: found.to_string(),
        expected,
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
        assert_eq!(gguf.shards.len(), 3);
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
        let expected = format!("is split into 3 shards and these are missing: {B}, {C}; ");
        assert!(error.to_string().contains(&expected), "{error}");
    }

    #[test]
    fn of_very_many_missing_shards_some_are_named() {
        let first = split_file_name("m", 0, 65_535);
        let dir = write(&[(&first, shard(0, 65_535, 3, 0))]);
        let error = Gguf::open(&dir.path().join(first)).unwrap_err().to_string();
        let expected = ", m-00101-of-65535.gguf and 65434 more; put all";
        assert!(error.contains(expected), "{error:.2000}");
    }

    #[test]
    fn a_later_shard_points_to_the_first() {
        let dir = write(&[(A, shard(0, 3, 3, 0)), (B, shard(1, 3, 3, 1))]);
        let error = Gguf::open(&dir.path().join(B)).unwrap_err();
        let expected = format!("is shard 2 of 3 of a split model; open the first shard, {A}");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }

    #[test]
    fn a_renamed_shard_is_refused() {
        let dir = write(&[("model.gguf", shard(0, 3, 3, 0))]);
        let error = Gguf::open(&dir.path().join("model.gguf")).unwrap_err();
        let expected = "is one of 3 shards of a split model, but its name does not end in";
        assert!(error.to_string().contains(expected), "{error}");
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
        assert_eq!(error.to_string(), "tensor t1 appears twice");
    }

    #[test]
    fn a_shard_cannot_be_embedded() {
        let error = Gguf::from_bytes(shard(0, 3, 3, 0), "embedded").unwrap_err();
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
