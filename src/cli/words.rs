//! The words of a command line before the parser reads them: flags of other programs become glimt's, texts may begin with a hyphen, and
//! switches may have a value.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Id};

use super::config::{self, is_switch};
use super::error::CliError;
use super::habits::{self, Habit, Means};
use super::output::complain;

/// The flag of the cache's type.
const CACHE_TYPE: &str = "cache-type";

/// The words that the parser is given.
pub(super) struct Words {
    /// All words, the program's name first.
    pub(super) all: Vec<OsString>,
    /// Switches that are off at the end, by `--NAME=false`.
    pub(super) off: Vec<Id>,
}

/// The kind of a word that begins with a hyphen.
enum Word<'a, 't> {
    /// A flag of the command, or several letters of which this is the last; with the value in the same word, if there is one.
    Flag(&'a Arg, Option<&'t str>),
    /// No flag of any program: a list, a rule, a number, a sentence.
    Text,
    Unknown,
}

/// Reads the words behind the command's name, which is the second of `typed`.
///
/// # Errors
/// [`CliError::Setting`] for a flag of another program that glimt has no place for.
pub(super) fn read(definition: &Command, typed: Vec<OsString>) -> Result<Words, CliError> {
    let mut rest = typed.into_iter();
    let mut all: Vec<_> = rest.by_ref().take(2).collect();
    let command = all.get(1).and_then(|name| definition.find_subcommand(name));
    let Some(command) = command else {
        all.extend(rest);
        return Ok(Words { all, off: vec![] });
    };
    let mut reader = Reader {
        command,
        kept: vec![],
        off: vec![],
        texts: vec![],
        ended: false,
    };
    let mut rest = rest.peekable();
    while let Some(word) = rest.next() {
        if word == "--" {
            reader.ended = true;
            reader.texts.extend(rest.by_ref());
            break;
        }
        reader.take(word, &mut rest)?;
    }
    all.extend(reader.kept.into_iter().map(|(_, word)| word));
    if reader.ended || !reader.texts.is_empty() {
        all.push("--".into());
        all.append(&mut reader.texts);
    }
    Ok(Words {
        all,
        off: reader.off,
    })
}

/// The words that were read so far.
struct Reader<'a> {
    command: &'a Command,
    /// The words that stay, each with the switch that it is.
    kept: Vec<(Option<&'a Id>, OsString)>,
    off: Vec<Id>,
    /// Words that are no flags, whatever they look like.
    texts: Vec<OsString>,
    /// Whether the user ended the flags with `--`.
    ended: bool,
}

impl<'a> Reader<'a> {
    fn take(
        &mut self,
        word: OsString,
        rest: &mut std::iter::Peekable<impl Iterator<Item = OsString>>,
    ) -> Result<(), CliError> {
        let text = word.to_str().filter(|text| text.starts_with('-'));
        let Some(text) = text.map(str::to_owned) else {
            self.kept.push((None, word));
            return Ok(());
        };
        // As llama.cpp does, --top_k is --top-k.
        let (text, word) = match hyphened(self.command, &text) {
            Some(hyphened) => (hyphened.clone(), OsString::from(hyphened)),
            None => (text, word),
        };
        if let Some((habit, name, attached)) = habits::find(self.command, &text) {
            let habit_rest = rest.peek().and_then(|next| next.to_str());
            let value = attached.map(str::to_owned);
            let value = value.or_else(|| habit.value(habit_rest).map(str::to_owned));
            if attached.is_none() && value.is_some() {
                rest.next();
            }
            return self.habit(habit, name, value.as_deref());
        }
        match word_of(self.command, &text) {
            Word::Flag(flag, attached) if is_switch(flag) => {
                self.switch(flag, attached, word);
            }
            Word::Flag(flag, None) => {
                let takes = rest.peek().is_some_and(|next| takes(flag, next));
                self.kept.push((None, word));
                if takes && let Some(value) = rest.next() {
                    self.warn_of_flag(flag, &value);
                    self.kept.push((None, value));
                }
            }
            Word::Text if has_text(self.command) => self.texts.push(word),
            _ => self.kept.push((None, word)),
        }
        Ok(())
    }

