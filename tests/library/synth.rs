//! Protects synthetic models: their metadata and tensors are those of the script that made the files behind the first measurements
//! (`tests/data/synth-tables.json`).

use std::sync::Arc;

use glimt::gguf::{Array, Gguf, Value};
use glimt::model::NextnSource;
use glimt::models::mla::Model;
use glimt::models::{self};
use glimt::quant::GgmlType;
use glimt::synth::{self, ModelName, Plan, Recipe, SynthError, SynthOptions};
use glimt::tokenizer::Tokenizer;
use serde::Deserialize;

#[derive(Deserialize)]
struct Table {
    model: String,
    recipe: String,
    layers: Option<usize>,
    fused_kv_b: bool,
    /// Key, type, value; of an array the length and a hash of the elements.
    metadata: Vec<(String, String, serde_json::Value)>,
    /// Name, type and dimensions.
    tensors: Vec<String>,
}

/// A metadata value as the tables write it.
fn described(value: &Value) -> (String, serde_json::Value) {
    let summary = |elements: Vec<String>| {
        let joined = elements.join("\n");
        let hash = joined
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
            });
        format!("{} {hash:016x}", elements.len())
    };
    let (kind, value) = match value {
        Value::String(v) => ("string", v.as_str().into()),
        Value::U32(v) => ("uint32", (*v).into()),
        Value::F32(v) => ("float32", f64::from(*v).into()),
        Value::Bool(v) => ("bool", (*v).into()),
        Value::Array(Array::String(v)) => ("array string", summary(v.clone()).into()),
        Value::Array(Array::I32(v)) => (
            "array int32",
            summary(v.iter().map(i32::to_string).collect()).into(),
        ),
        other => panic!("no table holds {other}"),
    };
    (kind.to_owned(), value)
}

fn check(table: &Table) {
    let options = SynthOptions {
        layers: table.layers,
        fused_kv_b: table.fused_kv_b,
        ..SynthOptions::default()
    };
    let plan = Plan::new(
        table.model.parse().unwrap(),
        table.recipe.parse().unwrap(),
        &options,
    )
    .unwrap();
    let title = format!("{} {} {options:?}", table.model, table.recipe);
    let metadata: Vec<_> = plan
        .metadata
        .iter()
        .map(|(key, value)| {
            let (kind, value) = described(value);
            (key.clone(), kind, value)
        })
        .collect();
    assert_eq!(metadata, table.metadata, "{title}");
    let tensors: Vec<String> = plan
        .tensors
        .iter()
        .map(|tensor| {
            let dims: Vec<String> = tensor.dims.iter().map(u64::to_string).collect();
            format!("{} {} {}", tensor.name, tensor.ty.name(), dims.join("x"))
        })
        .collect();
    assert_eq!(tensors, table.tensors, "{title}");
}

#[test]
fn plans_equal_the_tables() {
    let tables: Vec<Table> =
        serde_json::from_str(include_str!("../data/synth-tables.json")).unwrap();
    for model in ModelName::ALL {
        assert!(
            tables.iter().any(|table| table.model == model.name()),
            "{model}"
        );
    }
    // The script knew no others.
    for recipe in ["q4_0", "q4_k_m", "q4_k_s", "q5_k_m", "q6_k", "q8_0", "f16"] {
        assert!(
            tables.iter().any(|table| table.recipe == recipe),
            "{recipe}"
        );
    }
    tables.iter().for_each(check);
}

