//! The turns of a conversation.

use serde::{Deserialize, Serialize};

/// A text that the model generated, with its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// The text that `ids` stand for.
    pub text: String,
    /// The tokens as they were generated.
    pub ids: Vec<u32>,
}

/// The thoughts and the answer of the model in one turn. Either may have been cut at any token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The thoughts before the answer, without the tokens that mark them; `None` if there were none.
    pub thoughts: Option<Passage>,
    /// The answer, without the token that ends it.
    pub answer: Passage,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// A turn of the user.
    User(String),
    /// A turn of the model.
    Reply(Reply),
}

/// A conversation with a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// The instructions that the model gets before the first turn.
    pub system: Option<String>,
    /// The turns, in order.
    pub turns: Vec<Turn>,
}

impl Conversation {
    /// A conversation without turns.
    pub fn new(system: Option<String>) -> Self {
        Self {
            system,
            turns: Vec::new(),
        }
    }

    /// The last text of the user, if there is one.
    pub fn last_text(&self) -> Option<&str> {
        self.turns.iter().rev().find_map(|turn| match turn {
            Turn::User(text) => Some(text.as_str()),
            Turn::Reply(_) => None,
        })
    }

    /// Takes back the last text of the user and what followed it. Returned is that text; `None` if there is none.
    pub fn take_last(&mut self) -> Option<String> {
        let is_user = |turn: &Turn| matches!(turn, Turn::User(_));
        let last = self.turns.iter().rposition(is_user)?;
        match self.turns.drain(last..).next() {
            Some(Turn::User(text)) => Some(text),
            _ => None,
        }
    }

    /// Forgets the oldest text of the user, and all that was said until the next. Returned is whether there was any before the last.
    pub fn drop_oldest(&mut self) -> bool {
        let is_user = |turn: &Turn| matches!(turn, Turn::User(_));
        let next = self.turns.iter().skip(1).position(is_user);
        if let Some(next) = next {
            self.turns.drain(..next + 1);
        }
        next.is_some()
    }

    /// The last reply, if the last turn is one.
    pub fn last_reply(&self) -> Option<&Reply> {
        match self.turns.last() {
            Some(Turn::Reply(reply)) => Some(reply),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> Turn {
        Turn::Reply(Reply {
            thoughts: None,
            answer: Passage {
                text: text.to_owned(),
                ids: vec![1, 2],
            },
        })
    }

    #[test]
    fn turns_are_taken_back_and_dropped_in_pairs() {
        let mut conversation = Conversation::new(None);
        assert_eq!(conversation.take_last(), None);
        assert!(!conversation.drop_oldest());
        for (question, answer) in [("a", "A"), ("b", "B")] {
            conversation.turns.push(Turn::User(question.to_owned()));
            conversation.turns.push(reply(answer));
        }
        conversation.turns.push(Turn::User("c".to_owned()));
        assert_eq!(conversation.take_last().as_deref(), Some("c"));
        assert!(conversation.drop_oldest());
        assert_eq!(conversation.turns, [Turn::User("b".to_owned()), reply("B")]);
        // The last question stays.
        assert!(!conversation.drop_oldest());
        assert_eq!(conversation.take_last().as_deref(), Some("b"));
        assert!(conversation.turns.is_empty());
    }

    #[test]
    fn a_conversation_survives_being_written_as_json() {
        let mut conversation = Conversation::new(Some("Be kind.".to_owned()));
        conversation.turns.push(Turn::User("a".to_owned()));
        conversation.turns.push(reply("A"));
        let json = serde_json::to_string(&conversation).expect("its keys are names of fields");
        let read: Conversation = serde_json::from_str(&json).expect("it was just written");
        assert_eq!(read, conversation);
    }
}