    /// Keeps a switch, or notes that it is off.
    fn switch(&mut self, flag: &'a Arg, value: Option<&str>, word: OsString) {
        let id = flag.get_id();
        match (value, flag.get_long()) {
            (Some("false"), _) => {
                self.kept.retain(|(of, _)| *of != Some(id));
                self.off.push(id.clone());
            }
            (Some("true"), Some(name)) => {
                self.off.retain(|of| of != id);
                self.kept.push((Some(id), format!("--{name}").into()));
            }
            _ => {
                self.off.retain(|of| of != id);
                self.kept.push((Some(id), word));
            }
        }
    }

    /// Does what a flag of another program means here.
    fn habit(&mut self, habit: &Habit, name: &str, value: Option<&str>) -> Result<(), CliError> {
        match habit.means {
            Means::Flag(flag) => {
                let Some(known) = config::flag(self.command, flag) else {
                    let command = self.command.get_name();
                    let problem =
                        format!("this is --{flag} here, which glimt {command} does not have");
                    return Err(config::wrong(name, problem));
                };
                if flag == CACHE_TYPE && self.has_cache_type(name, value)? {
                    return Ok(());
                }
                self.kept.push((None, format!("--{flag}").into()));
                if let Some(value) = value.filter(|_| !is_switch(known)) {
                    self.kept.push((None, value.into()));
                }
            }
            Means::Always(is_so, otherwise) => {
                if let Some(value) = value
                    && !is_so.is_empty()
                    && !is_so.contains(&value)
                {
                    return Err(config::wrong(format!("{name} {value}"), otherwise));
                }
            }
            Means::Only(command, _) if command == self.command.get_name() => {}
            Means::Only(_, advice) | Means::Instead(advice) => {
                return Err(config::wrong(name, advice));
            }
        }
        Ok(())
    }

    /// Whether the type of the cache was given already: llama.cpp has a flag for keys and one for values.
    ///
    /// # Errors
    /// [`CliError::Setting`] for another type.
    fn has_cache_type(&self, name: &str, value: Option<&str>) -> Result<bool, CliError> {
        let long = format!("--{CACHE_TYPE}");
        let given = self.kept.iter().position(|(_, word)| *word == *long);
        let given = given.and_then(|at| self.kept.get(at + 1)?.1.to_str());
        match (given, value) {
            (Some(given), Some(value)) if given != value => Err(config::wrong(
                format!("{name} {value}"),
                format!(
                    "keys and values have one type here, and --cache-type is {given}; give both the same"
                ),
            )),
            (given, _) => Ok(given.is_some()),
        }
    }

    /// Says that a value may have been meant as a flag.
    fn warn_of_flag(&self, flag: &Arg, value: &OsStr) {
        let (Some(text), Some(name)) = (value.to_str(), flag.get_long()) else {
            return;
        };
        if text.starts_with('-') && matches!(word_of(self.command, text), Word::Flag(..)) {
            complain(format_args!(
                "--{name} has the text {text}, which is also a flag; if you meant that, give --{name} its text first"
            ));
        }
    }
}

/// `error` with advice, where a prompt stands in the command line as no command takes it.
pub(super) fn with_tip(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let is_word = |kind| matches!(error.get(kind), Some(ContextValue::String(word)) if !word.starts_with('-'));
    let command = words.get(1).and_then(|name| name.to_str());
    let tip = match (error.kind(), command) {
        (ErrorKind::UnknownArgument, _) if !is_word(ContextKind::InvalidArg) => return error,
        (ErrorKind::UnknownArgument, Some("generate" | "tokenize" | "logits")) => {
            "a text of several words is put in quotes"
        }
        (ErrorKind::UnknownArgument, Some("chat")) => {
            "-p asks a first question: glimt chat -p \"...\""
        }
        (ErrorKind::InvalidSubcommand, _)
            if error.get(ContextKind::SuggestedSubcommand).is_none() =>
        {
            "glimt generate \"...\" answers a prompt, and glimt -h lists all commands"
        }
        _ => return error,
    };
    let tip = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tip);
    error
}

