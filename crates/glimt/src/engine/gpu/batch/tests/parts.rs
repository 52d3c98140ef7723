//! Protects experts that come from a model in several files: those of a layer may lie in different ones.

use super::answered::{answers_of, text, way};
use super::*;
use crate::gguf::{Gguf, GgufError, GgufWriter, split_file_name};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The number of files.
const FILES: u16 = 3;

/// The files of the model with these `bytes` in a folder, which have its tensors in turn.
fn write_parts(bytes: Vec<u8>, folder: &Path) -> Result<Vec<PathBuf>, GgufError> {
    let whole = Gguf::from_bytes(bytes, "a small model")?;
    let mut paths = vec![];
    for no in 0..FILES {
        let path = folder.join(split_file_name("small", no.into(), FILES.into()));
        let mut writer = GgufWriter::new(File::create(&path).expect("there is room"));
        for (key, value) in whole.metadata().filter(|_| no == 0) {
            writer.metadata(key, value.clone())?;
        }
        writer.metadata("split.no", no)?;
        writer.metadata("split.count", FILES)?;
        writer.metadata("split.tensors.count", whole.tensors().len() as i32)?;
        let tensors = whole.tensors().iter().skip(no.into());
        let tensors: Vec<_> = tensors.step_by(FILES.into()).collect();
        for tensor in &tensors {
            writer.tensor(&tensor.name, tensor.ty, &tensor.dims)?;
        }
        let mut data = writer.begin_data()?;
        for tensor in tensors {
            data.write(whole.data(tensor))?;
        }
        data.finish()?;
        paths.push(path);
    }
    Ok(paths)
}

#[test]
fn experts_come_from_several_files() {
    let folder = tempfile::tempdir().expect("there is room");
    let paths = write_parts(way().bytes(), folder.path()).expect("it is whole");
    let open = || Gguf::open(&paths[0]).expect("all files are there");
    let has = |path: &Path, name: &str| {
        let bytes = fs::read(path).expect("it is there");
        let mut names = bytes.windows(name.len());
        names.any(|found| found == name.as_bytes())
    };
    let of = |name: &str| paths.iter().find(|path| has(path, name));
    let [gate, up] = ["blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight"]
        .map(|name| of(name).expect("it has experts"));
    assert_ne!(gate, up, "experts of a layer lie in different files");
    let Some(models) = way().models_of(open()) else {
        return;
    };
    way().compare_models(&models, &Rng::fresh());
    // The file that has lost its bytes is named, and the text until then is right.
    let [whole, file] = models;
    let expected = text(&mut answers_of(&whole), 12).0;
    File::options()
        .write(true)
        .open(up)
        .and_then(|file| file.set_len(64))
        .expect("it is there");
    let (found, error) = text(&mut answers_of(&file), 12);
    let error = error.expect("a file has no experts").to_string();
    assert!(error.contains(&up.display().to_string()), "{error}");
    assert!(expected.starts_with(&found), "{found:?}");
}
