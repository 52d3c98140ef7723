//! The measurements of a report: `glimt verify`, `bench` and `profile`, each with what it prints.

use std::io;
use std::ops::ControlFlow;

use log::LevelFilter;

use super::made::{Generated, Made};
use super::subject::Subject;
use crate::bench::{self, BenchError, BenchOptions, Columns, Drafting, Format, Row, Where};
use crate::cli::bench::Shown;
use crate::cli::error::CliError;
use crate::cli::load;
use crate::cli::output::{note, write_error};
use crate::cli::verify::{WIDE, head, left_out, line, verdict};
use crate::engine::{DeviceChoice, EngineError, Tier};
use crate::profile::{self, ProfileOptions};
use crate::verify::Row as Compared;

/// The table of `glimt verify` and its verdict.
pub(super) fn verify(subject: &Subject, made: &mut Made) -> Result<(), CliError> {
    let level = log::max_level();
    // As `glimt verify` does.
    if std::env::var_os("RUST_LOG").is_none() {
        log::set_max_level(LevelFilter::Error);
    }
    made.text += &head(WIDE);
    let mut told = None;
    let mut on_row = |row: Compared<'_>| {
        let tier = match row {
            Compared::Kernel(kernel) => kernel.tier,
            Compared::Model(check) => check.tier.unwrap_or("CPU"),
        };
        if told != Some(tier) {
            told = Some(tier);
            note(format_args!("verify: {tier}"));
        }
        made.text += &line(&row, WIDE);
        ControlFlow::Continue(())
    };
    let options = subject.adapter.as_ref().map(|_| subject.options(None));
    let found = crate::verify::verify(
        options.as_ref(),
        &subject.tiers,
        (1, subject.cache),
        &mut on_row,
    );
    log::set_max_level(level);
    let found = found?;
    for line in left_out(&found) {
        made.text += &format!("{line}\n");
    }
    made.text += &verdict(&found)?;
    Ok(())
}

/// The table of `glimt bench`, each tier for itself.
pub(super) fn bench(
    subject: &Subject,
    generated: &mut Generated,
    made: &mut Made,
) -> Result<(), CliError> {
    let sizes = &subject.sizes;
    let tiers: Vec<Option<Tier>> = match subject.adapter {
        Some(_) => subject.tiers.iter().copied().map(Some).collect(),
        None => vec![None],
    };
    let tests = bench::tests(&[sizes.prompt], &[sizes.generated], &[], &[0])?;
    let mut table = vec![];
    let repetitions = sizes.repetitions as u64;
    let mut shown = Shown::new(&mut table, Format::Md, Columns::All, repetitions);
    for tier in tiers {
        let options = BenchOptions {
            source: subject.source.clone(),
            tests: tests.clone(),
            devices: vec![Where::Device(subject.choice.clone())],
            tiers: tier.into_iter().collect(),
            gpu: subject.options(None),
            precompose: Default::default(),
            cache_type: subject.cache,
            cpu_products: Default::default(),
            cpu_share: Default::default(),
            draft: Default::default(),
            chunks: vec![],
            routing: None,
            force: subject.force,
            repetitions: sizes.repetitions,
        };
        let run = bench::run(&options, &mut |event| shown.take(&event));
        if let Err(error) = run {
            let has_no_room = matches!(&error, BenchError::Engine(EngineError::NoRoom(_)));
            let error = CliError::from(error).in_source(&options.source);
            // Its kernels read no experts in the machine's memory, so a model may have room in the others alone.
            if has_no_room && tier == Some(Tier::Plain) && subject.tiers.len() > 1 {
                made.leave_out(&format!("tier plain: {error}"));
                continue;
            }
            made.failures.push(match tier {
                Some(tier) => format!("tier {tier}: {error}"),
                None => error.to_string(),
            });
        }
    }
    let rows = shown.finish()?;
    *generated = rows.iter().filter_map(speed).collect();
    let table = String::from_utf8(table).map_err(|e| write_error(io::Error::other(e)))?;
    made.text += &format!("{table}\nThe cache is in {}.\n", subject.cache);
    Ok(())
}

/// The tier of a row and its generated tokens in a second.
fn speed(row: &Row) -> Option<(&'static str, f64)> {
    let generated = row.n_gen > 0 && row.n_prompt == 0;
    Some((row.tier?, row.statistics.avg_ts)).filter(|_| generated)
}

/// The tables of `glimt profile`, of decoded tokens.
pub(super) fn token(subject: &Subject, made: &mut Made) -> Result<(), CliError> {
    let tokens = profile::Subject::Tokens(subject.sizes.profiled);
    profile(subject, tokens, made)
}

/// The tables of `glimt profile`, of a prompt.
pub(super) fn prompt(subject: &Subject, made: &mut Made) -> Result<(), CliError> {
    let prompt = profile::Subject::Prompt {
        tokens: subject.sizes.prompt,
        chunk: None,
        repetitions: subject.sizes.repetitions,
    };
    profile(subject, prompt, made)
}

fn profile(subject: &Subject, what: profile::Subject, made: &mut Made) -> Result<(), CliError> {
    if subject.choice == DeviceChoice::Cpu {
        made.leave_out(&BenchError::ProfileOnCpu.to_string());
        return Ok(());
    }
    let options = ProfileOptions {
        source: subject.source.clone(),
        gpu: subject.options(subject.asked.first().copied()),
        precompose: Default::default(),
        cache_type: subject.cache,
        cpu_share: Default::default(),
        force: subject.force,
        on_partly: load::partly,
        draft: Drafting::default(),
        subject: what,
        depth: 0,
        passes: false,
    };
    let profiled = load::with_bar("loading", |told| profile::run(&options, told));
    let profile = profiled.map_err(|error| CliError::from(error).in_source(&options.source))?;
    if let Some(trial) = &profile.head.tier_trial {
        made.text += &format!("{trial}\n");
    }
    made.text += &profile::markdown(&profile);
    Ok(())
}
