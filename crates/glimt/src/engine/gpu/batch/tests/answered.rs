//! Protects steps that the host answers: an answer that fails or a part that is lost ends the text with an error, and what follows is right
//! again. Sessions of one model on several threads do not disturb each other.

use super::slots::Way;
use super::*;
use crate::engine::backend::{BackendError, BoxedFuture};
use crate::engine::gpu::answered::{Answering, Answers};
use crate::engine::gpu::from_file::FromFile;
use crate::gpu::behind::ExpertsFrom;
use crate::gpu::question::Question;
use crate::gpu::{Gpu, GpuError};
use crate::recipes::{Residence, Rooms};
use crate::synth::{ModelName, Recipe};
use std::io::{Seek, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Answers from the file, of which one fails after some others.
struct Failing {
    answers: FromFile,
    left: Arc<AtomicUsize>,
}

impl Answers for Failing {
    fn answer<'a>(
        &'a mut self,
        gpu: &'a Gpu,
        question: &'a Question,
        words: &'a [&'a [u32]],
    ) -> BoxedFuture<'a, Result<(), GpuError>> {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let reason = "the disk was pulled out".to_owned();
            return Box::pin(async move { Err(GpuError::ReadWeights { reason }) });
        }
        self.answers.answer(gpu, question, words)
    }
}

/// Writes zeros to a file behind its header, and sets the time back to that of the last change.
fn forge(path: &std::path::Path) -> std::io::Result<()> {
    let mut file = std::fs::File::options().write(true).open(path)?;
    let attributes = file.metadata()?;
    // The last three quarters of the file are weights.
    let length = attributes.len() / 4;
    file.seek(std::io::SeekFrom::Start(length))?;
    file.write_all(&vec![0; 3 * length as usize])?;
    file.set_modified(attributes.modified()?)
}

/// Answers from the file that come when all that is read ahead is there. Before the answer of this number, counted from 1, the file is
/// [forged](forge).
struct Patient {
    answers: FromFile,
    left: Arc<AtomicUsize>,
    file: std::path::PathBuf,
}

impl Answers for Patient {
    fn answer<'a>(
        &'a mut self,
        gpu: &'a Gpu,
        question: &'a Question,
        words: &'a [&'a [u32]],
    ) -> BoxedFuture<'a, Result<(), GpuError>> {
        self.answers.ahead.settle();
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            forge(&self.file).expect("it is there");
        }
        self.answers.answer(gpu, question, words)
    }
}

/// A small model with experts from the file.
pub(super) fn way() -> Way {
    Way {
        model: ModelName::Tiny,
        recipe: Recipe::Q4KM,
        tier: Tier::Subgroup,
        slots: 3,
        from_file: true,
        repeats: false,
        apart: true,
        file: true,
    }
}

/// A small model on the device and with experts from the file.
fn models() -> Option<[Arc<GpuModel>; 2]> {
    way().models()
}

/// A session of a model.
pub(super) fn answers_of(model: &Arc<GpuModel>) -> GpuBackend {
    let made = GpuBackend::with_chunk(Arc::clone(model), N_CTX, Some(16));
    made.wait().expect("it fits")
}

/// The text of `count` tokens behind a prompt, and the error that ended it sooner.
pub(super) fn text(session: &mut GpuBackend, count: usize) -> (Vec<u32>, Option<BackendError>) {
    text_after(session, count, |_| {})
}

/// The text of a session and its error, if `between` is done between the prompt and the text.
fn text_after(
    session: &mut GpuBackend,
    count: usize,
    between: impl FnOnce(&GpuModel),
) -> (Vec<u32>, Option<BackendError>) {
    let mut ids = tokens(21).to_vec();
    let prefilled = session.prefill(&ids, 0).wait();
    let context = ids.clone();
    let on_token = &mut |id| {
        ids.push(id);
        ControlFlow::Continue(())
    };
    let decoded = prefilled.and_then(|()| {
        between(session.model());
        let decoded = session.decode(&context, &Sampling::GREEDY, count, on_token);
        decoded.wait()
    });
    (ids.split_off(context.len()), decoded.err())
}

