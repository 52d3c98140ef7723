//! The traffic of experts that lie in the machine's memory, as the server tells it: how often one that was chosen had a slot on the GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::metrics::Metrics;
use crate::engine::Engine;
use crate::engine::gpu::ExpertTraffic;
use crate::gpu::wait::Wait;

/// How old the figures of a server that works become: asking waits for the steps under way.
const OLD: Duration = Duration::from_secs(10);

/// Looks at what the device counts.
pub(super) struct Experts {
    /// The engine; `None` where no layer has slots for experts, or nobody counts any more.
    engine: Option<Engine>,
    metrics: Arc<Metrics>,
    looked: Instant,
    /// The traffic when the last answer ended.
    told: ExpertTraffic,
}

impl Experts {
    pub(super) fn new(engine: &Engine, metrics: Arc<Metrics>) -> Self {
        let mut new = Self {
            engine: Some(engine.clone()),
            metrics,
            looked: Instant::now(),
            told: ExpertTraffic::default(),
        };
        // Warming up is no answer.
        new.told = new.look().unwrap_or_default();
        new
    }

    /// Looks now. An error is left to the next step, which the device fails, too.
    fn look(&mut self) -> Option<ExpertTraffic> {
        let found = self.engine.as_ref()?.expert_traffic().wait();
        self.looked = Instant::now();
        let Ok(Some(traffic)) = found else {
            self.engine = None;
            return None;
        };
        self.metrics.figures().experts = Some(traffic);
        Some(traffic)
    }

    /// Looks if the figures are old.
    pub(super) fn refresh(&mut self) {
        if self.looked.elapsed() >= OLD {
            self.look();
        }
    }

    /// The traffic since an answer ended the last time, when another one has ended.
    pub(super) fn ended(&mut self) -> Option<ExpertTraffic> {
        let now = self.look()?;
        let before = std::mem::replace(&mut self.told, now);
        Some(now.since(&before))
    }
}
