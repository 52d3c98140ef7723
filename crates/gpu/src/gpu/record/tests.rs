//! Protects recordings: what they repeat for each block of the context, in which order, and with how many workgroups.

use super::*;
use crate::gpu::Most;
use crate::gpu::Step;
use crate::gpu::buffer::Buffer;
use crate::gpu::call::{Blocks, Call, Extent, Flops, Sublayer, When, Word, belong};
use crate::gpu::stamps::Stamps;
use crate::gpu::testing::{download, gpus, unmade_weight};
use crate::gpu::wait::Wait;
use crate::model::Mlp;
use crate::quant::GgmlType;

/// The largest replay of these tests.
const MOST: Most = Most {
    tokens: 40,
    context: 40,
};

// Appends its number, the block's first row, rows and ends and the name of a buffer to a log, whose first word counts.
const NOTE: &str = "
#word id: u32
#word begin: u32
#word rows: u32
#word ends: u32
#write log: array<u32> @words(60)
#read name: array<u32> @words(1)
const WG = 64u;
#main
  if (t == 0u) {
    let at = log[0] * 5u + 5u;
    log[at] = p.id;
    log[at + 1u] = p.begin;
    log[at + 2u] = p.rows;
    log[at + 3u] = p.ends;
    log[at + 4u] = name[0];
    log[0] += 1u;
  }
}
";

fn note(log: &Range, name: &Range, id: u32) -> Call {
    Call::inline("note", NOTE)
        .bind("log", log)
        .bind("name", name)
        .word("id", id)
        .word("begin", Word::BlockBegin)
        .word("rows", Word::BlockRows)
        .word("ends", Word::BlockEnds)
}

fn buffer(gpu: &Gpu, words: &[u32]) -> Range {
    let buffer = gpu.storage_with("test", words).wait();
    Range::whole(&buffer.unwrap_or_else(|e| panic!("{e}")))
}

/// The content of the log: its count of notes, and the notes.
fn notes(gpu: &Gpu, log: &Range, count: usize) -> (usize, Vec<[u32; 5]>) {
    let found: Vec<u32> = download(gpu, &log.buffer, 5 + 5 * count);
    let notes = found[5..].chunks_exact(5);
    (
        found[0] as usize,
        notes.map(|n| n.try_into().expect("5 words")).collect(),
    )
}

#[test]
fn neighbours_cut_alike_are_repeated_together_for_each_block() {
    for gpu in gpus() {
        let log = buffer(gpu, &[0; 60]);
        let name = buffer(gpu, &[7; 4]);
        let call = |id| note(&log, &name, id);
        let blocks = Blocks::new(10, 35);
        let calls = [
            call(0),
            call(1).per_block(blocks),
            call(2).per_block(blocks),
            call(3).only(When::Many),
            call(4).only(When::Few),
            call(5).per_block(Blocks::new(20, 35)),
        ];
        let recording = Recording::new(gpu, &Step::of(MOST, calls))
            .wait()
            .unwrap_or_else(|e| panic!("{e}"));
        let state = State {
            pos: 20,
            tokens: 3,
            few: true,
            ..State::default()
        };
        recording.submit(gpu, &state);
        let mut expected = vec![[0, 0, 0, 0, 7]];
        for (begin, rows, ends) in [(0, 10, 1), (10, 10, 0), (20, 3, 2)] {
            expected.extend([[1, begin, rows, ends, 7], [2, begin, rows, ends, 7]]);
        }
        expected.extend([[4, 0, 0, 0, 7], [5, 0, 20, 1, 7], [5, 20, 3, 2, 7]]);
        assert_eq!(
            notes(gpu, &log, 10),
            (10, expected.clone()),
            "{}",
            gpu.tier.name()
        );
        // One of them alone, three times: the second block's second.
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        gpu.queue.write_buffer(log.buffer.made(), 0, &[0; 4]);
        recording.encode_alone(gpu, &mut encoder, &state, 4, 3);
        gpu.queue.submit([encoder.finish()]);
        let alone = (3, vec![[2, 10, 10, 0, 7]; 3]);
        assert_eq!(notes(gpu, &log, 3), alone, "{}", gpu.tier.name());
        // The replay tells of as many dispatches, and each has timestamps of its own.
        let taken: Vec<_> = recording.step(&state).iter().map(|t| t.dispatch).collect();
        assert_eq!(taken, [0, 1, 2, 1, 2, 1, 2, 4, 5, 5]);
        let Ok(stamps) = Stamps::new(gpu, 20).wait() else {
            eprintln!("skipped: no timestamps on {}", gpu.info.name);
            continue;
        };
        let mut ways = vec![(Stamping::Passes(&stamps, 0), 20)];
        if Stamps::inside_passes(gpu) {
            ways.push((Stamping::Dispatches(&stamps, 0), 11));
        }
        for (stamping, count) in ways {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            gpu.queue.write_buffer(log.buffer.made(), 0, &[0; 4]);
            recording.encode_stamped(gpu, &mut encoder, &state, stamping);
            gpu.queue.submit([encoder.finish()]);
            let times = stamps
                .read(gpu, count)
                .wait()
                .unwrap_or_else(|e| panic!("{e}"));
            assert!(times.is_sorted(), "{times:?}");
            assert_eq!(notes(gpu, &log, 10).1, expected, "{}", gpu.tier.name());
        }
    }
}