/// A flag of this program or another one that is written with underscores, with hyphens in their place.
fn hyphened(command: &Command, text: &str) -> Option<String> {
    let name = text.split('=').next()?;
    if !name.starts_with("--") || !name.contains('_') {
        return None;
    }
    let hyphened = name.replace('_', "-");
    let known = config::flag(command, &hyphened[2..]).is_some()
        || habits::find(command, &hyphened).is_some();
    known.then(|| hyphened + &text[name.len()..])
}

/// Whether `word` is a flag whose value is the word behind it.
pub(super) fn takes_next(command: &Command, word: &OsStr) -> bool {
    let flag = word.to_str().map(|text| word_of(command, text));
    matches!(flag, Some(Word::Flag(flag, None)) if !is_switch(flag))
}

/// Whether a command takes a text without a flag.
fn has_text(command: &Command) -> bool {
    command
        .get_positionals()
        .any(|argument| argument.get_id() == "text")
}

/// Whether the value of a flag is the word behind it. Texts may begin with a hyphen.
fn takes(flag: &Arg, next: &OsStr) -> bool {
    let Some(next) = next.to_str() else {
        return true;
    };
    flag.is_allow_hyphen_values_set() || !next.starts_with('-') || next == "-" || {
        flag.is_allow_negative_numbers_set() && next.parse::<f64>().is_ok()
    }
}

