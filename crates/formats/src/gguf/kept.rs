//! What the system keeps in memory of the bytes that were read from files, for who wants to know how fast a disk is.

use super::{Bytes, Gguf, TensorInfo};
use std::fs::File;
use std::ops::Range;

impl Gguf {
    /// Whether the system has these bytes of a tensor in memory, by the one in their middle. `None` where it does not tell, or where the bytes
    /// are in no file.
    ///
    /// # Panics
    /// If the bytes reach beyond the tensor; may panic if `tensor` belongs to another file.
    pub fn is_kept(&self, tensor: &TensorInfo, bytes: Range<usize>) -> Option<bool> {
        let (file, bytes) = self.place_of(tensor, bytes)?;
        is_kept(file, bytes.start + (bytes.end - bytes.start) / 2)
    }

    /// Asks the system to forget these bytes of a tensor, and some beside them, so that they are read from the disk next.
    ///
    /// # Panics
    /// If the bytes reach beyond the tensor; may panic if `tensor` belongs to another file.
    pub fn let_go(&self, tensor: &TensorInfo, bytes: Range<usize>) {
        if let Some((file, bytes)) = self.place_of(tensor, bytes) {
            let_go(file, bytes);
        }
    }

    /// The place of bytes of a tensor in their file, if they are in one.
    fn place_of(&self, tensor: &TensorInfo, bytes: Range<usize>) -> Option<(&File, Range<u64>)> {
        let range = tensor.range();
        assert!(
            bytes.start <= bytes.end && bytes.end <= range.len(),
            "bytes {bytes:?} of {}",
            tensor.name
        );
        match &self.shards[tensor.shard] {
            Bytes::Mapped { file, .. } => {
                let [start, end] = [bytes.start, bytes.end].map(|at| (range.start + at) as u64);
                Some((file, start..end))
            }
            Bytes::Memory(_) | Bytes::Absent(_) => None,
        }
    }
}

/// A read that must not wait succeeds where the byte is in memory.
#[cfg(target_os = "linux")]
fn is_kept(file: &File, at: u64) -> Option<bool> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use std::io::IoSliceMut;
    let mut byte = [0];
    match preadv2(
        file,
        &mut [IoSliceMut::new(&mut byte)],
        at,
        ReadWriteFlags::NOWAIT,
    ) {
        Ok(_) => Some(true),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

/// The bytes of a piece of the file that Linux keeps or forgets as one. Pieces begin at multiples of this number.
#[cfg(target_os = "linux")]
const KEPT_AS_ONE: u64 = 2 << 20;

#[cfg(target_os = "linux")]
fn let_go(file: &File, bytes: Range<u64>) {
    use rustix::fs::{Advice, fadvise};
    let start = bytes.start - bytes.start % KEPT_AS_ONE;
    let length = bytes.end.next_multiple_of(KEPT_AS_ONE) - start;
    // Advice may be ignored. Whether it was shows in what is kept.
    let _ = fadvise(file, start, length.try_into().ok(), Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn is_kept(_: &File, _: u64) -> Option<bool> {
    None
}

#[cfg(not(target_os = "linux"))]
fn let_go(_: &File, _: Range<u64>) {}

#[cfg(test)]
mod tests {
    use crate::gguf::{Gguf, GgufWriter};
    use crate::quant::GgmlType;

    #[test]
    fn the_system_forgets_what_it_read() {
        // A folder for temporary files may lie in memory, a folder of builds hardly does.
        let program = std::env::current_exe().expect("it runs");
        let folder = program.parent().expect("it lies in a folder");
        let file = tempfile::NamedTempFile::new_in(folder).expect("there is room");
        let bytes = vec![7u8; 12 << 20];
        let mut writer = GgufWriter::new(file.as_file());
        let table = writer.metadata("general.architecture", "deepseek2");
        let table = table.and_then(|()| writer.tensor("w", GgmlType::F32, &[1024, 3072]));
        let data = table.and_then(|_| writer.begin_data());
        let written = data.and_then(|mut data| {
            data.write(&bytes)?;
            data.finish()
        });
        written.expect("there is room");
        // Bytes that are still to be written cannot be forgotten.
        file.as_file().sync_all().expect("it is a disk");
        let gguf = Gguf::open(file.path()).expect("it is whole");
        let tensor = &gguf.tensors()[0];
        // A part that is smaller than what is kept as one, and lies across two of such.
        let part = (1 << 20)..(5 << 20) / 2;
        let is_kept = || gguf.is_kept(tensor, part.clone());
        let read = || {
            let mut all = vec![0; bytes.len()];
            gguf.read(tensor, 0, &mut all).expect("it is there");
            assert!(all == bytes);
        };
        read();
        if is_kept().is_none() {
            eprintln!("skipped: this system does not tell");
            return;
        }
        assert_eq!(is_kept(), Some(true));
        gguf.let_go(tensor, part.clone());
        assert_eq!(is_kept(), Some(false));
        read();
        assert_eq!(is_kept(), Some(true));
        let whole = std::fs::read(file.path()).expect("it is there");
        let in_memory = Gguf::from_bytes(whole, "w").expect("it is whole");
        assert_eq!(in_memory.is_kept(&in_memory.tensors()[0], 0..9), None);
        in_memory.let_go(&in_memory.tensors()[0], 0..9);
    }
}
