//! Golden values of the built-in model, made by llama.cpp in f32 from the exactly dequantised weights.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::models::Subject;
use super::rows::Difference;
use super::{Check, WORST, Way, on_cpu};
use crate::bench::BenchError;
use crate::engine::log_softmax::log_sum_exp;
use crate::kernels::CacheType;

const TEXT: &str = include_str!("../../../../tests/data/golden-tales-q4_k_m.json");
/// The prompt that is compared.
const PROMPT: &str = "mixed";
/// The errors that the median position and the worst one of the CPU reference may have. A cache of codes is not that of the golden values: the median was
/// seen to be off by 6e-5 and one position by 1.2, so only the median counts.
pub(super) fn limits(cache: CacheType) -> (f64, Option<f64>) {
    match cache {
        CacheType::F16 => (1e-4, Some(WORST)),
        CacheType::Q8_0 => (5e-4, None),
    }
}

#[derive(Deserialize)]
struct File {
    prompts: BTreeMap<String, Golden>,
}

/// The golden values of a text.
#[derive(Deserialize)]
pub(super) struct Golden {
    pub(super) tokens: Vec<u32>,
    /// The best (id, natural log-probability) of each position.
    #[serde(rename = "top20")]
    top: Vec<Vec<(u32, f64)>>,
}

impl Golden {
    pub(super) fn read() -> Self {
        let file: Result<File, _> = serde_json::from_str(TEXT);
        let mut prompts = file.expect("the file is a part of the program").prompts;
        prompts.remove(PROMPT).expect("the prompt is in the file")
    }

    /// The difference of rows of logits from them: of each position the squares of the differences of log-probabilities, over those of the
    /// golden ones around their mean.
    pub(super) fn difference(&self, rows: &[Vec<f32>]) -> Difference {
        if rows.len() != self.top.len() {
            return Difference::of_errors(vec![]);
        }
        let error = |(top, row): (&Vec<(u32, f64)>, &Vec<f32>)| {
            let log_sum = log_sum_exp(row);
            let mean = top.iter().map(|(_, exact)| exact).sum::<f64>() / top.len() as f64;
            let (mut error, mut variance) = (0.0, 0.0);
            for (id, exact) in top {
                let Some(logit) = row.get(*id as usize) else {
                    return f64::INFINITY;
                };
                error += (f64::from(*logit) - log_sum - exact).powi(2);
                variance += (exact - mean).powi(2);
            }
            error / variance
        };
        Difference::of_errors(self.top.iter().zip(rows).map(error).collect())
    }

    /// The comparison of the CPU reference.
    pub(super) fn checks_of_reference(
        &self,
        subjects: &[Subject],
    ) -> Result<Vec<Check>, BenchError> {
        let built_in = subjects.iter().filter(|subject| subject.is_built_in);
        let check = |subject: &Subject| {
            let difference = self.difference(&on_cpu(&subject.model, &self.tokens)?);
            let (limit, worst_limit) = limits(subject.model.cache_type());
            Ok(Check {
                tier: None,
                model: subject.name.clone(),
                way: Way::Chunk.name(),
                expert_slots: None,
                against: "llama.cpp",
                nmse: Some(difference.median),
                limit,
                worst: Some(difference.worst),
                worst_limit,
                error: None,
            })
        };
        built_in.map(check).collect()
    }
}