/// The kind of `text`, which begins with a hyphen, for a command.
fn word_of<'a, 't>(command: &'a Command, text: &'t str) -> Word<'a, 't> {
    if let Some(long) = text.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        return match config::flag(command, name) {
            Some(flag) => Word::Flag(flag, value),
            None if name.is_empty()
                || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '-') =>
            {
                Word::Text
            }
            None if name.starts_with('-') => Word::Text,
            None => Word::Unknown,
        };
    }
    let letters = text[1..].char_indices();
    let mut found = None;
    for (at, letter) in letters {
        let behind = &text[1 + at + letter.len_utf8()..];
        let flag = command
            .get_arguments()
            .find(|flag| flag.get_short() == Some(letter));
        match flag {
            // A blank behind the letter stands in texts alone.
            Some(flag) if !is_switch(flag) && !behind.starts_with(char::is_whitespace) => {
                let value = behind.strip_prefix('=').unwrap_or(behind);
                return Word::Flag(flag, (!behind.is_empty()).then_some(value));
            }
            Some(flag) if is_switch(flag) => found = Some(flag),
            _ => {
                found = None;
                break;
            }
        }
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_=,.".contains(c);
    match found {
        Some(flag) => Word::Flag(flag, None),
        None if text == "-h" || text == "-V" => Word::Unknown,
        None if !text[1..].starts_with(|c: char| c.is_ascii_alphabetic()) => Word::Text,
        None if text[1..].contains(|c: char| !is_name(c)) => Word::Text,
        None => Word::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(words: &[&str]) -> Result<Vec<String>, String> {
        let typed = ["glimt"].iter().chain(words).map(OsString::from).collect();
        let read = read(&crate::cli::definition(), typed).map_err(|error| error.to_string())?;
        let all = read.all.into_iter().skip(1);
        Ok(all
            .map(|word| word.into_string().expect("it was text"))
            .collect())
    }

    fn is(words: &[&str], expected: &[&str]) {
        assert_eq!(
            read_all(words).as_deref(),
            Ok(&expected.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()[..])
        );
    }

    #[test]
    fn texts_may_begin_with_a_hyphen() {
        for text in [
            "- item one",
            "---\ntitle: x\n---",
            "-1 + 2 = ?",
            "-",
            "-Hello there",
            "--",
            "--- ",
            "-n item",
            "-5",
            "— dash",
            "-é",
        ] {
            is(&["generate", "-p", text], &["generate", "-p", text]);
            is(
                &["chat", "--system", text, "-q"],
                &["chat", "--system", text, "-q"],
            );
        }
        for text in [
            "- item one",
            "---",
            "-1 + 2 = ?",
            "-Hello there",
            "-5",
            "-é",
            "--- x",
            "-> x",
        ] {
            is(&["generate", text, "-q"], &["generate", "-q", "--", text]);
            is(&["tokenize", text], &["tokenize", "--", text]);
        }
        // A word that may be a mistaken flag stays a flag.
        for word in ["-x", "--warmth", "-Q", "--warmth=3", "-xyz"] {
            is(&["generate", word], &["generate", word]);
        }
        is(
            &["generate", "--", "-p", "x"],
            &["generate", "--", "-p", "x"],
        );
        is(
            &["generate", "-n", "-1", "-pa b"],
            &["generate", "-n", "-1", "-pa b"],
        );
        is(&["generate", "-qp", "-x y"], &["generate", "-qp", "-x y"]);
    }

    #[test]
    fn flags_of_other_programs_are_read_only_where_flags_stand() {
        is(
            &["bench", "-ngl", "99", "-pg", "3,4"],
            &["bench", "--gpu-layers", "99", "--pg", "3,4"],
        );
        is(
            &["generate", "-p", "-ngl", "-sys", "- x"],
            &["generate", "-p", "-ngl", "--system", "- x"],
        );
        is(
            &["generate", "-fa", "on", "-ctk", "f16", "Hi"],
            &["generate", "--cache-type", "f16", "Hi"],
        );
        is(
            &["bench", "-ctk", "q8_0", "-ctv", "q8_0"],
            &["bench", "--cache-type", "q8_0"],
        );
        is(&["generate", "-fa", "Hi"], &["generate", "Hi"]);
        is(
            &["generate", "-hf", "a/b:Q4_0"],
            &["generate", "--model", "a/b:Q4_0"],
        );
        is(
            &["generate", "--n-gpu-layers=0"],
            &["generate", "--gpu-layers", "0"],
        );
        is(&["generate", "-no-cnv"], &["generate", "--raw"]);
        for (words, said) in [
            (&["generate", "-ctk", "q8_0", "-ctv", "f16"][..], "-ctv f16"),
            (&["generate", "-fa", "off"], "-fa off"),
            (&["generate", "--mlock"], "--mlock"),
            (&["serve", "-sys", "x"], "--system"),
            (&["generate", "-cnv"], "glimt chat"),
        ] {
            let error = read_all(words).expect_err("it is refused");
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_prompt_where_none_is_taken_gets_advice() {
        for (words, advice) in [
            (&["generate", "Why", "is"][..], "put in quotes"),
            (&["tokenize", "Why", "is"], "put in quotes"),
            (&["chat", "Hi"], "glimt chat -p"),
            (&["Why is the sky blue?"], "glimt generate"),
            (&["generat", "Hi"], "'generate'"),
            (&["generate", "--warmth", "3"], "'--raw'"),
        ] {
            let words: Vec<_> = ["glimt"].iter().chain(words).map(OsString::from).collect();
            let read = crate::cli::definition().try_get_matches_from(&words);
            let error = with_tip(read.expect_err("it is refused"), &words).to_string();
            assert!(error.contains("tip:") && error.contains(advice), "{error}");
        }
    }

    #[test]
    fn underscores_of_flags_are_hyphens() {
        let read = |words: &[&str]| read_all(words).expect("all are known");
        assert_eq!(
            read(&[
                "generate",
                "--top_k",
                "5",
                "--n_predict=3",
                "--max_tokens",
                "4"
            ]),
            [
                "generate",
                "--top-k",
                "5",
                "--n-predict=3",
                "--n-predict",
                "4"
            ]
        );
        // A word that no program has as a flag is a text.
        assert_eq!(
            read(&["generate", "--a_b is a name"]),
            ["generate", "--", "--a_b is a name"]
        );
    }

    #[test]
    fn switches_may_have_a_value() {
        is(
            &["generate", "--raw=true", "x"],
            &["generate", "--raw", "x"],
        );
        is(
            &["generate", "--raw", "x", "--raw=false"],
            &["generate", "x"],
        );
        is(
            &["generate", "-p", "--raw=false", "--raw"],
            &["generate", "-p", "--raw=false", "--raw"],
        );
    }
}