#[test]
fn every_tiny_file_holds_its_plan_and_loads_as_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    for model in [
        ModelName::TinyDs2,
        ModelName::TinyYoutu,
        ModelName::TinyGlm,
        ModelName::Tiny,
        ModelName::TinyQwen3Moe,
        ModelName::TinyQwen2,
    ] {
        let grouped = !ModelName::of("deepseek2").contains(&model);
        for fused_kv_b in [false, true] {
            let options = SynthOptions {
                layers: Some(2),
                fused_kv_b,
                ..SynthOptions::default()
            };
            let plan = Plan::new(model, Recipe::Q4KM, &options);
            if grouped && fused_kv_b {
                let refused = plan.unwrap_err().to_string();
                assert!(refused.contains("attn_kv_b (--fused-kv-b)"), "{refused}");
                continue;
            }
            let plan = plan.unwrap();
            let mut last = (0, 0);
            synth::write(model, Recipe::Q4KM, &path, &options, &mut |done, total| {
                assert!(done > last.0);
                last = (done, total);
            })
            .unwrap();
            assert_eq!(last, (plan.byte_len(), plan.byte_len()));

            let gguf = Gguf::open(&path).unwrap();
            let metadata: Vec<(String, Value)> = gguf
                .metadata()
                .map(|(key, value)| (key.to_owned(), value.clone()))
                .collect();
            assert_eq!(metadata, plan.metadata);
            assert_eq!(gguf.tensors().len(), plan.tensors.len());
            for (tensor, planned) in gguf.tensors().iter().zip(&plan.tensors) {
                assert_eq!(
                    (&tensor.name, tensor.ty, &tensor.dims),
                    (&planned.name, planned.ty, &planned.dims)
                );
                let mut expected = vec![0; planned.byte_len() as usize];
                synth::fill(planned, options.seed, 0, &mut expected);
                assert!(gguf.data(tensor) == expected, "{}", tensor.name);
            }
            let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
            let ids = tokenizer
                .encode("a the<|endoftext|><|r300|>", true)
                .unwrap();
            assert_eq!(ids, [64, 258, 259, 300]);
            let loaded = models::load(Arc::new(gguf)).unwrap();
            assert_eq!(loaded.config().block_count, 2);
        }
    }
}

#[test]
fn a_prediction_layer_stands_behind_the_others() {
    let options = SynthOptions {
        nextn: true,
        ..SynthOptions::default()
    };
    let gguf = synth::without_matrices(ModelName::Glm47Flash, Recipe::Q4KM, &options).unwrap();
    let found = |part: &str| {
        let tensor = gguf.tensor(&format!("blk.47.{part}.weight")).unwrap();
        (tensor.ty, tensor.dims.clone())
    };
    assert_eq!(found("nextn.eh_proj"), (GgmlType::Q4_K, vec![4096, 2048]));
    let table = (GgmlType::Q4_K, vec![2048, 154_880]);
    assert_eq!(found("nextn.embed_tokens"), table);
    assert_eq!(found("nextn.shared_head_head"), table);
    let down = (GgmlType::Q6_K, vec![1536, 2048, 64]);
    assert_eq!(found("ffn_down_exps"), down);
    let model = Model::with_nextn(Arc::new(gguf), &NextnSource::Own).unwrap();
    assert_eq!((model.config.block_count, model.cached_layers()), (47, 48));
    // Copies of the model's tables are left out.
    let layer = model.weights.nextn.as_ref().unwrap();
    assert!(layer.embed_tokens.is_none() && layer.shared_head_head.is_none());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    for name in [ModelName::Tiny, ModelName::TinyYoutu] {
        synth::write(name, Recipe::Q4KM, &path, &options, &mut |_, _| {}).unwrap();
        let open = || Arc::new(Gguf::open(&path).unwrap());
        let model = Model::with_nextn(open(), &NextnSource::Own).unwrap();
        let layer = model.weights.nextn.as_ref().unwrap();
        // The tables of this file are random, and so not those of the model.
        assert!(layer.embed_tokens.is_some() && layer.shared_head_head.is_some());
        assert_eq!(
            Model::load(open()).unwrap().cached_layers() + 1,
            model.cached_layers()
        );
    }
}

#[test]
fn impossible_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = SynthOptions {
        layers: Some(0),
        ..SynthOptions::default()
    };
    let path = folder.path().join("none.gguf");
    let error = synth::write(
        ModelName::Tiny,
        Recipe::F16,
        &path,
        &options,
        &mut |_, _| {},
    )
    .unwrap_err();
    assert!(
        matches!(error, SynthError::Layers { found: 0, .. }),
        "{error}"
    );
    assert!(!path.exists());
    let nowhere = folder.path().join("no/such/folder.gguf");
    let error = synth::write(
        ModelName::Tiny,
        Recipe::F16,
        &nowhere,
        &SynthOptions::default(),
        &mut |_, _| {},
    );
    let message = error.unwrap_err().to_string();
    assert!(message.contains("folder.gguf"), "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_leaves_devices_alone() {
    let device = std::path::Path::new("/dev/full");
    let options = SynthOptions::default();
    let result = synth::write(
        ModelName::Tiny,
        Recipe::Q4_0,
        device,
        &options,
        &mut |_, _| {},
    );
    assert!(
        matches!(result, Err(SynthError::Write { .. })),
        "{result:?}"
    );
    assert!(device.exists());
}
