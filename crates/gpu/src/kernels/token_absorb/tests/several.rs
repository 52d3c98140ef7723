//! Protects the queries of several tokens: each has those that it has alone, rotated for its own position.

use super::*;
use crate::kernels::testing::several::{Several, standing};

fn check_several(gpu: &Gpu, rng: &mut Rng, [q_b, k_b]: [&Weight; 2], dims: MlaDims, cores: u32) {
    let several = Several::new(rng);
    let Several { here, most } = several;
    let cols = q_b.cols;
    let norm = rng.normals(cols).repeat(most);
    let given = Given::new(gpu, &rng.normals(most * cols), &norm);
    let n_ctx = 70;
    let positions: Vec<u32> = (0..most).map(|_| rng.below(n_ctx) as u32).collect();
    let table = rng.normals(n_ctx * dims.rope);
    let keep = |q: &[f32]| stand_for(activation(gpu), q);
    let mut twin = [vec![], vec![]];
    for t in 0..here {
        let x = &given.values[t * cols..][..cols];
        let squares = &given.squares[t * cols / 16..][..cols / 16];
        let (angles, _) = table[positions[t] as usize * dims.rope..][..dims.rope].as_chunks();
        let own = token_absorb([q_b, k_b], x, Some((squares, 1e-5)), angles, dims, keep);
        twin.iter_mut()
            .zip(own)
            .for_each(|(all, own)| all.extend(own));
    }
    let [latent, rotated] = [dims.kv_lora, dims.rope].map(|n| dims.heads * n);
    let call = GpuTokenAbsorb {
        q_b: &gpu_weight(gpu, q_b),
        k_b: &gpu_weight(gpu, k_b),
        activation: activation(gpu),
        x: given.upload(gpu, 1e-5),
        rope_table: Range::whole(&upload(gpu, &table)),
        dims,
        q_lat: Range::whole(&output(gpu, most * latent)),
        q_pe: Range::whole(&output(gpu, most * rotated)),
        row: None,
        sequences: Some(standing(gpu, &positions, &vec![1; most], 0)),
        tokens: most as u32,
    };
    let machine = Machine {
        cores,
        ..gpu.machine
    };
    several.run(gpu, &[call.call(machine)], n_ctx);
    let what = format!("{} {cols} {dims:?}, {several:?}, {cores} cores", q_b.name);
    let found = [(&call.q_lat, latent), (&call.q_pe, rotated)];
    for (((y, width), twin), limit) in found.into_iter().zip(&twin).zip(limits(gpu)) {
        let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
        let found = several.download(gpu, &y.buffer, width);
        assert_close(&found, &exact, limit, &what);
    }
}

fn pair_of(rng: &mut Rng, types: [GgmlType; 2], cols: usize, dims: MlaDims) -> [Weight; 2] {
    [
        random_weight(rng, types[0], 1, dims.heads * dims.head(), cols),
        random_weight(rng, types[1], dims.heads, dims.kv_lora, dims.nope),
    ]
}

const GLM: MlaDims = MlaDims {
    heads: 20,
    nope: 192,
    rope: 64,
    kv_lora: 512,
};

#[test]
fn each_token_has_the_queries_that_it_has_alone() {
    let mut rng = Rng::fresh();
    let youtu = MlaDims {
        heads: 16,
        nope: 128,
        ..GLM
    };
    let odd = MlaDims {
        heads: 3,
        nope: 64,
        rope: 40,
        kv_lora: 96,
    };
    let products = [
        ([GgmlType::Q4_0; 2], 768, GLM),
        ([GgmlType::Q4_0, GgmlType::Q5_0], 1536, youtu),
        // Units of a token that fill no block of halves.
        ([GgmlType::Q8_0, GgmlType::F16], 352, odd),
    ];
    for &(types, cols, dims) in &products {
        let [q_b, k_b] = pair_of(&mut rng, types, cols, dims);
        // The slices of a head follow the cores.
        for (gpu, &cores) in drawn_pairs(&token_gpus(), &[8, 132, 1000]) {
            check_several(gpu, &mut rng, [&q_b, &k_b], dims, cores);
        }
    }
}

#[test]
fn each_token_has_its_own_queries_in_larger_subgroups() {
    let mut rng = Rng::fresh();
    let [q_b, k_b] = pair_of(&mut rng, [GgmlType::Q4_0; 2], 768, GLM);
    for gpu in &some_waves() {
        check_several(gpu, &mut rng, [&q_b, &k_b], GLM, 132);
    }
}
