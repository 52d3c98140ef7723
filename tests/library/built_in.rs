//! The built-in model on a device, models of the other family on the CPU, and the logits of a session.

use std::ops::ControlFlow;

use glimt::engine::{
    CacheType, DeviceChoice, Engine, EngineOptions, GpuOptions, ModelSource, Opened, Session, Tier,
    Wait,
};
use glimt::gguf::Gguf;
use glimt::synth::{self, ModelName, Recipe, SynthOptions};

/// The options for a device, a tier and a context of `ctx` tokens; without a number it has the model's.
pub fn options(device: DeviceChoice, tier: Option<Tier>, ctx: Option<usize>) -> EngineOptions {
    EngineOptions {
        gpu: GpuOptions {
            device,
            tier,
            ..GpuOptions::default()
        },
        ctx,
        ..EngineOptions::default()
    }
}

/// An engine with these [`options`].
pub fn engine_on(device: DeviceChoice, tier: Option<Tier>, ctx: Option<usize>) -> Engine {
    engine_with(&options(device, tier, ctx))
}

/// An engine with a cache in q8_0 and a context of 256 tokens.
pub fn engine_with_codes(device: DeviceChoice) -> Engine {
    engine_with(&EngineOptions {
        cache_type: Some(CacheType::Q8_0),
        ..options(device, None, Some(256))
    })
}

/// An engine with any options.
pub fn engine_with(options: &EngineOptions) -> Engine {
    let opened = Opened::new(&ModelSource::Embedded, options)
        .wait()
        .expect("the built-in model opens");
    Engine::load(opened, &mut |_| {})
        .wait()
        .expect("the built-in model loads")
}

/// Models with grouped-query attention on the CPU, with experts and without. Their weights are random.
pub fn grouped_on_cpu(ctx: usize) -> [Engine; 2] {
    [ModelName::TinyQwen3Moe, ModelName::TinyLlama].map(|name| {
        let small = SynthOptions {
            layers: Some(2),
            ..SynthOptions::default()
        };
        let bytes = synth::in_memory(name, Recipe::Q8_0, &small).expect("it is small");
        let gguf = Gguf::from_bytes(bytes, "grouped.gguf").expect("it is whole");
        let options = options(DeviceChoice::Cpu, None, Some(ctx));
        let opened = Opened::of_gguf(gguf, &options).wait();
        let engine = Engine::load(opened.expect("it opens"), &mut |_| {}).wait();
        engine.expect("it loads")
    })
}

/// The logits after the last of `tokens`, which follow what was said.
pub fn last_logits(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    let mut last = Vec::new();
    let keep = &mut |_, logits: &[f32]| {
        last = logits.to_vec();
        ControlFlow::Continue(())
    };
    session
        .logits(tokens, tokens.len() - 1, keep)
        .wait()
        .expect("the tokens fit");
    last
}
