//! The uses of the memory in `glimt inspect`, as a picture and as bars.

use super::output::bytes;
use crate::engine::MemoryPlan;
use crate::gpu::{GpuError, Target};
use crate::models::Model;
use crate::pictures::stack::{self, Part, share};
use crate::pictures::svg::Svg;
use crate::pictures::terminal::{Bar, Terminal};
use crate::plural::count;
use crate::recipes::Residence;

/// Kinds of matrices, and what the names of their tensors contain: the first that fits counts.
const KINDS: [(&str, &[&str]); 4] = [
    ("experts", &["_exps."]),
    ("attention", &["attn_"]),
    (
        "dense and shared ff",
        &["ffn_gate.", "ffn_up.", "ffn_down.", "_shexp."],
    ),
    ("embeddings and head", &["token_embd.", "output."]),
];
/// The name of all other weights.
const OTHERS: &str = "routers and norms";
/// The top of the parts in the picture.
const TOP: f64 = 62.0;

/// The uses of a plan's bytes, each above 0.
pub(super) struct Uses {
    parts: Vec<(&'static str, u64)>,
    ctx: usize,
}

impl Uses {
    /// The uses of memory by `model` on `target`.
    pub(super) fn new(
        target: &Target,
        model: &dyn Model,
        plan: &MemoryPlan,
    ) -> Result<Self, GpuError> {
        let mut parts: Vec<_> = KINDS.iter().map(|(name, _)| (*name, 0)).collect();
        let mut rest = plan.weights;
        for matrix in &model.place(target, Residence::Whole)?.matrices {
            let is = |(_, names): &(&str, &[&str])| names.iter().any(|n| matrix.name.contains(n));
            if let Some(kind) = KINDS.iter().position(is) {
                // Of experts that lie in the machine's memory, the slots count.
                let share = match plan.slots {
                    Some(slots) if kind == 0 => f64::from(slots) / f64::from(matrix.groups),
                    _ => 1.0,
                };
                let bytes = ((matrix.bytes() as f64 * share) as u64).min(rest);
                parts[kind].1 += bytes;
                rest -= bytes;
            }
        }
        parts.push((OTHERS, rest));
        parts.push(("cache", plan.cache));
        parts.push(("scratch", plan.scratch));
        parts.retain(|(_, bytes)| *bytes > 0);
        Ok(Self {
            parts,
            ctx: plan.ctx,
        })
    }

    fn total(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The parts as SVG, and of the memory that the adapter `has` what is used.
    pub(super) fn svg(&self, model: &str, adapter: Option<(&str, u64)>) -> String {
        let part = |(name, size): &(&str, u64)| Part {
            name: (*name).to_owned(),
            value: *size as f64,
            words: bytes(*size),
        };
        let parts: Vec<_> = self.parts.iter().map(part).collect();
        let total = self.total();
        let title = format!("Memory of {model}: {}", bytes(total));
        let legend = TOP + stack::HEIGHT;
        let below = legend + stack::height(&parts) + 26.0;
        let height = match adapter {
            Some(_) => below + 14.0 + stack::HEIGHT,
            None => below - 10.0,
        };
        let mut svg = Svg::new(stack::WIDTH, height, &title);
        svg.heading([20.0, 26.0], &title);
        let context = format!("at a context of {}", count(self.ctx, "token"));
        svg.heading([20.0, 44.0], &context);
        stack::bar(&mut svg, TOP, &parts, total as f64);
        stack::legend(&mut svg, legend, &parts);
        if let Some((name, has)) = adapter {
            let verdict = match has.checked_sub(total) {
                Some(free) => format!("{} of it free", bytes(free)),
                None => format!("NOT enough, {} are missing", bytes(total - has)),
            };
            let words = format!("in the {} of {name}: {verdict}", bytes(has));
            svg.heading([20.0, below], &words);
            let whole = has.max(total) as f64;
            stack::bar(&mut svg, below + 14.0, &parts, whole);
            stack::mark(&mut svg, below + 14.0, has as f64, whole);
        }
        svg.finish()
    }

    /// The parts as bars, the largest as long as there is room.
    pub(super) fn bars(&self, terminal: &Terminal) -> String {
        let total = self.total() as f64;
        let most = self.parts.iter().map(|(_, bytes)| *bytes).max();
        let bar = |(name, size): &(&str, u64)| Bar {
            name: (*name).to_owned(),
            part: *size as f64 / most.unwrap_or(1) as f64,
            value: format!("{:>9} {:>6}", bytes(*size), share(*size as f64, total)),
        };
        let bars: Vec<_> = self.parts.iter().map(bar).collect();
        terminal.bars(&bars)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::models;

    #[test]
    fn the_parts_are_all_of_the_plan() {
        let target = Target::h200();
        let gguf = ModelSource::Embedded.open().expect("it is built in");
        let model = models::load(gguf.into()).expect("it is supported");
        let plan =
            MemoryPlan::new(&target, &*model, Residence::Whole, 1000, None).expect("it fits");
        let uses = Uses::new(&target, &*model, &plan).expect("it fits");
        assert_eq!(uses.total(), plan.total());
        let names: Vec<_> = uses.parts.iter().map(|(name, _)| *name).collect();
        let mut expected: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
        expected.extend([OTHERS, "cache", "scratch"]);
        assert_eq!(names, expected);
        let of = |name| uses.parts.iter().find(|(other, _)| *other == name);
        let others = of(OTHERS).expect("it is there").1;
        assert!(others < plan.weights / 20, "{others} of {}", plan.weights);
        for has in [1, plan.total() * 3] {
            let text = uses.svg("<a>", Some(("GPU", has)));
            assert!(text.contains("Memory of &lt;a&gt;") && !text.contains("NaN"));
            assert_eq!(text.contains("NOT enough"), has == 1, "{text}");
        }
    }
}
