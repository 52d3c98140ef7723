//! Golden values of the built-in model, made by llama.cpp in f32 from the exactly dequantised weights.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::models::Subject;
use super::rows::Difference;
use super::{Check, Way, on_cpu};
use crate::bench::BenchError;
use crate::engine::log_softmax::log_sum_exp;

const TEXT: &str = include_str!("../../../../tests/data/golden-tales-q4_k_m.json");
/// The prompt that is compared.
const PROMPT: &str = "mixed";
/// The error that the CPU reference may have, whose cache is of f16.
pub(super) const LIMIT_OF_REFERENCE: f64 = 1e-4;

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
            Ok(Check {
                tier: None,
                model: subject.name.clone(),
                way: Way::Chunk.name(),
                expert_slots: None,
                against: "llama.cpp",
                nmse: Some(difference.median),
                limit: LIMIT_OF_REFERENCE,
                worst: Some(difference.worst),
                error: None,
            })
        };
        built_in.map(check).collect()
    }
}
