//! Protects the choices of a batch: each row is chosen from by its own logits, parameters and draw.

use super::*;
use crate::gpu::testing::run;
use crate::kernels::sequences::Record;

#[test]
fn each_row_is_chosen_from_by_itself() {
    const VOCAB: usize = 300;
    let mut rng = Rng::fresh();
    // Two tokens of each row are kept. No two rows have one in common.
    let logits: Vec<f32> = (0..2 * VOCAB)
        .map(|i| {
            let (row, id) = (i / VOCAB, i % VOCAB);
            let kept = [40, 280].contains(&id.wrapping_sub(row));
            if kept { 1.0 } else { -20.0 }
        })
        .collect();
    let record = |row: u32| Record {
        position: 3 + row,
        first_id: row * (N_CTX as u32 + 1),
        ..Record::default()
    };
    let table = [record(0).words(), record(1).words()];
    let context = vec![UNTOUCHED; 2 * (N_CTX + 1)];
    for gpu in gpus() {
        let unused = || Range::words("not read", 8);
        let sequences = Sequences {
            table: Range::whole(&upload(gpu, table.as_flattened())),
            pages: Some(unused()),
            work: unused(),
            page: 64,
            rows: 64,
            ids: context.len() as u32,
            alone: false,
        };
        for step in 0..8 {
            let settings = [(); 2].map(|()| Sampling {
                temperature: 1.0,
                top_k: 2,
                seed: rng.bits(),
                ..Sampling::GREEDY
            });
            let choices = settings.map(|sampling| words(&sampling, step));
            let history = upload(gpu, &context);
            let results = upload(gpu, &[UNTOUCHED; 8]);
            let rows = Rows {
                sequences: Some(&sequences),
                choices: &Range::whole(&upload(gpu, choices.as_flattened())),
                biases: &Range::whole(&logit_bias::buffer(2)),
                most: 2,
            };
            let calls = calls(
                Some(&rows),
                &Range::whole(&upload(gpu, &logits)),
                VOCAB as u32,
                &Range::whole(&history),
                &[Range::whole(&results)],
            );
            let state = State {
                tokens: 2,
                ..State::default()
            };
            run(gpu, &calls, &state);
            let found: Vec<u32> = download(gpu, &results, 8);
            let mut expected = context.clone();
            for (row, sampling) in settings.iter().enumerate() {
                let own = &logits[row * VOCAB..][..VOCAB];
                let id = sample(own, &[], sampling, step);
                assert_eq!(found[4 * row..][..4], [id, step as u32, 0, 0], "row {row}");
                expected[row * (N_CTX + 1) + 4 + row] = id;
            }
            let history: Vec<u32> = download(gpu, &history, context.len());
            assert_eq!(history, expected, "tier {}", gpu.tier.name());
        }
    }
}
