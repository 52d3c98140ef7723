//! Cases of the merge of slices, and slices for other kernels that merge them.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::State;
use crate::kernels::attention::{MAX_SLICES, partial_bytes};
use crate::kernels::attention_merge::{attention_merge, call};
use crate::kernels::{CacheType, MlaDims};
use crate::quant::activation::{Activation, Q8Unit, quantize_activation};
use crate::quant::halves::{HalvesBlock, halve, restore};

/// Random slices of tokens: their sums, their statistics as the attention leaves them, and the latents of all tokens.
pub(crate) struct Slices {
    heads: usize,
    kv_lora: usize,
    counts: Vec<usize>,
    sums: Vec<f32>,
    stats: Vec<[f32; 2]>,
    pub latents: Vec<f32>,
}

impl Slices {
    /// Slices of tokens, `counts` of each, behind `preceding` of others. Some have no rows. The scores of some are so far below the others'
    /// that `exp` of the difference is no f32: a sum that is relative to the wrong one shows.
    pub fn new(
        lab: &Lab<'_>,
        heads: usize,
        kv_lora: usize,
        preceding: usize,
        counts: Vec<usize>,
    ) -> Self {
        let before = preceding * heads;
        let mut all = Self {
            heads,
            kv_lora,
            sums: vec![f32::NAN; before * kv_lora],
            stats: vec![[f32::NAN; 2]; before],
            latents: vec![],
            counts,
        };
        for slices in all.counts.clone() {
            let mut sums = lab.normals(heads * slices * kv_lora);
            let stat = |score: f32| {
                let far = if lab.below(3) == 0 { 120.0 } else { 0.0 };
                [score * 4.0 - far, 0.1 + lab.uniform()]
            };
            let scores = lab.normals(heads * slices).into_iter();
            let mut stats: Vec<[f32; 2]> = scores.map(stat).collect();
            if slices > 1 {
                // A slice that its token cannot see.
                stats[slices - 1] = [-1e30, 0.0];
                sums[(slices - 1) * kv_lora..slices * kv_lora].fill(0.0);
            }
            let mut latents = vec![0.0; heads * kv_lora];
            attention_merge(&sums, &stats, slices, kv_lora, &mut latents);
            all.sums.extend(sums);
            all.stats.extend(stats);
            all.latents.extend(latents);
        }
        all
    }

    pub fn counts(&self) -> Vec<u32> {
        self.counts.iter().map(|slices| *slices as u32).collect()
    }

    pub fn dims(&self) -> MlaDims {
        MlaDims {
            heads: self.heads,
            nope: 8,
            rope: 8,
            kv_lora: self.kv_lora,
            cache: CacheType::F16,
        }
    }

    /// The slices on the device, in buffers for steps of up to `most` tokens.
    pub fn given(&self, lab: &Lab<'_>, most: usize) -> [Range; 2] {
        let [sums, stats] = partial_bytes(self.dims(), most).map(|bytes| bytes as usize / 4);
        [
            lab.padded(&self.sums, 1, sums),
            lab.padded(self.stats.as_flattened(), 1, stats),
        ]
    }
}

fn merged(
    lab: &Lab<'_>,
    [heads, kv_lora, tokens, slices]: [usize; 4],
) -> Result<Vec<Compared>, GpuError> {
    let given = Slices::new(lab, heads, kv_lora, 0, vec![slices; tokens]);
    let partials = given.given(lab, tokens);
    let (twin, sums) = (&given.latents, [heads, kv_lora]);
    let state = State {
        slices: slices as u32,
        ..state(tokens, 0)
    };
    let out = lab.room(twin.len());
    let floats = call((None, false), &partials, sums, &out, Activation::Floats);
    lab.run(vec![floats], state)?;
    let mut all = vec![lab.floats(&out, twin, 1e-11)?];
    // Tiers without subgroups have f32 only.
    if !(heads * kv_lora).is_multiple_of(32) || !lab.gpu.tier.has_subgroups() {
        return Ok(all);
    }
    let found: Vec<f32> = lab.read(&out, twin.len())?;
    let mut forms = vec![Activation::Bytes];
    if tokens == 1 {
        forms.push(Activation::Halves { packed: false });
    }
    for form in forms {
        let words = form.bytes((found.len() / 32) as u64) as usize / 4;
        let out = lab.room(words).holding(Role::prepared(form));
        lab.run(
            vec![call((None, false), &partials, sums, &out, form)],
            state,
        )?;
        all.extend(lab.left_in(form, &out, None, &found)?);
        all.push(as_rounded_here(lab, form, &out, &found)?);
    }
    Ok(all)
}

/// Prepared values beside those that the CPU makes of the same floats, which are nearer than the floats themselves.
fn as_rounded_here(
    lab: &Lab<'_>,
    form: Activation,
    left: &Range,
    floats: &[f32],
) -> Result<Compared, GpuError> {
    if form == Activation::Bytes {
        let expected = quantize_activation(floats);
        let found: Vec<Q8Unit> = lab.read(left, expected.len())?;
        let scales = |units: &[Q8Unit]| units.iter().flat_map(|unit| unit.scales).collect();
        let [found, expected]: [Vec<f32>; 2] = [scales(&found), scales(&expected)];
        let mut pairs = found.iter().zip(&expected);
        let near = pairs.all(|(found, scale)| (found - scale).abs() <= 1e-6 * scale);
        return Ok(lab.holds(near, || format!("scales {found:?} for {expected:?}")));
    }
    let found: Vec<HalvesBlock> = lab.read(left, floats.len().div_ceil(256))?;
    let [found, own] = [&found, &halve(floats)].map(|blocks| restore(blocks, floats.len()));
    // Values midway between two halves may round the other way.
    Ok(lab.close(&found, &own, 1e-9))
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |of: [usize; 4]| {
        let [heads, width, tokens, slices] = of;
        let name = format!("{heads} heads of {width}, {tokens} tokens, {slices} slices");
        Case::new(name, move |lab| merged(lab, of))
    };
    vec![
        case([20, 512, 1, 1]),
        case([16, 512, 1, 52]).verified(),
        case([20, 512, 3, 42]).verified(),
        // The last workgroup of a head has room for more than the head.
        case([3, 96, 1, 5]),
        case([3, 24, 1, MAX_SLICES]),
        // Units of 32 values span two heads, and the last workgroup has room for more than a token has.
        case([32, 80, 1, 5]).verified(),
        case([14, 80, 2, 33]),
        case([4, 24, 3, 1]),
    ]
}
