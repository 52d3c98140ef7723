//! A model without a file: metadata and a tensor table, and the bytes of some tensors only.

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::reader::{Header, TensorInfo, byte_len};
use super::{Bytes, Gguf, GgufError, Value, reader, split};
use crate::quant::GgmlType;

/// A tensor of a model without a file.
#[derive(Debug, Clone)]
pub struct PlannedInfo {
    /// The tensor's name.
    pub name: String,
    /// The format of its blocks.
    pub ty: GgmlType,
    /// The tensor's dimensions in GGUF order.
    pub dims: Vec<u64>,
    /// The tensor's bytes; `None` where nobody reads them.
    pub data: Option<Vec<u8>>,
}

/// The bytes of a file before those of its tensors: the metadata, and the table of its tensors.
#[derive(Debug)]
pub struct Table {
    path: PathBuf,
    header: Header,
}

impl Table {
    /// The table of a file of `len` bytes, of which `start` are the first; `None` if it does not end there. The file is number `shard` of its
    /// model, from 0, and `name` stands for it in messages.
    ///
    /// # Errors
    /// The errors of [`Gguf::from_bytes`].
    pub fn of_start(
        start: &[u8],
        len: u64,
        shard: usize,
        name: &str,
    ) -> Result<Option<Self>, GgufError> {
        let path = PathBuf::from(name);
        match reader::parse_start(start, len, &path, shard) {
            Err(GgufError::Truncated { have, .. }) if have < len => Ok(None),
            header => Ok(Some(Self {
                header: header?,
                path,
            })),
        }
    }
}

impl Gguf {
    /// A model of which only the metadata and the tensor table are known, and the bytes of those tensors that have some:
    /// for weights that are made on a device. `name` stands for its path in messages.
    ///
    /// # Errors
    /// [`GgufError::Key`] or [`GgufError::Tensor`] for what appears twice, and [`GgufError::Tensor`] for impossible dimensions.
    ///
    /// # Panics
    /// If the bytes of a tensor are not as many as its type and dimensions say.
    pub fn planned(
        name: &str,
        metadata: Vec<(String, Value)>,
        tensors: Vec<PlannedInfo>,
    ) -> Result<Gguf, GgufError> {
        // Shard 0 holds what there is, shard 1 stands for the rest.
        let (mut owned, mut absent) = (Vec::new(), 0);
        let mut infos = Vec::with_capacity(tensors.len());
        for PlannedInfo {
            name,
            ty,
            dims,
            data,
        } in tensors
        {
            let len = byte_len(&name, ty, &dims)? as usize;
            let (shard, start) = match data {
                Some(data) => {
                    assert_eq!(data.len(), len, "bytes of {name}");
                    let start = owned.len();
                    owned.extend(data);
                    (0, start)
                }
                None => {
                    absent += len;
                    (1, absent - len)
                }
            };
            infos.push(TensorInfo {
                name,
                ty,
                dims,
                shard,
                start,
                len,
            });
        }
        let mut pairs = Metadata::default();
        for (key, value) in metadata {
            pairs.push(key, value)?;
        }
        let header = Header {
            version: 3,
            metadata: pairs,
            tensors: infos,
        };
        let mut gguf = Gguf::from_header(Path::new(name), Bytes::Memory(owned.into()), header)?;
        gguf.append(Bytes::Absent(absent), Vec::new())?;
        Ok(gguf)
    }

    /// The model of the files that have these tables, its shards in order: its vectors are zeros, and no other tensor has bytes.
    ///
    /// # Errors
    /// The errors of [`Gguf::open`].
    pub fn of_tables(tables: Vec<Table>) -> Result<Gguf, GgufError> {
        let count = tables.len();
        let planned = |tensor: TensorInfo| PlannedInfo {
            data: (tensor.dims.len() == 1).then(|| vec![0; tensor.len]),
            name: tensor.name,
            ty: tensor.ty,
            dims: tensor.dims,
        };
        let (mut first, mut tensors) = (None, vec![]);
        for (no, Table { path, header }) in tables.into_iter().enumerate() {
            match no {
                0 => split::check_count(&path, &header, count)?,
                _ => split::check_shard(&path, no, count, &header)?,
            }
            tensors.extend(header.tensors.into_iter().map(planned));
            first.get_or_insert((path, header.metadata));
        }
        let (path, metadata) = first.unwrap_or_default();
        let gguf = Gguf::planned(&path.to_string_lossy(), metadata.pairs, tensors)?;
        split::check_total(&gguf)?;
        Ok(gguf)
    }

