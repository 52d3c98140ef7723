//! The built-in model on a device, and the logits of a session on it.

use std::ops::ControlFlow;

use glimt::engine::{
    DeviceChoice, Engine, EngineOptions, GpuOptions, ModelSource, Opened, Session, Tier, Wait,
};

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
    let opened = Opened::new(&ModelSource::Embedded, &options(device, tier, ctx))
        .wait()
        .expect("the built-in model opens");
    Engine::load(opened, &mut |_| {})
        .wait()
        .expect("the built-in model loads")
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
