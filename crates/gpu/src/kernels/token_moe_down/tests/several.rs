//! Protects the end of a layer with experts for several tokens: each has the sum of its own experts, wherever their weights lie.

use super::*;
use crate::kernels::testing::several::Several;

/// D in every tier, and steps of several tokens in every geometry in question against the twin.
fn check_several(gpu: &Gpu, rng: &mut Rng, down: &Weight, used: usize, all: bool) -> usize {
    let several = Several::new(rng);
    let Several { here, most } = several;
    let (rows, cols) = (down.rows, down.cols);
    let given = rng.normals(most * used * cols);
    let h = stand_for(activation(gpu), &given);
    let ids = several.experts(rng, [down.groups, used]);
    let (weights, residual) = (rng.normals(here * used), rng.normals(here * rows));
    let g = rng.normals(rows);
    let mut twin = vec![];
    for t in 0..here {
        twin.extend(token_moe_down(
            down,
            None,
            &h[t * used * cols..][..used * cols],
            &ids[t * used..][..used],
            &weights[t * used..][..used],
            &residual[t * rows..][..rows],
        ));
    }
    let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();

    let mut all_ids = ids;
    all_ids.resize(most * used, 0);
    let padded = |data: &[f32], width| {
        let data = padded(data, width, most as u32);
        Range::whole(&upload(gpu, &data))
    };
    let mut call = GpuTokenMoeDown {
        down: &gpu_weight(gpu, down),
        shared: None,
        activation: activation(gpu),
        h: upload_values(gpu, &given),
        ids: Range::whole(&upload(gpu, &all_ids)),
        weights: padded(&weights, used),
        used: used as u32,
        residual: padded(&residual, rows),
        y: Range::whole(&output(gpu, most * rows)),
        prepared: room(gpu, most * rows, Some(&g)),
        tokens: most as u32,
    };
    let site = call.site();
    let geometries = geometries(gpu, &site, all);
    for geometry in geometries {
        call.y = Range::whole(&output(gpu, most * rows));
        call.prepared = room(gpu, most * rows, Some(&g));
        let calls = call
            .calls_with(gpu, &geometry)
            .unwrap_or_else(|e| panic!("{e}"));
        several.run(gpu, &calls, most);
        let shape = down.ty.name();
        let what = format!("{shape} {used}x{rows}x{cols}, {several:?}, {geometry:?}");
        let found = several.download(gpu, &call.y.buffer, rows);
        assert_close(&found, &exact, sums_nmse(activation(gpu)), &what);
        assert_prepared(gpu, &call.prepared, Some(&g.repeat(here)), &twin, &what);
    }
    call.down.pieces.len()
}

#[test]
fn each_token_has_the_sum_of_its_own_experts() {
    let mut rng = Rng::fresh();
    for (ty, [experts, used, rows, cols]) in [
        (GgmlType::Q4_0, [64, 4, 64, 1536]),
        (GgmlType::Q5_0, [64, 6, 32, 1408]),
        (GgmlType::Q4_K, [8, 3, 96, 256]),
        (GgmlType::F16, [5, 2, 48, 96]),
        // Units of a token that pass through workgroup memory.
        (GgmlType::Q8_0, [8, 3, 48, 512]),
        // Units of a token that are no whole blocks of halves.
        (GgmlType::Q8_0, [8, 3, 48, 544]),
    ] {
        let down = random_weight(&mut rng, ty, experts, rows, cols);
        for gpu in token_gpus() {
            check_several(gpu, &mut rng, &down, used, false);
        }
    }
}

#[test]
fn each_token_has_its_own_sum_in_larger_subgroups() {
    let mut rng = Rng::fresh();
    let down = random_weight(&mut rng, GgmlType::Q4_0, 64, 64, 1536);
    for gpu in &some_waves() {
        check_several(gpu, &mut rng, &down, 4, false);
    }
}

#[test]
fn sums_of_several_tokens_add_up_piece_by_piece() {
    let mut rng = Rng::fresh();
    let down = random_weight(&mut rng, GgmlType::Q4_K, 8, 96, 256);
    for gpu in token_gpus_with_binding(40_000) {
        let pieces = check_several(&gpu, &mut rng, &down, 3, false);
        assert!(pieces > 1, "{pieces} pieces");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn each_token_has_its_own_sum_at_the_shape_of_glm_4_7_flash() {
    let mut rng = Rng::fresh();
    let down = random_weight(&mut rng, GgmlType::Q4_0, 64, 2048, 1536);
    for gpu in token_gpus() {
        check_several(gpu, &mut rng, &down, 4, false);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn other_geometries_give_each_token_the_same() {
    let mut rng = Rng::fresh();
    // Rows that fill no tile of 64, units that leave some lanes without.
    let down = random_weight(&mut rng, GgmlType::Q8_0, 5, 96, 160);
    for gpu in drawn(&token_gpus(), 1) {
        check_several(gpu, &mut rng, &down, 3, true);
    }
}
