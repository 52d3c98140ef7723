//! A synthetic model as a GGUF file.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel};

use super::{CHUNK_WEIGHTS, ModelName, Plan, Recipe, SynthError, SynthOptions, chunk_bytes, fill};
use crate::files::NewFile;
use crate::gguf::{GgufError, GgufWriter};

/// Buffers between the threads that make weights and the one that writes them.
const BUFFERS: usize = 3;
/// Chunks made at a time: 16M weights, 9 MB as Q4_0 and 67 MB as F32.
const CHUNKS_PER_BUFFER: u64 = (16 << 20) / CHUNK_WEIGHTS as u64;

/// Writes a synthetic model to `path`. Weights are made by all threads of the rayon pool while earlier ones are
/// written, in a few hundred megabytes of memory at most. `progress` is told the bytes of weights done and in all. Returns what was
/// written.
///
/// # Errors
/// Any [`SynthError`]. An earlier file is replaced only by a complete one.
pub fn write(
    model: ModelName,
    recipe: Recipe,
    path: &Path,
    options: &SynthOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Plan, SynthError> {
    let plan = Plan::new(model, recipe, options)?;
    let mut file = NewFile::create(path).map_err(|source| SynthError::Create {
        path: path.to_owned(),
        source,
    })?;
    write_plan(&plan, options.seed, &mut file, progress)
        .and_then(|()| Ok(file.finish()?))
        .map_err(|source| SynthError::Write {
            path: path.to_owned(),
            source,
        })?;
    Ok(plan)
}

/// The bytes of a synthetic model as a file has them, for small ones that need no file.
///
/// # Errors
/// Any [`SynthError`].
pub fn in_memory(
    model: ModelName,
    recipe: Recipe,
    options: &SynthOptions,
) -> Result<Vec<u8>, SynthError> {
    Plan::new(model, recipe, options)?.in_memory(options.seed)
}

impl Plan {
    /// The bytes of a file of this plan, with weights of this seed.
    ///
    /// # Errors
    /// [`SynthError::Write`].
    pub fn in_memory(&self, seed: u64) -> Result<Vec<u8>, SynthError> {
        let mut bytes = vec![];
        write_plan(self, seed, &mut bytes, &mut |_, _| {}).map_err(|source| SynthError::Write {
            path: "a synthetic model in memory".into(),
            source,
        })?;
        Ok(bytes)
    }
}

/// Writes the tensors of `plan` while the next ones are made.
fn write_plan(
    plan: &Plan,
    seed: u64,
    file: impl Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), GgufError> {
    let mut writer = GgufWriter::new(file);
    for (key, value) in &plan.metadata {
        writer.metadata(key, value.clone())?;
    }
    for tensor in &plan.tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.dims)?;
    }
    let mut data = writer.begin_data()?;

    let total = plan.byte_len();
    let (full_sender, full) = sync_channel::<Vec<u8>>(BUFFERS);
    let (empty_sender, empty) = channel::<Vec<u8>>();
    for _ in 0..BUFFERS {
        empty_sender
            .send(Vec::new())
            .expect("the receiver is held by this function");
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for tensor in &plan.tensors {
                let buffer_bytes = CHUNKS_PER_BUFFER * chunk_bytes(tensor.ty) as u64;
                let mut done = 0;
                while done < tensor.byte_len() {
                    // The writer has gone, with an error of its own.
                    let Ok(mut buffer) = empty.recv() else { return };
                    buffer.resize(buffer_bytes.min(tensor.byte_len() - done) as usize, 0);
                    fill(
                        tensor,
                        seed,
                        done / chunk_bytes(tensor.ty) as u64,
                        &mut buffer,
                    );
                    done += buffer.len() as u64;
                    if full_sender.send(buffer).is_err() {
                        return;
                    }
                }
            }
        });
        let mut done = 0;
        // By value: on an early return both channels close and the maker ends.
        let (full, empty_sender) = (full, empty_sender);
        for buffer in full {
            data.write(&buffer)?;
            done += buffer.len() as u64;
            progress(done, total);
            // The maker has made all it had to.
            let _ = empty_sender.send(buffer);
        }
        Ok::<(), GgufError>(())
    })?;
    data.finish()?;
    Ok(())
}