#[test]
fn what_fails_ends_the_text_and_is_not_remembered() {
    let Some([whole, mut file]) = models() else {
        return;
    };
    let expected = text(&mut answers_of(&whole), 12).0;
    let left = Arc::new(AtomicUsize::new(0));
    answer(&mut file, |answers| {
        Box::new(Failing {
            answers,
            left: Arc::clone(&left),
        })
    });
    let mut session = answers_of(&file);
    let mut rng = Rng::fresh();
    // Layers with experts ask once in a chunk of the prompt and once in a token.
    for at in [1, 2, 3, 5 + rng.below(10), 8 + rng.below(10)] {
        left.store(at, Ordering::SeqCst);
        let (found, error) = text(&mut session, 12);
        let error = error.expect("an answer fails").to_string();
        assert!(error.contains("the disk was pulled out"), "{error}");
        assert!(
            expected.starts_with(&found) && found.len() < 12,
            "{at}: {found:?}"
        );
        let (found, error) = text(&mut session, 12);
        assert!(
            error.is_none() && found == expected,
            "behind {at}: {found:?}"
        );
    }
    // A part whose work is lost is found before anything is computed from what it did not leave. The numbers of the tokens' last parts come
    // first, then those of the others.
    for at in [rng.below(12), 12, 13 + rng.below(12)] {
        let leave_out = |model: &GpuModel| model.gpu.leave_out(at);
        let (found, error) = text_after(&mut session, 12, leave_out);
        let error = error.expect("a part is lost");
        let is_lost =
            matches!(&error, BackendError::Gpu(e) if matches!(**e, GpuError::WorkLost { .. }));
        assert!(is_lost, "{at}: {error}");
        assert!(expected.starts_with(&found), "{at}: {found:?}");
        let (found, error) = text(&mut session, 12);
        assert!(
            error.is_none() && found == expected,
            "behind {at}: {found:?}"
        );
    }
}

/// Has the questions of `model` be answered so.
fn answer(model: &mut Arc<GpuModel>, made: impl FnOnce(FromFile) -> Box<dyn Answers>) {
    let rooms = &model.weights.body.rooms;
    let answers = FromFile::begin(&model.gpu, rooms, &mut |_| {}).wait();
    let answers = made(answers.expect("it reads").expect("it has experts"));
    let tables = rooms.iter().flatten().filter_map(Rooms::table).cloned();
    let answering = Answering::new(&model.gpu, answers, tables.collect()).wait();
    let model = Arc::get_mut(model).expect("nobody else has it");
    model.answering = Some(Arc::new(answering.expect("it fits")));
}

#[test]
fn a_long_chunk_reads_the_experts_of_a_layer_while_the_one_before_is_computed() {
    // The last layer with experts is the third that asks.
    for (at, is_ahead) in [(1, false), (3, true)] {
        let Some(([whole, mut file], path)) = way().models_of_a_file() else {
            return;
        };
        let left = Arc::new(AtomicUsize::new(at));
        answer(&mut file, |answers| {
            Box::new(Patient {
                answers,
                left: Arc::clone(&left),
                file: path.to_path_buf(),
            })
        });
        // Enough tokens to choose all experts.
        let ids = tokens(60);
        let [expected, found] = [whole, file].map(|model| {
            let made = GpuBackend::with_chunk(model, N_CTX, Some(64));
            let mut session = made.wait().expect("it fits");
            let prefilled = session.prefill(&ids, 0).wait();
            prefilled.expect("it computes");
            kept(&session)
        });
        assert_eq!(found == expected, is_ahead, "question {at}");
        let left = left.load(Ordering::SeqCst);
        assert_eq!(left.wrapping_add(3), at, "layers with experts");
    }
}

