//! Protects steps of several sequences: each token attends to what a step of its sequence alone would show it, wherever its pages lie.

use super::*;
use crate::gpu::Coop;
use crate::kernels::CacheType;
use crate::kernels::attention_short;
use crate::kernels::cases::attention::{Queries, each, joined, sequences};
use crate::kernels::cases::lab::heads;
use crate::kernels::cases::places::Pages;
use crate::kernels::cases::{Compared, Lab};
use crate::kernels::sequences::SLICE;
use crate::kernels::testing::agrees_changed;
use crate::kernels::testing::bounds::needs_every_byte;
use crate::kernels::testing::coop::{emulated_call, emulates};

/// Each token of several sequences alone, in pages.
fn alone_in_pages(lab: &Lab<'_>, kernel: Kernel, dims: MlaDims) -> Result<Vec<Compared>, GpuError> {
    let lengths = [50, 700, 33, 1, 64];
    let pages = Pages::new(lab, 32, &lengths);
    let row = dims.cache_row();
    let of = lengths.map(|n| lab.rows(dims.rows(), n, 1.0));
    let cache = pages.cache(&of, row);
    let mut all = vec![];
    for (t, rows) in lengths.into_iter().enumerate() {
        let queries = Queries::new(lab, dims, 1);
        let slice_rows = match kernel {
            Kernel::Of(form) => cut_context(form, lab.gpu.machine, rows, 1, dims.heads).1,
            Kernel::Short => attention_short::ROWS,
        };
        let (sequences, state) = pages.alone(lab, t, slice_rows);
        let attention = queries.given(lab, kernel, &cache, Some(sequences));
        lab.run(kernel.calls(lab, &attention), state)?;
        let found = joined(
            lab,
            &attention.partials,
            [dims.heads, dims.kv_lora],
            1,
            [0, state.slices as usize],
        )?;
        let limit = match kernel {
            Kernel::Of(Form::Matrix(_)) => 1e-5,
            _ => kernel.limit(rows, dims.cache),
        };
        all.push(lab.close(&found, &queries.twin(0, 1, &of[t]), limit));
    }
    Ok(all)
}

/// Cases of tokens in pages, in every form that suits the device.
fn in_pages(gpu: &Gpu) -> Vec<Case> {
    let odd = MlaDims {
        heads: 6,
        nope: 16,
        rope: 24,
        kv_lora: 72,
        cache: CacheType::F16,
    };
    let mut all = vec![];
    let codes = |dims: MlaDims| dims.with_cache(CacheType::Q8_0);
    let several: [(MlaDims, &'static [usize]); 5] = [
        (codes(GLM), &[1, 33, 300, 64]),
        (codes(MlaDims { kv_lora: 96, ..odd }), &[300, 1, 32]),
        (GLM, &[1, 33, 700, 64, 2000]),
        (GLM, &[5; 12]),
        (odd, &[300, 1, 32]),
    ];
    for (dims, lengths) in several {
        let forms = untried_forms(gpu, dims).into_iter();
        for form in forms {
            all.push(sequences(form, dims, lengths));
            let short = attention_short::fits(gpu, dims);
            // No context is short, some are, or all.
            let bounds = [0, 48, 3000]
                .into_iter()
                .filter(|bound| *bound == 0 || short);
            all.extend(bounds.map(|short| each(form, short, dims, lengths)));
        }
    }
    let mut kernels: Vec<_> = untried_forms(gpu, GLM)
        .into_iter()
        .map(Kernel::Of)
        .collect();
    if attention_short::fits(gpu, GLM) {
        kernels.push(Kernel::Short);
    }
    for dims in [GLM, codes(GLM)] {
        all.extend(kernels.iter().map(|&kernel| {
            let name = format!("tokens alone in pages, {}{}", heads(dims), kernel.name());
            Case::new(name, move |lab| alone_in_pages(lab, kernel, dims))
        }));
    }
    all
}

#[test]
fn each_token_attends_to_its_own_sequence_also_alone() {
    agree_everywhere(gpus(), in_pages);
}

#[test]
fn tokens_that_share_workgroups_get_what_they_get_alone_where_matrices_are_emulated() {
    // Narrow rows: at full width, llvmpipe takes minutes to compile the stand-ins.
    let dims = MlaDims {
        kv_lora: 128,
        ..GLM
    };
    for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
        let shapes = attention_coop::fitting(Coop::NVIDIA, 48 << 10, dims);
        let shape = shapes.into_iter().next().expect("the shape for all heads");
        assert!(shape.tile().1 > dims.heads);
        let form = Form::Matrix(attention_coop::Shapes::always(shape));
        // Runs of tokens behind few rows and many: queries of several tokens in a workgroup, slices that only the last tokens see.
        let all: [&[usize]; 3] = [&[7, 40, 129], &[7, 40, 130], &[7, 40, 131]];
        let lengths = all[Rng::fresh().below(3)];
        let emulated = |call: Call| emulated_call(&call, Coop::NVIDIA, false);
        agrees_changed(gpu, &sequences(form, dims, lengths), emulated);
        agrees_changed(gpu, &each(form, 0, dims, lengths), emulated);
    }
}

#[test]
fn every_index_lies_in_its_buffer() {
    let dims = GLM;
    let sequences = Sequences {
        table: Range::words("table", 8 * 3),
        pages: Some(Range::words("pages", 12)),
        work: Range::words("work", (SLICE * (MAX_SLICES + 3)) as u64),
        page: 32,
        rows: 640,
        ids: 300,
        alone: false,
    };
    let attention = GpuAttention {
        form: Form::Vector,
        q_lat: Range::floats("q_lat", (3 * dims.heads * dims.kv_lora) as u64),
        q_pe: Range::floats("q_pe", (3 * dims.heads * dims.rope) as u64),
        cache: Range::whole(&Buffer::new(
            "cache",
            (640 * dims.cache_row() * 2) as u64,
            Role::Cache,
        )),
        dims,
        scale: 1.0,
        partials: partials(dims, MAX_SLICES + 3),
        sequences: Some(sequences),
    };
    let most = Most {
        tokens: 3,
        context: 100,
    };
    for call in attention.calls() {
        needs_every_byte(&call, most);
    }
}
