//! A model without a file: metadata and a tensor table, and the bytes of some tensors only.

use std::path::Path;

use super::metadata::Metadata;
use super::reader::{Header, TensorInfo, byte_len};
use super::{Bytes, Gguf, GgufError, Value};
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

    /// Whether the bytes of a tensor of this model exist; only [`Gguf::planned`] makes models where some do not.
    pub fn has_data(&self, tensor: &TensorInfo) -> bool {
        !matches!(self.shards[tensor.shard], Bytes::Absent(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
