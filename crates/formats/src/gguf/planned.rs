//! A model without a file: metadata and a tensor table, and the bytes of some tensors only.

use std::path::Path;

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

    /// The model of a file of `len` bytes, of which `start` are the first: its vectors are zeros, and no other tensor has bytes. `None` if
    /// the table of its tensors does not end there. `name` stands for the file in messages.
    ///
    /// # Errors
    /// The errors of [`Gguf::from_bytes`].
    pub fn of_start(start: &[u8], len: u64, name: &str) -> Result<Option<Gguf>, GgufError> {
        let path = Path::new(name);
        let header = match reader::parse_start(start, len, path, 0) {
            Err(GgufError::Truncated { have, .. }) if have < len => return Ok(None),
            header => header?,
        };
        split::refuse_split(path, &header)?;
        let planned = |tensor: TensorInfo| PlannedInfo {
            data: (tensor.dims.len() == 1).then(|| vec![0; tensor.len]),
            name: tensor.name,
            ty: tensor.ty,
            dims: tensor.dims,
        };
        let tensors = header.tensors.into_iter().map(planned).collect();
        Gguf::planned(name, header.metadata.pairs, tensors).map(Some)
    }

    /// Whether the bytes of a tensor of this model exist; only [`Gguf::planned`] and [`Gguf::of_start`] make models where some do not.
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

    #[test]
    fn the_start_of_a_file_is_a_model_without_bytes() {
        let mut writer = GgufWriter::new(Vec::new());
        writer.metadata("a.key", 7u32).expect("a new key");
        writer
            .tensor("matrix", GgmlType::Q8_0, &[64, 32])
            .expect("a new name");
        writer
            .tensor("vector", GgmlType::F32, &[32])
            .expect("a new name");
        let mut data = writer.begin_data().expect("memory takes it");
        data.write(&[1; 64 / 32 * 34 * 32]).expect("it has room");
        data.write(&[1; 32 * 4]).expect("it has room");
        let file = data.finish().expect("memory takes it");
        let len = file.len() as u64;
        let whole = Gguf::from_bytes(file.clone(), "whole").expect("it was just written");
        let found = |bytes: usize, len| Gguf::of_start(&file[..bytes], len, "start");
        for bytes in [10, 30, 60] {
            assert!(
                found(bytes, len).expect("nothing is wrong").is_none(),
                "{bytes}"
            );
        }
        let start = found(320, len)
            .expect("nothing is wrong")
            .expect("its table ends there");
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
        assert!(found(320, 400).is_err());
    }
}