#[test]
fn tokens_one_by_one_need_no_room_for_all_experts_of_a_layer() {
    let Some([whole, file]) = models() else {
        return;
    };
    // Of 8 experts a token uses 2: none, too few and enough slots.
    let slots = Rng::fresh().below(5) as u32;
    let (gpu, model) = (Arc::clone(&whole.gpu), Arc::clone(&file.model));
    let residence = Residence::OneByOne(slots);
    let mut ignore = |_, _| {};
    let loaded = GpuModel::load_for(gpu, model, residence, 1, &mut ignore).wait();
    let one_by_one = Arc::new(loaded.expect("it fits"));
    for rooms in one_by_one.weights.body.rooms.iter().flatten() {
        assert_eq!(rooms.staging.gate.groups, 2, "those of a token");
    }
    let ids = tokens(21);
    let [expected, found] = [whole, one_by_one].map(|model| {
        // The kernels of a token add up in an order of their own.
        let made = GpuBackend::with_chunk(model, N_CTX, Some(1));
        let mut session = made.wait().expect("it fits");
        session.prefill(&ids, 0).wait().expect("it computes");
        let after_prompt = kept(&session);
        let mut rows = vec![];
        let on_row = &mut |_, row: &[f32]| {
            rows.extend(row.iter().map(|v| v.to_bits()));
            ControlFlow::Continue(())
        };
        session.logits(&ids, 0, on_row).wait().expect("it computes");
        (after_prompt, rows, text(&mut session, 8).0)
    });
    assert!(found == expected, "{slots} slots");
}

#[test]
fn a_file_that_is_written_to_ends_the_text_and_one_that_is_replaced_does_not() {
    let Some(([whole, file], path)) = way().models_of_a_file() else {
        return;
    };
    let expected = text(&mut answers_of(&whole), 8).0;
    let mut session = answers_of(&file);
    let bytes = std::fs::read(&path).expect("it is there");
    let other = vec![0x5a; bytes.len()];
    // Another file has the name, and this one is still open.
    let beside = path.with_extension("new");
    std::fs::write(&beside, &other).expect("there is room");
    let kept = path.with_extension("old");
    std::fs::rename(&path, &kept).expect("it is there");
    std::fs::rename(&beside, &path).expect("it is there");
    assert_eq!(text(&mut session, 8).0, expected);
    // A file system may tell times in steps of some milliseconds.
    thread::sleep(std::time::Duration::from_millis(20));
    let file = std::fs::File::options().write(true).open(&kept);
    let written = file.and_then(|mut file| file.write_all(&other));
    written.expect("it is there");
    let (found, error) = text(&mut session, 8);
    std::fs::remove_file(&kept).expect("it is there");
    let error = error.expect("the experts are others").to_string();
    assert!(error.contains("has changed since it was opened"), "{error}");
    assert!(expected.starts_with(&found), "{found:?}");
}

#[test]
fn a_system_that_locks_no_memory_has_experts_come_from_the_file() {
    let Some([whole, _]) = models() else {
        return;
    };
    let load = |experts| {
        let mut gpu = (*whole.gpu).clone();
        (gpu.locks, gpu.experts) = (Some(1000), experts);
        let (gpu, model) = (Arc::new(gpu), Arc::clone(&whole.model));
        let mut ignore = |_, _| {};
        let loaded = GpuModel::load_for(gpu, model, Residence::Slots(3), 1, &mut ignore);
        loaded.wait().map(Arc::new)
    };
    let expected = text(&mut answers_of(&whole), 8).0;
    let file = load(ExpertsFrom::Auto).expect("the file has them");
    assert_eq!(file.residence, Residence::File(3));
    assert_eq!(text(&mut answers_of(&file), 8).0, expected);
    match load(ExpertsFrom::Host).map(|model| model.residence) {
        Err(GpuError::OutOfMemory { what, .. }) => assert_eq!(what, "experts in host memory"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sessions_of_a_model_take_turns() {
    let Some([whole, file]) = models() else {
        return;
    };
    let expected = text(&mut answers_of(&whole), 8).0;
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (found, error) = text(&mut answers_of(&file), 8);
                assert!(error.is_none() && found == expected, "{found:?}");
            });
        }
    });
}
