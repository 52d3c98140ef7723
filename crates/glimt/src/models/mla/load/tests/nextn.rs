//! Protects the search for the tensors of the prediction layer, in the model's file and in one of the layer alone.

use super::*;
use crate::models::Model as _;

/// A model with two blocks and a prediction layer.
fn with_layer() -> Draft {
    let mut draft = Draft::glm(2);
    draft.add_nextn(2);
    draft
}

fn found(draft: &Draft, source: &NextnSource) -> Result<Model, ModelError> {
    Model::with_nextn(draft.open(), source)
}

/// The message with which a model of `draft` and the layer of `source` is refused.
fn refusal(draft: &Draft, source: &NextnSource) -> String {
    let refused = found(draft, source).map(|model| model.config);
    refused.unwrap_err().to_string()
}

#[test]
fn a_layer_is_found_where_it_is_wanted() {
    let model = found(&with_layer(), &NextnSource::Own).unwrap();
    assert_eq!((model.layers.len(), model.cached_layers()), (2, 3));
    assert!(model.nextn());
    let layer = model.weights.nextn.as_ref().unwrap();
    let name = |weight: &Weight| weight.name.to_string();
    assert_eq!(name(&layer.eh_proj), "blk.2.nextn.eh_proj.weight");
    assert_eq!(
        [layer.eh_proj.rows, layer.eh_proj.cols],
        [WIDTH as usize, 2 * WIDTH as usize]
    );
    assert_eq!(name(&layer.block.attn_output), "blk.2.attn_output.weight");
    assert!(matches!(layer.block.ffn, Ffn::Moe(_)));
    assert!(layer.embed_tokens.is_none() && layer.shared_head_head.is_none());
    let norm = file_bytes(&model, "blk.2.nextn.shared_head_norm.weight");
    assert_eq!(
        bytemuck::cast_slice::<f32, u8>(&layer.shared_head_norm),
        norm
    );
    let row = model.config.cache_values() as u64 * 2;
    assert_eq!(model.cache_bytes_per_token(), 3 * row);

    for source in [NextnSource::None, NextnSource::IfAny] {
        let model = found(&Draft::glm(2), &source).unwrap();
        assert!(!model.nextn(), "{source:?}");
        assert_eq!(model.cache_bytes_per_token(), 2 * row);
    }
    let without = found(&with_layer(), &NextnSource::None).unwrap();
    assert_eq!((without.nextn(), without.cached_layers()), (false, 2));
}

#[test]
fn a_layer_may_have_tables_of_its_own_and_no_norm() {
    let mut draft = with_layer();
    for table in ["embed_tokens", "shared_head_head"] {
        draft.add(&format!("blk.2.nextn.{table}.weight"), &[WIDTH, VOCAB]);
    }
    draft.remove("blk.2.nextn.shared_head_norm.weight");
    let model = found(&draft, &NextnSource::IfAny).unwrap();
    let layer = model.weights.nextn.as_ref().unwrap();
    assert!(layer.embed_tokens.is_some() && layer.shared_head_head.is_some());
    assert_eq!(layer.shared_head_norm, model.output_norm);
}

#[test]
fn a_layer_that_is_not_there_or_not_known_is_refused_if_it_must_be_there() {
    let message = refusal(&Draft::glm(2), &NextnSource::Own);
    assert!(message.contains("blk.2.nextn.*"), "{message}");
    assert!(message.contains("--draft-model"), "{message}");

    let mut several = with_layer();
    several.set("block_count", 4u32);
    several.set("nextn_predict_layers", 2u32);
    let mut unknown = with_layer();
    unknown.add("blk.2.something_new.weight", &[3]);
    let mut missing = with_layer();
    missing.remove("blk.2.nextn.enorm.weight");
    for (draft, expected) in [
        (several, "nextn_predict_layers is 2"),
        (unknown, "blk.2.something_new.weight [3] is not known"),
        (missing, "blk.2.nextn.enorm.weight [64] is missing"),
    ] {
        let message = refusal(&draft, &NextnSource::Own);
        assert!(message.contains(expected), "{message}");
        // The model itself can be used.
        let model = found(&draft, &NextnSource::IfAny).unwrap();
        assert!(!model.nextn(), "{expected}");
    }
}

#[test]
fn a_layer_of_another_file_fits_its_model_alone() {
    let alone = Draft::nextn_alone(2);
    let other = |draft: &Draft| NextnSource::Other(draft.open());
    // The model's own file may have a layer or not; that of the layer may have a model.
    for draft in [Draft::glm(2), with_layer()] {
        for file in [&alone, &with_layer()] {
            let model = found(&draft, &other(file)).unwrap();
            let layer = model.weights.nextn.as_ref().unwrap();
            assert!(layer.embed_tokens.is_none() && layer.shared_head_head.is_none());
            assert_eq!(model.cached_layers(), 3);
        }
    }
    let message = refusal(&Draft::glm(3), &other(&alone));
    assert!(
        message.contains("of another model: deepseek2.block_count is 2"),
        "{message}"
    );
    let mut wide = Draft::nextn_alone(2);
    wide.set("vocab_size", 48u32);
    let message = refusal(&Draft::glm(2), &other(&wide));
    assert!(
        message.contains("deepseek2.vocab_size is 48 in its file and 40"),
        "{message}"
    );
    let message = refusal(&Draft::glm(2), &other(&Draft::glm(2)));
    assert!(message.contains("has no layer"), "{message}");
}