#[test]
fn what_is_done_a_block_ahead_stands_behind_the_block_before_and_takes_its_own_buffers() {
    for gpu in gpus() {
        let log = buffer(gpu, &[0; 60]);
        let names = [100, 200].map(|name| buffer(gpu, &[name; 4])).to_vec();
        let call = |id| note(&log, &names[0], id);
        let blocks = Blocks::new(10, 35);
        let calls = [
            call(0),
            call(1)
                .per_block(blocks)
                .with_buffers_by_block("name", names.clone())
                .a_block_ahead(),
            call(2)
                .per_block(blocks)
                .with_buffers_by_block("name", names.clone()),
            call(3),
        ];
        let recording = Recording::new(gpu, &Step::of(MOST, calls))
            .wait()
            .unwrap_or_else(|e| panic!("{e}"));
        for (pos, turns) in [
            (5, vec![[1, 0, 8, 3, 100], [2, 0, 8, 3, 100]]),
            (
                20,
                vec![
                    [1, 0, 10, 1, 100],
                    [2, 0, 10, 1, 100],
                    [1, 10, 10, 0, 200],
                    [2, 10, 10, 0, 200],
                    [1, 20, 3, 2, 100],
                    [2, 20, 3, 2, 100],
                ],
            ),
        ] {
            let state = State {
                pos,
                tokens: 3,
                ..State::default()
            };
            gpu.queue.write_buffer(log.buffer.made(), 0, &[0; 4]);
            recording.submit(gpu, &state);
            let ends = |id| vec![[id, 0, 0, 0, 100]];
            let expected = [ends(0), turns, ends(3)].concat();
            let found = notes(gpu, &log, expected.len());
            assert_eq!(found, (expected.len(), expected), "{}", gpu.tier.name());
            let turns = recording.turns(&state);
            let passes: Vec<_> = turns.iter().map(|t| t.begins_pass).collect();
            // With each block that another is done beside.
            let expected: Vec<_> = (0..turns.len())
                .map(|i| i % 2 == 0 && i > 0 && i + 2 < turns.len())
                .collect();
            assert_eq!(passes, expected);
        }
    }
}

