//! Protects the summary of a profile: sums, shares and floors are those of the times that were measured.

use super::*;

fn taken(kernel: &'static str, label: &str, sublayer: Sublayer, bytes: u64) -> Taken {
    let about = About {
        kernel,
        label: label.to_owned(),
        sublayer,
        ..About::default()
    };
    Taken {
        about: Arc::new(about),
        bytes,
        // Two for each of 4-bit weights.
        flops: if kernel == "matvec" { bytes * 4 } else { 0 },
        ..Taken::default()
    }
}

/// Embedding, two layers of attention and a product, head; 3 tokens, of which one is slow.
pub(in crate::profile) fn example(empty_pass_us: Option<f64>) -> Profile {
    let work = Work::Token {
        tokens: 3,
        token_us: 30.0,
        step_us: 20.0,
        dependent_dispatches: 5,
    };
    example_of(work, empty_pass_us)
}

/// The profile of `example` as three repetitions of a prompt.
pub(in crate::profile) fn example_prompt() -> Profile {
    let work = Work::Prompt {
        n_prompt: 70,
        n_ubatch: 64,
        piece: 64,
        repetitions: 3,
        prompt_us: 20.0,
        tokens_per_s: 3.5e6,
    };
    example_of(work, None)
}

/// The profile of `example` as three steps with drafts.
pub(in crate::profile) fn example_drafted() -> Profile {
    let work = Work::Drafted {
        steps: 3,
        draft: "mtp",
        drafts: 2,
        step_us: 20.0,
        token_us: 16.0,
    };
    example_of(work, None)
}

fn example_of(work: Work, empty_pass_us: Option<f64>) -> Profile {
    let step = [
        taken("embed", "embed Q4_0", Sublayer::Outside, 0),
        taken("attention", "attention", Sublayer::Attention(0), 1100),
        taken("matvec", "matvec Q4_0 8x32", Sublayer::FeedForward(0), 4000),
        taken("attention", "attention", Sublayer::Attention(1), 1100),
        taken("matvec", "matvec Q4_0 8x32", Sublayer::FeedForward(1), 4000),
        taken("matvec", "matvec Q6_K <64x32>", Sublayer::Outside, 10_000),
    ];
    let token = |factor: f64| {
        let lengths = [1.0, 4.0, 2.0, 5.0, 2.0, 10.0];
        let mut at = 500.0;
        lengths
            .map(|us| {
                let begin = at;
                at += us * factor * 1e3;
                [begin, at]
            })
            .to_vec()
    };
    let head = Head {
        gpu_info: "a GPU".to_owned(),
        tier: "plain",
        cache_type: "q8_0",
        model_type: "a model".to_owned(),
        peak_gb_per_s: 10.0,
        dispatch_us: 0.5,
        separation: "timestamps between dispatches",
        empty_pass_us,
        ..Head::default()
    };
    let times = [token(1.0), token(3.0), token(1.0)];
    let alone = match work {
        Work::Token { .. } => [("matvec Q4_0 8x32".to_owned(), 2.0)].into(),
        _ => BTreeMap::new(),
    };
    let parts = match work {
        Work::Drafted { .. } => [("rows of the layer", 2), ("3 rows of the model", 6)].into(),
        _ => vec![],
    };
    let parts = parts.into_iter().map(|(name, end)| (name.to_owned(), end));
    let measured = Measured {
        work,
        step: step.into(),
        times: times.into(),
        alone,
        traffic: None,
        parts: parts.collect(),
    };
    Profile::new(head, measured, 1)
}

#[test]
fn the_experts_of_a_token_are_told_by_what_the_device_counted() {
    let traffic = |counted| Traffic {
        slots: 3,
        counted,
        by_cpu: None,
        from_file: false,
        of_token: 4000,
        chosen: 8,
        times: 2,
    };
    let token = example(None).work;
    // Five tokens chose 8 experts each.
    let counted = ExpertTraffic {
        hits: 30,
        misses: 10,
        bytes: 5000,
    };
    let found = traffic(Some(counted)).of_work(&token, &[], 2.0);
    let expected = FromHost {
        expert_slots: 3,
        expert_hits: Some(6.0),
        expert_misses: Some(2.0),
        by_cpu: None,
        from_file: false,
        bus_bytes: Some(1000.0),
        beside_bytes: 0.0,
        fills_us: 2.0,
        bus_gb_per_s: Some(0.5),
    };
    assert_eq!(found, expected);
    let found = traffic(None).of_work(&token, &[], 0.0);
    assert_eq!(
        (found.expert_hits, found.bus_bytes),
        (Some(0.0), Some(4000.0))
    );
    assert_eq!((found.expert_misses, found.bus_gb_per_s), (Some(8.0), None));
    // A prompt that was computed twice.
    let prompt = example_prompt().work;
    let layer = Sublayer::FeedForward(1);
    let fill = taken(CHOSEN, "expert_fill", layer, 4000);
    let found = traffic(Some(counted)).of_work(&prompt, std::slice::from_ref(&fill), 1.0);
    assert_eq!(
        (found.expert_hits, found.bus_bytes, found.beside_bytes),
        (Some(15.0), Some(2500.0), 0.0)
    );
    // Nobody counted those that were chosen.
    let uncounted = traffic(None).of_work(&prompt, std::slice::from_ref(&fill), 1.0);
    assert_eq!(uncounted.bus_bytes, None);
    // Experts that come beside what computes are in no table.
    let parts = [100, 23].map(|bytes| taken(BESIDE, "expert_part", layer, bytes));
    let found = traffic(None).of_work(&prompt, &parts, 1.0);
    assert_eq!((found.bus_bytes, found.beside_bytes), (Some(123.0), 123.0));
    let both = [&parts[..], &[fill]].concat();
    let found = traffic(Some(counted)).of_work(&prompt, &both, 1.0);
    assert_eq!((found.bus_bytes, found.beside_bytes), (Some(2623.0), 123.0));
    assert_eq!(traffic(None).of_work(&prompt, &both, 1.0).bus_bytes, None);
}

