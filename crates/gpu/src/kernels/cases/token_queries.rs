//! Cases of the queries of a decoded token from queries that are there, and of its row of the cache.

use super::Case;
use super::lab::{self, Compared, Lab};
use super::places::{Place, places};
use super::prepared::stand_for;
use super::rope_cache::Row;
use crate::gpu::GpuError;
use crate::kernels::token::Divided;
use crate::kernels::token_queries::{GpuTokenQueries, token_queries};
use crate::kernels::{CacheType, MlaDims};
use crate::quant::GgmlType::{self, F16, Q4_0, Q5_0, Q6_K, Q8_0};

fn compare(
    lab: &Lab<'_>,
    ty: GgmlType,
    dims: MlaDims,
    many: bool,
) -> Result<Vec<Compared>, GpuError> {
    let k_b = lab.weight(ty, [dims.heads, dims.kv_lora, dims.nope]);
    let q = lab.normals(dims.heads * dims.head());
    let (pos, n_ctx) = (lab.below(70), 70);
    let table = lab.normals(n_ctx * dims.rope);
    let (angles, _) = table[pos * dims.rope..][..dims.rope].as_chunks();
    let (places, rows) = places(lab, pos);
    let row = Row::new(lab, dims, rows);
    let keep = |q: &[f32]| stand_for(lab.form(), q);
    let ([q_lat, q_pe], _) = token_queries(&k_b, &q, row.inputs(), angles, dims, keep);
    let k_b = lab.load(&k_b)?;
    let queries = |place: &Place| GpuTokenQueries {
        k_b: &k_b,
        activation: lab.form(),
        q: lab.given(&q),
        values: lab.prepared(&q),
        rope_table: lab.given(&table),
        dims,
        q_lat: lab.room(q_lat.len()),
        q_pe: lab.room(q_pe.len()),
        row: row.given(lab),
        sequences: place.sequences.clone(),
    };
    let mut all = vec![];
    for geometry in lab.geometries(&queries(&places[0]).site(), many)? {
        for place in &places {
            let queries = queries(place);
            lab.run(queries.calls_with(lab.gpu, &geometry)?, place.state)?;
            all.push(lab.floats(&queries.q_lat, &q_lat, lab.limit())?);
            all.push(lab.floats(&queries.q_pe, &q_pe, 1e-13)?);
            all.extend(row.compared(lab, &queries.row, angles, place.row)?);
        }
    }
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let of = |ty: GgmlType, cache, [heads, nope, rope, kv_lora]: [usize; 4], many| {
        let dims = MlaDims {
            heads,
            nope,
            rope,
            kv_lora,
            cache,
        };
        let name = format!("{ty}, {}, of {nope}", lab::heads(dims));
        Case::new(name, move |lab| compare(lab, ty, dims, many))
    };
    let case = |ty, sizes, many| of(ty, CacheType::F16, sizes, many);
    vec![
        of(Q4_0, CacheType::Q8_0, [20, 192, 64, 512], false).verified(),
        of(Q6_K, CacheType::Q8_0, [3, 256, 32, 96], false),
        // GLM-4.7-Flash, then DeepSeek-V2-Lite and Youtu-LLM-2B.
        case(Q4_0, [20, 192, 64, 512], false),
        case(Q8_0, [20, 192, 64, 512], false),
        case(F16, [16, 128, 64, 512], false),
        case(Q5_0, [16, 128, 64, 512], false).verified(),
        case(Q6_K, [3, 256, 32, 34], false),
        case(Q5_0, [5, 96, 64, 70], true).long(),
    ]
}