#[test]
fn a_dispatch_tells_what_it_is_and_reads() {
    let call = Call::new("gate_up")
        .module("UP", "q4_k")
        .module("GATE", "q4_k")
        .flag("EXPERTS", true)
        .flag("NORM", false);
    assert_eq!(call.about().label, "gate_up Q4_K +experts");
    let mut calls = [call
        .with_shape("4x1536x2048".to_owned())
        .with_bytes(1000)
        .with_bytes_per_row(10)
        .with_bytes_of_blocks(700)
        .with_flops(Flops {
            once: 1,
            per_token: 100,
            per_row: 10_000,
            per_pair: 1_000_000,
        })];
    belong(&mut calls, Sublayer::FeedForward(3));
    let about = Arc::new(calls[0].about());
    assert_eq!(about.label, "gate_up Q4_K 4x1536x2048 +experts");
    assert_eq!(about.sublayer.layer(), Some(3));
    let state = State {
        pos: 4,
        tokens: 3,
        ..Default::default()
    };
    let whole = Taken::new(5, &about, &state, None);
    assert_eq!((whole.dispatch, whole.bytes), (5, 1770));
    // Tokens at 4, 5 and 6 see 5, 6 and 7 rows.
    assert_eq!(whole.flops, 18_070_301);
    let blocks = Blocks::new(5, 10);
    let block = |i| Taken::new(5, &about, &state, Some(blocks.block(i, &state)));
    assert_eq!([block(0).bytes, block(1).bytes], [1550, 1220]);
    // All tokens see the 5 rows of the first block, and 0, 1 and 2 rows of the second.
    assert_eq!([block(0).flops, block(1).flops], [15_050_301, 3_020_301]);
}

// Counts its workgroups.
const COUNT: &str = "
#write count: array<atomic<u32>> @words(GRID_Y)
const WG = 64u;
#main
  if (t == 0u) { atomicAdd(&count[wid.y], 1u); }
}
";

// Leaves the second of three words.
const DECIDE: &str = "
#word n: u32
#write counts: array<u32> @words(5)
const WG = 64u;
#main
  if (t == 0u) { counts[4] = p.n; }
}
";

#[test]
fn a_dispatch_has_as_many_workgroups_as_an_earlier_one_counted() {
    for gpu in gpus() {
        for n in [0, 1, 3] {
            let counts = Buffer::counts("test", &[[9; 3], [5, 7, 1]]);
            let counts = Range::whole(&counts);
            let count = buffer(gpu, &[0; 8]);
            let second = Range {
                offset: 12,
                ..counts.clone()
            };
            let calls = [
                Call::inline("decide", DECIDE)
                    .bind("counts", &counts)
                    .word("n", n),
                Call::inline("count", COUNT)
                    .bind("count", &count)
                    .grid([5, 7, 1].map(Extent::N))
                    .with_counts(Some(second)),
            ];
            let recording = Recording::new(gpu, &Step::of(MOST, calls))
                .wait()
                .unwrap_or_else(|e| panic!("{e}"));
            recording.submit(gpu, &State::default());
            let found: Vec<u32> = download(gpu, &count.buffer, 8);
            let expected: Vec<_> = (0..8).map(|row| if row < n { 5 } else { 0 }).collect();
            assert_eq!(found, expected, "{}: {n} of 7", gpu.tier.name());
        }
    }
}

#[test]
fn questions_stand_behind_the_dispatches_that_a_replay_has() {
    let Some(gpu) = gpus().first() else { return };
    let log = buffer(gpu, &[0; 60]);
    let name = buffer(gpu, &[7; 4]);
    let call = |id| note(&log, &name, id);
    let calls = [
        call(0),
        call(1).per_block(Blocks::new(10, 35)),
        call(2).only(When::Many),
        call(3),
        call(4),
    ];
    let weight = unmade_weight(GgmlType::Q4_0, 1, 32, 32);
    let question = |[asked, due]: [usize; 2]| Question {
        layer: asked,
        asked,
        due,
        tells: vec![log.clone()],
        kept: None,
        to: Mlp {
            gate: weight.clone(),
            up: weight.clone(),
            down: weight.clone(),
        },
    };
    let questions = vec![question([1, 2]), question([0, 1]).behind(3)];
    let step = Step::of(MOST, calls[..4].to_vec()).asking(questions);
    let step = step.then(&calls[4..]);
    assert_eq!(step.questions.len(), 2);
    let recording = Recording::new(gpu, &step).wait();
    let recording = recording.unwrap_or_else(|e| panic!("{e}"));
    // A dispatch for each of three blocks, and one for many tokens alone.
    for (few, expected) in [(true, [[1, 4], [4, 5]]), (false, [[1, 4], [5, 6]])] {
        let state = State {
            pos: 20,
            tokens: 3,
            few,
            ..State::default()
        };
        let replay = recording.replay(gpu, &state);
        let found: Vec<_> = replay.questions().map(|(at, _)| at).collect();
        assert_eq!(found, expected, "few: {few}");
    }
}