    /// Whether the bytes of a tensor of this model exist; only [`Gguf::planned`] and [`Gguf::of_tables`] make models where some do not.
    pub fn has_data(&self, tensor: &TensorInfo) -> bool {
        !matches!(self.shards[tensor.shard], Bytes::Absent(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufWriter;

    fn tensor(name: &str, dims: &[u64], data: Option<Vec<u8>>) -> PlannedInfo {
        PlannedInfo {
            name: name.to_owned(),
            ty: GgmlType::Q8_0,
            dims: dims.to_vec(),
            data,
        }
    }

    #[test]
    fn vectors_have_their_bytes_and_a_matrix_of_any_size_takes_no_memory() {
        let first: Vec<u8> = (0..34).collect();
        let second = vec![7; 68];
        let gguf = Gguf::planned(
            "plan",
            vec![("general.name".to_owned(), Value::from("x"))],
            vec![
                tensor("a", &[32], Some(first.clone())),
                tensor("huge", &[32, 1 << 30], None),
                tensor("b", &[64], Some(second.clone())),
            ],
        )
        .unwrap();
        assert_eq!(gguf.get_str("general.name").unwrap(), Some("x"));
        assert_eq!(gguf.file_size(), 34 + (34 << 30) + 68);
        let [a, huge, b] = gguf.tensors() else {
            panic!("three tensors")
        };
        assert!(gguf.has_data(a) && !gguf.has_data(huge) && gguf.has_data(b));
        assert_eq!(gguf.data(a), first);
        assert_eq!(gguf.data(b), second);
        assert_eq!(huge.byte_len(), 34 << 30);
    }

    #[test]
    fn impossible_tables_are_refused() {
        let twice = vec![tensor("a", &[32], None), tensor("a", &[32], None)];
        let error = Gguf::planned("plan", vec![], twice).unwrap_err();
        assert_eq!(error.to_string(), "tensor a appears twice");
        let partial = Gguf::planned("plan", vec![], vec![tensor("a", &[33], None)]).unwrap_err();
        assert_eq!(
            partial.to_string(),
            "tensor a has rows of 33 values, not a multiple of the 32 in a block of Q8_0"
        );
        let key = ("k".to_owned(), Value::from(1u32));
        let error = Gguf::planned("plan", vec![key.clone(), key], vec![]).unwrap_err();
        assert_eq!(error.to_string(), "metadata key k appears twice");
    }

    /// A file of two tensors, and where its table ends at the latest.
    fn file(shard: Option<[u16; 2]>, names: [&str; 2]) -> Vec<u8> {
        let mut writer = GgufWriter::new(Vec::new());
        writer.metadata("a.key", 7u32).expect("a new key");
        if let Some([no, count]) = shard {
            for (key, value) in [("split.no", no), ("split.count", count)] {
                writer.metadata(key, Value::U16(value)).expect("a new key");
            }
            writer
                .metadata("split.tensors.count", Value::I32(4))
                .expect("a new key");
        }
        let [matrix, vector] = names;
        writer
            .tensor(matrix, GgmlType::Q8_0, &[64, 32])
            .expect("a new name");
        writer
            .tensor(vector, GgmlType::F32, &[32])
            .expect("a new name");
        let mut data = writer.begin_data().expect("memory takes it");
        data.write(&[1; 64 / 32 * 34 * 32]).expect("it has room");
        data.write(&[1; 32 * 4]).expect("it has room");
        data.finish().expect("memory takes it")
    }

    /// Bytes of these files in which their tables end.
    const START: usize = 480;

    #[test]
    fn the_start_of_a_file_is_a_model_without_bytes() {
        let file = file(None, ["matrix", "vector"]);
        let len = file.len() as u64;
        let whole = Gguf::from_bytes(file.clone(), "whole").expect("it was just written");
        let found = |bytes: usize, len| Table::of_start(&file[..bytes], len, 0, "start");
        for bytes in [10, 30, 60] {
            assert!(
                found(bytes, len).expect("nothing is wrong").is_none(),
                "{bytes}"
            );
        }
        let table = found(START, len).expect("nothing is wrong");
        let table = table.expect("its table ends there");
        let start = Gguf::of_tables(vec![table]).expect("it is whole");
        assert_eq!(start.get_u32("a.key").expect("it is a number"), Some(7));
        for (of_start, of_whole) in start.tensors().iter().zip(whole.tensors()) {
            assert_eq!(
                (&of_start.name, &of_start.dims),
                (&of_whole.name, &of_whole.dims)
            );
        }
        let [matrix, vector] = start.tensors() else {
            panic!("it has two tensors")
        };
        assert!(!start.has_data(matrix));
        assert!(start.data(vector).iter().all(|byte| *byte == 0));
        // A file that is shorter than its table says is damaged.
        assert!(found(START, START as u64 + 20).is_err());
    }

    #[test]
    fn the_starts_of_shards_are_one_model() {
        let files = [
            file(Some([0, 2]), ["a", "b"]),
            file(Some([1, 2]), ["c", "d"]),
        ];
        let table = |which: usize, shard: usize| {
            let (file, name) = (&files[which], format!("shard {which}"));
            let table = Table::of_start(&file[..START], file.len() as u64, shard, &name);
            table
                .expect("nothing is wrong")
                .expect("its table ends there")
        };
        let model = Gguf::of_tables(vec![table(0, 0), table(1, 1)]).expect("both are there");
        let names: Vec<_> = model.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        for (tables, expected) in [
            (vec![table(0, 0)], "split.count"),
            (vec![table(1, 0), table(0, 1)], "split.no"),
            (vec![table(0, 0), table(0, 1)], "split.no"),
        ] {
            let error = Gguf::of_tables(tables).expect_err("it is no model");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
