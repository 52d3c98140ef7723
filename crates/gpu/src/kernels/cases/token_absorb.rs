//! Cases of the absorbed queries of a decoded token, with its row of the cache, and of each of several tokens.

use super::Case;
use super::lab::{self, Compared, Lab};
use super::places::{Several, places, standing};
use super::prepared::{Normed, stand_for};
use super::rope_cache::Row;
use crate::gpu::GpuError;
use crate::gpu::machine::Machine;
use crate::kernels::token_absorb::{GpuTokenAbsorb, repeated, token_absorb};
use crate::kernels::{CacheType, MlaDims};
use crate::quant::GgmlType::{self, F16, IQ4_NL, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};
use crate::quant::activation::Activation;

/// Both products: their types, the columns of `attn_q_b`, and the sizes of the block.
#[derive(Clone, Copy)]
pub(crate) struct Absorbed {
    pub types: [GgmlType; 2],
    pub cols: usize,
    pub dims: MlaDims,
    /// The cores that the slices of a head follow, where they are not those of the device.
    pub cores: Option<u32>,
}

impl Absorbed {
    /// The NMSE of the absorbed and of the rotated queries at most.
    fn limits(lab: &Lab<'_>) -> [f64; 2] {
        match lab.form() {
            // A value midway between two bytes may round to the other one. The limit has room for some.
            Activation::Bytes => [1e-5, 1e-11],
            Activation::Halves { packed: true } => [4e-6; 2],
            Activation::Halves { packed: false } => [4e-7, 1e-9],
            Activation::Floats => [1e-11; 2],
        }
    }

    fn machine(self, lab: &Lab<'_>) -> Machine {
        Machine {
            cores: self.cores.unwrap_or(lab.gpu.machine.cores),
            ..lab.gpu.machine
        }
    }

    fn name(self, what: &str) -> String {
        let ([q_b, k_b], heads) = (self.types, lab::heads(self.dims));
        format!("{q_b}, {k_b}, {heads}, of {}{what}", self.cols)
    }

    /// One token, in a cache of its own and in pages.
    pub fn of_one(self, with_row: bool) -> Case {
        let name = self.name(if with_row { " with row" } else { "" });
        Case::new(name, move |lab| self.one(lab, with_row))
    }

    /// Several tokens.
    pub fn of_several(self) -> Case {
        Case::new(self.name(", tokens"), move |lab| self.several(lab))
    }

    fn one(self, lab: &Lab<'_>, with_row: bool) -> Result<Vec<Compared>, GpuError> {
        let dims = self.dims;
        let q_b = lab.weight(self.types[0], [1, dims.heads * dims.head(), self.cols]);
        let k_b = lab.weight(self.types[1], [dims.heads, dims.kv_lora, dims.nope]);
        let x = Normed::new(lab, 1, self.cols);
        let (pos, n_ctx) = (lab.below(70), 70);
        let table = lab.normals(n_ctx * dims.rope);
        let (angles, _) = table[pos * dims.rope..][..dims.rope].as_chunks();
        let keep = |q: &[f32]| stand_for(lab.form(), q);
        let (values, rms) = x.token(0);
        let twin = token_absorb([&q_b, &k_b], values, Some(rms), angles, dims, keep);
        let (places, rows) = places(lab, pos);
        let row = Row::new(lab, dims, rows);
        let (q_b, k_b) = (lab.load(&q_b)?, lab.load(&k_b)?);
        let suits = repeated(lab.gpu, [&q_b, &k_b], dims, with_row).is_some();
        let mut all = vec![lab.holds(suits, || format!("no kernel for {dims:?}"))];
        for place in &places {
            let absorb = GpuTokenAbsorb {
                q_b: &q_b,
                k_b: &k_b,
                activation: lab.form(),
                x: x.input(lab),
                rope_table: lab.given(&table),
                dims,
                q_lat: lab.room(twin[0].len()),
                q_pe: lab.room(twin[1].len()),
                row: with_row.then(|| row.given(lab)),
                sequences: place.sequences.clone(),
                tokens: 1,
            };
            lab.run(vec![absorb.call(self.machine(lab))], place.state)?;
            if let Some(found) = &absorb.row {
                all.extend(row.compared(lab, found, angles, place.row)?);
            }
            let [of_latent, of_rotated] = Self::limits(lab);
            all.push(lab.floats(&absorb.q_lat, &twin[0], of_latent)?);
            all.push(lab.floats(&absorb.q_pe, &twin[1], of_rotated)?);
        }
        Ok(all)
    }

