//! The answers that a request asks for, and the requests that the scheduler gets for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::engine::chooser::{
    Chain, ChainSettings, Chooser, ChooserError, Constrained, Grammar, LogProbs, TokenLogProbs,
};
use crate::engine::draft::DraftOptions;
use crate::engine::gpu::ExpertTraffic;
use crate::engine::scheduler::{Choice, Event, Owner, Request};

/// Answers to a prompt that are asked for.
pub(super) struct Order {
    pub(super) prompt: Arc<[u32]>,
    /// The number of answers.
    pub(super) n: usize,
    /// The wish that all prompts of a request share.
    pub(super) wish: Arc<Wish>,
}

/// The settings of the answers to a request.
pub(super) struct Wish {
    /// How tokens are chosen for the first answer. The seeds of the others follow.
    pub(super) chain: ChainSettings,
    pub(super) grammar: Option<Grammar>,
    /// The token behind which the grammar begins, where it does not begin at once.
    pub(super) begins_after: Option<u32>,
    /// The number of best tokens that are told with each.
    pub(super) log_probs: Option<usize>,
    pub(super) limit: usize,
    /// The slot that the conversation is kept in; `None` is any.
    pub(super) slot: Option<usize>,
    pub(super) drafts: DraftOptions,
    /// A text that answers are expected to repeat, if there is one.
    pub(super) expected: Vec<u32>,
}

impl Wish {
    /// The parts of the wished form that the grammar does not enforce.
    pub(super) fn not_enforced(&self) -> Vec<String> {
        let grammar = self.grammar.as_ref();
        let lost = grammar.map_or(&[][..], Grammar::not_enforced);
        lost.iter().map(ToString::to_string).collect()
    }
}

/// A message about an answer.
#[derive(Debug)]
pub(super) enum Told {
    /// An event of the scheduler.
    Event(Event),
    /// The probabilities that the model gave for the next token. They come before the token.
    LogProbs(TokenLogProbs),
    /// The traffic of experts since an answer ended the last time. It comes before the end.
    Experts(ExpertTraffic),
    /// Nothing can be computed any more.
    Broken(String),
}

/// A chooser that tells of its choices.
struct Telling {
    inner: LogProbs<Constrained<Chain>>,
    index: usize,
    told: UnboundedSender<(usize, Told)>,
}

impl Chooser for Telling {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        let token = self.inner.choose(logits, context)?;
        for kept in self.inner.take() {
            // Who does not read any more is noticed with the token.
            let _ = self.told.send((self.index, Told::LogProbs(kept)));
        }
        Ok(token)
    }

    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        self.inner.accept(token)
    }

    fn is_ready(&mut self, most: Duration) -> bool {
        self.inner.is_ready(most)
    }
}

/// An answer of a request.
pub(super) struct Answer {
    pub(super) index: usize,
    /// The number of the answer among those to its prompt.
    pub(super) which: u64,
}

/// The request that the scheduler gets for an answer.
pub(super) fn request(
    order: &Order,
    answer: &Answer,
    owner: Owner,
    told: &UnboundedSender<(usize, Told)>,
) -> Request {
    let wish = &order.wish;
    let mut chain = wish.chain.clone();
    chain.sampling.seed = chain.sampling.seed.wrapping_add(answer.which);
    let grammar = wish.grammar.clone();
    let on_host = grammar.is_some() || wish.log_probs.is_some();
    let choice = match chain.on_device() {
        Some(biases) if !on_host => Choice::Device(chain.sampling, biases),
        _ => {
            let chain = Chain::new(chain);
            let constrained = Constrained::new(chain, grammar, wish.begins_after);
            Choice::Host(Box::new(Telling {
                inner: LogProbs::new(constrained, wish.log_probs),
                index: answer.index,
                told: told.clone(),
            }))
        }
    };
    Request {
        prompt: order.prompt.to_vec(),
        choice,
        limit: wish.limit,
        owner,
        slot: wish.slot,
        drafts: wish.drafts,
        expected: wish.expected.clone(),
    }
}
