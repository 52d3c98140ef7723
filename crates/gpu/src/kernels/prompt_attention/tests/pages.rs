//! Protects the attention of prompts in pages: it reads the rows of its own sequence wherever they lie, and reaches beyond no buffer.

use super::*;
use crate::gpu::Most;
use crate::kernels::testing::bounds::needs_every_byte;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The attention of steps in a cache of `rows` rows, in the blocks of `scratch`, without a device. Its buffers are no larger than they need
/// to be.
fn unmade(
    dims: KvDims,
    form: Form,
    most: Most,
    rows: u32,
    scratch: &Scratch,
) -> GpuPromptAttention<'_> {
    let (mla, tokens) = (dims.mla, most.tokens as u64);
    let floats = |n: u64, of: usize| Range::floats("test", n * of as u64);
    let cache = u64::from(rows) * mla.cache_row() as u64 * 2;
    GpuPromptAttention {
        form,
        q: floats(tokens, mla.heads * mla.head()),
        rope_table: floats(most.context.into(), mla.rope),
        cache: Range::whole(&Buffer::new("test", cache, Role::Cache)),
        sequences: Some(Sequences {
            table: Range::words("test", 4),
            pages: Some(Range::words("test", 12)),
            work: Range::words("test", 4),
            page: 64,
            rows,
            ids: 300,
            alone: true,
        }),
        dims,
        scale: 1.0,
        max_tokens: most.tokens,
        scratch,
        values: floats(tokens, mla.heads * dims.v),
    }
}

#[test]
fn every_index_lies_in_its_buffer() {
    let [dims, ..] = SHAPES_OF_MODELS;
    let most = Most {
        tokens: 40,
        context: 200,
    };
    for form in [Form::Vector, Form::Matrix(NVIDIA), Form::Matrix(APPLE)] {
        let blocks = Blocks::new(64, 200);
        let scratch = Scratch::cut(dims, form, 40, blocks);
        // The cache is larger than the context, or smaller: pages are few, and sequences share them.
        for rows in [640, 128] {
            let attention = unmade(dims, form, most, rows, &scratch);
            let kernel = match form.coop() {
                Some(coop) => prompt_attention_coop::best(dims, coop)
                    .expect("a shape")
                    .tiled(dims),
                None => tiled(dims),
            };
            for call in [attention.expansion(), attention.attention(kernel)] {
                needs_every_byte(&call, most);
                // So many storage buffers every device has.
                assert!(call.bindings.len() <= 8, "{}", call.kernel);
            }
        }
    }
}

#[test]
fn tiles_divide_a_page() {
    for shape in prompt_attention_coop::SHAPES {
        assert!(ROWS.is_multiple_of(shape.rows()), "{shape:?}");
    }
    let [dims, ..] = SHAPES_OF_MODELS;
    let most = Most {
        tokens: 40,
        context: 200,
    };
    let refused = |change: &dyn Fn(&mut Scratch, &mut Sequences)| {
        let mut scratch = Scratch::cut(dims, Form::Vector, 40, Blocks::new(64, 200));
        let mut sequences = unmade(dims, Form::Vector, most, 640, &scratch)
            .sequences
            .expect("some");
        change(&mut scratch, &mut sequences);
        let attention = GpuPromptAttention {
            sequences: Some(sequences),
            ..unmade(dims, Form::Vector, most, 640, &scratch)
        };
        let calls = AssertUnwindSafe(|| attention.attention(tiled(dims)));
        catch_unwind(calls).is_err()
    };
    assert!(!refused(&|_, _| {}));
    assert!(refused(&|scratch, _| scratch.blocks.rows = 96));
    assert!(refused(&|_, sequences| sequences.page = 32));
    assert!(refused(&|_, sequences| sequences.alone = false));
}