#[test]
fn dispatches_that_bring_experts_in_either_way_count() {
    let layer = Sublayer::FeedForward(1);
    let step = vec![
        taken("gemm", "gemm", layer, 1),
        taken(BESIDE, "expert_part", layer, 3000),
        taken(CHOSEN, "expert_fill", layer, 1000),
    ];
    let measured = Measured {
        work: example_prompt().work,
        step,
        times: vec![vec![[0.0, 5e3], [5e3, 8e3], [8e3, 9e3]]],
        alone: BTreeMap::new(),
        traffic: Some(Traffic {
            slots: 3,
            counted: Some(ExpertTraffic::default()),
            by_cpu: None,
            from_file: false,
            of_token: 4000,
            chosen: 8,
            times: 1,
        }),
        parts: vec![],
    };
    let head = Head {
        peak_gb_per_s: 10.0,
        ..Head::default()
    };
    let profile = Profile::new(head, measured, 1);
    let found = profile.from_host.expect("experts lie in host memory");
    assert_eq!((found.fills_us, found.bus_bytes), (4.0, Some(3000.0)));
    assert_eq!(found.bus_gb_per_s, Some(0.75));
}

#[test]
fn kernels_are_grouped_by_label_with_medians_over_tokens() {
    let profile = example(None);
    assert_eq!((profile.sum_us, profile.dispatches), (24.0, 6));
    let found: Vec<_> = profile
        .kernels
        .iter()
        .map(|k| (k.label.as_str(), k.calls, k.us, k.bytes))
        .collect();
    let expected = [
        ("matvec Q6_K <64x32>", 1, 10.0, 10_000),
        ("attention", 2, 9.0, 2200),
        ("matvec Q4_0 8x32", 2, 4.0, 8000),
        ("embed Q4_0", 1, 1.0, 0),
    ];
    assert_eq!(found, expected);
    let head = &profile.kernels[0];
    assert_eq!(head.gb_per_s, Some(1.0));
    assert_eq!(head.of_peak, Some(0.1));
    let floors: Vec<_> = profile.kernels.iter().map(|k| k.floor_us).collect();
    assert_eq!(floors, [1.5, 1.22, 1.8, 0.5]);
    assert_eq!(head.tflop_per_s, Some(0.004));
    assert_eq!(profile.kernels[3].gb_per_s, None);
    assert_eq!(profile.kernels[3].tflop_per_s, None);
    let shares: f64 = profile.kernels.iter().map(|k| k.share).sum();
    assert!((shares - 1.0).abs() < 1e-12);
}

#[test]
fn layers_have_their_feed_forward_part_and_kind() {
    let profile = example(None);
    let layer = |layer, moe, us| LayerTime {
        layer,
        moe,
        us,
        feed_forward_us: 2.0,
    };
    assert_eq!(profile.layers, [layer(0, false, 6.0), layer(1, true, 7.0)]);
    assert_eq!(profile.first_moe, Some(profile.layers[1]));
    assert_eq!(profile.typical, Some(profile.layers[1]));
}

#[test]
fn an_empty_pass_is_subtracted_and_the_timeline_closed() {
    let profile = example(Some(1.0));
    assert_eq!(profile.sum_us, 24.0 - 6.0);
    let bars: Vec<_> = profile.timeline.iter().map(|b| (b.begin, b.end)).collect();
    let expected = [
        (0.0, 0.0),
        (0.0, 3.0),
        (3.0, 4.0),
        (4.0, 8.0),
        (8.0, 9.0),
        (9.0, 18.0),
    ];
    assert_eq!(bars, expected);
    let open = example(None);
    assert_eq!((open.timeline[5].begin, open.timeline[5].end), (14.0, 24.0));
}

#[test]
fn medians() {
    assert_eq!(median(vec![]), 0.0);
    assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
}

#[test]
fn experts_of_the_cpu_do_not_come_over_the_bus() {
    let work = HostWork {
        answers: 15,
        experts: 9,
        bytes: 4500,
        seconds: 6e-6,
    };
    // Five layers are answered for each of three tokens.
    let by_cpu = ByCpu::of(work, 5);
    let expected = ByCpu {
        cpu_experts: 3.0,
        cpu_bytes: 1500.0,
        cpu_us: 2.0,
    };
    assert!((by_cpu.cpu_us - expected.cpu_us).abs() < 1e-9);
    assert_eq!(
        ByCpu {
            cpu_us: 2.0,
            ..by_cpu
        },
        expected
    );
    let traffic = Traffic {
        slots: 0,
        counted: None,
        by_cpu: Some(expected),
        from_file: false,
        of_token: 4000,
        chosen: 8,
        times: 1,
    };
    let found = traffic.of_work(&example(None).work, &[], 2.0);
    assert_eq!(found.bus_bytes, Some(2500.0));
    assert_eq!(
        (found.by_cpu, found.expert_misses),
        (Some(expected), Some(8.0))
    );
}

#[test]
fn no_dispatches_take_no_time_without_a_sign() {
    let spans = Spans::of(&[vec![[1.0, 3.0]]], 0.0);
    assert!(spans.sum_of(|_| false).is_sign_positive());
}