    fn several(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let dims = self.dims;
        let several = Several::new(lab);
        let Several { here, most } = several;
        let q_b = lab.weight(self.types[0], [1, dims.heads * dims.head(), self.cols]);
        let k_b = lab.weight(self.types[1], [dims.heads, dims.kv_lora, dims.nope]);
        let x = Normed::new(lab, most, self.cols);
        let n_ctx = 70;
        let positions = lab.ids(most, n_ctx);
        let table = lab.normals(n_ctx * dims.rope);
        let keep = |q: &[f32]| stand_for(lab.form(), q);
        let mut twin = [vec![], vec![]];
        for (t, position) in positions[..here].iter().enumerate() {
            let (angles, _) = table[*position as usize * dims.rope..][..dims.rope].as_chunks();
            let (x, rms) = x.token(t);
            let own = token_absorb([&q_b, &k_b], x, Some(rms), angles, dims, keep);
            let pairs = twin.iter_mut().zip(own);
            pairs.for_each(|(all, own)| all.extend(own));
        }
        let absorb = GpuTokenAbsorb {
            q_b: &lab.load(&q_b)?,
            k_b: &lab.load(&k_b)?,
            activation: lab.form(),
            x: x.input(lab),
            rope_table: lab.given(&table),
            dims,
            q_lat: lab.room(most * dims.heads * dims.kv_lora),
            q_pe: lab.room(most * dims.heads * dims.rope),
            row: None,
            sequences: Some(standing(lab, &positions, &vec![1; most], 0)),
            tokens: most as u32,
        };
        several.run(lab, vec![absorb.call(self.machine(lab))], n_ctx)?;
        let [of_latent, of_rotated] = Self::limits(lab);
        Ok(vec![
            lab.floats(&absorb.q_lat, &twin[0], of_latent)?,
            lab.floats(&absorb.q_pe, &twin[1], of_rotated)?,
        ])
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let dims = |heads, nope, rope, kv_lora| MlaDims {
        heads,
        nope,
        rope,
        kv_lora,
        cache: CacheType::F16,
    };
    let of = |types, cols, dims, cores| Absorbed {
        types,
        cols,
        dims,
        cores,
    };
    let (glm, youtu) = (dims(20, 192, 64, 512), dims(16, 128, 64, 512));
    let codes = |dims: MlaDims| dims.with_cache(CacheType::Q8_0);
    let mut all = vec![
        of([Q4_0, Q8_0], 768, glm, None).of_one(true).verified(),
        of([Q4_0, Q8_0], 768, codes(glm), None)
            .of_one(true)
            .verified(),
        of([Q6_K, F16], 256, codes(dims(3, 64, 40, 96)), Some(40)).of_one(true),
        of([Q4_0, Q8_0], 768, glm, None).of_several().verified(),
    ];
    // The slices of a head follow the cores.
    let divisions = [(8, false), (132, false), (40, true), (132, true)];
    let products = [
        ([Q4_0, Q4_0], 768, glm),
        ([Q4_K, Q8_0], 768, glm),
        ([Q4_0, Q5_0], 1536, youtu),
        ([Q6_K, F16], 256, dims(3, 64, 40, 96)),
        ([Q8_0, IQ4_NL], 352, dims(130, 32, 2, 32)),
    ];
    for (i, (types, cols, dims)) in products.into_iter().enumerate() {
        // Each division meets others of the products.
        for (cores, with_row) in [divisions[i % 4], divisions[(i + 1 + i / 4) % 4]] {
            all.push(of(types, cols, dims, Some(cores)).of_one(with_row));
        }
    }
    let products = [
        ([Q4_0; 2], 768, glm),
        ([Q4_0, Q5_0], 1536, youtu),
        // Units of a token that fill no block of halves.
        ([Q8_0, F16], 352, dims(3, 64, 40, 96)),
    ];
    for (types, cols, dims) in products {
        let each = [8, 132, 1000].map(|cores| of(types, cols, dims, Some(cores)).of_several());
        all.extend(each);
    }
    all
}
