//! Protects the clock that a row names: times of a GPU whose timestamps are wrong are told by the host.

use super::*;
use crate::gpu::stamps::lies::{self, Lie};

/// A generation of 4 tokens.
fn options() -> BenchOptions {
    BenchOptions {
        source: "tiny:q4_0".parse().unwrap(),
        tests: vec![Test {
            prompt: 0,
            generate: 4,
            depth: 0,
        }],
        devices: vec![Where::Device(DeviceChoice::Auto)],
        tiers: vec![],
        gpu: GpuOptions::default(),
        precompose: PrecomposeChoice::Off,
        cache_type: CacheType::F16,
        cpu_products: Products::Quick,
        cpu_share: Default::default(),
        draft: Default::default(),
        chunks: vec![],
        routing: None,
        force: false,
        repetitions: 1,
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn where_the_clock_lies_rows_say_that_the_hosts_told_times() {
    let options = options();
    for (lie, clock) in [(None, "gpu"), (Some(Lie::Backwards), "host")] {
        let mut rows = vec![];
        let mut measure = || {
            run(&options, &mut |event| {
                if let Event::Row(row) = event {
                    rows.push(row.clone());
                }
                ControlFlow::Continue(())
            })
        };
        match lie {
            Some(lie) => lies::with(lie, measure),
            None => measure(),
        }
        .unwrap();
        let row = rows.first().unwrap();
        if lie.is_none() && row.clock == Some("host") {
            eprintln!("skipped: no timestamps on {}", row.gpu_info);
            return;
        }
        assert_eq!(row.clock, Some(clock));
        assert!(row.peak_gb_per_s.unwrap() > 0.0);
        assert!((0.0..1.0).contains(&row.gpu_idle.unwrap()), "{row:?}");
    }
}

#[test]
fn a_trace_for_steps_of_one_token_is_refused_with_drafts() {
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 1), }\n";
    let length = (header.len() as u16).to_le_bytes();
    let file = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &[0]].concat();
    let mut asked = options();
    asked.routing = Some(Arc::new(Routing::from_npy(&file).unwrap()));
    asked.draft.options.source = DraftSource::Ngram;
    let refused = run(&asked, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(
        refused.to_string().contains("give --draft off"),
        "{refused}"
    );
}

#[test]
fn idle_is_what_lies_between_steps() {
    assert_eq!(idle(&[[0.0, 10.0], [10.0, 20.0]]), Some(0.0));
    assert_eq!(idle(&[[0.0, 10.0], [30.0, 40.0]]), Some(0.5));
    assert_eq!(idle(&[[0.0, 10.0]]), None);
    assert_eq!(idle(&[]), None);
}

#[test]
fn random_tokens_spread_over_the_vocabulary() {
    let tokens = random_tokens(1000, 64);
    assert!(tokens.iter().all(|t| *t < 64));
    assert!((0..64).all(|id| tokens.contains(&id)));
}
