//! Pre-tokenizers: how a text is cut into words before byte pairs are merged inside each word.
//!
//! The expressions are those of llama.cpp (`llama-vocab.cpp`, `llm_tokenizer_bpe`), which come from the models'
//! `tokenizer.json`. Three things differ in form, not in result:
//! - llama.cpp compiles for `std::regex`, which knows no Unicode classes: it replaces every white-space character
//!   beyond ASCII by a vertical tab first. So `\s` matches it and a range that spans it does not: hence `&&\S` below.
//! - It knows no upper and lower case either: `\p{Lu}`, `\p{Ll}` and the others all mean `\p{L}` there. The original
//!   `youtu` expression cuts `HelloWorld` in two, llama.cpp's does not; glimt agrees with llama.cpp.
//! - The alternatives `\s+(?!\S)|\s+` are matched as `\s+` and then cut ([`GiveBack`]): without the lookahead an
//!   expression needs no backtracking, so it runs in linear time and cannot fail on a long text.
//!
//! Character classes are of Unicode 16; llama.cpp's tables are of 15.1, so characters new in 16 may be cut differently.

use tokenizers::utils::SysRegex;

use super::TokenizerError;

/// The handling of the alternatives `\s+(?!\S)|\s+` of an expression: white space before a word leaves its last character to that word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GiveBack {
    /// The expression has no such alternatives.
    Never,
    /// A match of white space gives only its last character back, whatever the match is.
    Any,
    /// A match gives its last character back, as with `Any`, unless it ends in a line break. Then the earlier alternative `\s*[\r\n]+` has
    /// found it.
    UnlessLineEnd,
}

/// One expression: its matches, and the gaps between them, become pieces.
type Stage = (&'static str, GiveBack);

/// A rule that a value of `tokenizer.ggml.pre` may imply beside how words are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// A word that is a token as a whole is that token, whatever the merges would make of it.
    IgnoreMerges,
    /// BOS is added where the file has no `tokenizer.ggml.add_bos_token`.
    AddBos,
    /// `<|user|>` and `<|observation|>` end an answer even where the file does not say so.
    StopsOnRoles,
}

const LLAMA3: &[Stage] = &[(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    GiveBack::UnlessLineEnd,
)];

const QWEN2: &[Stage] = &[(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    GiveBack::UnlessLineEnd,
)];

const GPT2_WORDS: Stage = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",
    GiveBack::Any,
);

const GPT2: &[Stage] = &[GPT2_WORDS];

const SMOLLM: &[Stage] = &[(r"\p{N}", GiveBack::Never), GPT2_WORDS];

const DEFAULT: &[Stage] = &[
    (r"[\p{P}$+<=>^~|]+", GiveBack::Never),
    GPT2_WORDS,
    (r"\p{N}+", GiveBack::Never),
    (r"[0-9][0-9][0-9]", GiveBack::Never),
];

const DEEPSEEK_LLM: &[Stage] = &[
    (r"[\r\n]", GiveBack::Never),
    (
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
        GiveBack::Never,
    ),
    (r"\s?[!-/:-~！-／：-～‘-‟　-。&&\S]+", GiveBack::Never),
    (r"\s+$", GiveBack::Never),
    (r"[一-龥ࠀ-一가-퟿&&\S]+", GiveBack::Never),
    (r"\p{N}+", GiveBack::Never),
];

const DEEPSEEK_CODER: &[Stage] = &[
    (r"[\r\n]", GiveBack::Never),
    (r"\s?\p{L}+", GiveBack::Never),
    (r"\s?\p{P}+", GiveBack::Never),
    (r"[一-龥ࠀ-一가-퟿&&\S]+", GiveBack::Never),
    (r"\p{N}", GiveBack::Never),
];

const DEEPSEEK_V3: &[Stage] = &[
    (r"\p{N}{1,3}", GiveBack::Never),
    (r"[一-龥぀-ゟ゠-ヿ]+", GiveBack::Never),
    (
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##,
        GiveBack::UnlessLineEnd,
    ),
];

const YOUTU: &[Stage] = &[
    (
        r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        GiveBack::Never,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
        GiveBack::UnlessLineEnd,
    ),
];

const GPT4O: &[Stage] = &[(
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    GiveBack::UnlessLineEnd,
)];

const TEKKEN: &[Stage] = &[(
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    GiveBack::UnlessLineEnd,
)];

/// The rules of `unicode_regex_split_custom_kimi_k2` (llama.cpp, `unicode.cpp`), with its ranges of Chinese characters.
const KIMI_K2: &[Stage] = &[(
    r"[一-鿿㐀-䶿\u{20000}-\u{2A6DF}\u{2A700}-\u{2EBEF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^一-鿿㐀-䶿\u{20000}-\u{2A6DF}\u{2A700}-\u{2EBEF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    GiveBack::UnlessLineEnd,
)];

/// Values of `tokenizer.ggml.pre` that mean the same, the usual one first, and then what they mean: stages and extras. Each stage is
/// applied to the pieces of the one before.
type Recipe = (&'static [&'static str], &'static [Stage], &'static [Extra]);

const RECIPES: &[Recipe] = &[
    (
        &["glm4"],
        LLAMA3,
        &[Extra::IgnoreMerges, Extra::StopsOnRoles],
    ),
    (&["chatglm-bpe"], LLAMA3, &[Extra::StopsOnRoles]),
    (&["deepseek-llm"], DEEPSEEK_LLM, &[]),
    (&["deepseek-coder"], DEEPSEEK_CODER, &[]),
    // Converters that run on transformers 5 take DeepSeek-V3's own tokenizer for JoyAI's.
    (&["deepseek-v3", "joyai-llm"], DEEPSEEK_V3, &[]),
    (&["kimi-k2"], KIMI_K2, &[]),
    (&["kanana2"], GPT4O, &[]),
    (&["youtu"], YOUTU, &[Extra::IgnoreMerges]),
    (
        &["llama-bpe", "llama3", "llama-v3"],
        LLAMA3,
        &[Extra::IgnoreMerges, Extra::AddBos],
    ),
    (&["qwen2", "deepseek-r1-qwen"], QWEN2, &[]),
    (&["gpt-2", "gigachat"], GPT2, &[]),
    (&["smollm"], SMOLLM, &[]),
    (&["tekken"], TEKKEN, &[Extra::IgnoreMerges, Extra::AddBos]),
    (&["default"], DEFAULT, &[]),
];

/// Every value of `tokenizer.ggml.pre` that is known.
pub(super) fn known_names() -> Vec<&'static str> {
    RECIPES
        .iter()
        .flat_map(|(names, ..)| names.iter().copied())
        .collect()
}

/// Cuts text into the words inside which byte pairs are merged.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    stages: Vec<(SysRegex, GiveBack)>,
    extras: &'static [Extra],
}

impl PreTokenizer {
    /// The pre-tokenizer that `tokenizer.ggml.pre` = `name` means.
    pub(super) fn named(name: &str) -> Result<Self, TokenizerError> {
        let recipe = RECIPES.iter().find(|(names, ..)| names.contains(&name));
        let (_, stages, extras) = recipe.ok_or_else(|| {
            let known = known_names().join(", ");
            TokenizerError::Vocabulary(format!(
                "tokenizer.ggml.pre is {name:?}, an unknown pre-tokenizer; known are {known}"
            ))
        })?;
        let stages = stages.iter().map(|&(expression, give_back)| {
            let regex = SysRegex::new(expression)
                .expect("the expressions are constants, all compiled in a test");
            (regex, give_back)
        });
        Ok(PreTokenizer {
            stages: stages.collect(),
            extras,
        })
    }

    /// Whether its recipe has this extra.
    pub(super) fn has(&self, extra: Extra) -> bool {
        self.extras.contains(&extra)
    }

    /// The words of `text`, in order; joined together they are `text`. Each is found when it is asked for.
    pub(super) fn split<'t>(&self, text: &'t str) -> Words<'_, 't> {
        Words {
            stages: &self.stages,
            left: vec![(0, text)],
        }
    }
}

/// The words of a text.
pub(super) struct Words<'p, 't> {
    stages: &'p [(SysRegex, GiveBack)],
    /// Texts that are still to be cut, the next one last, each with the stage that cuts it.
    left: Vec<(usize, &'t str)>,
}

impl<'t> Iterator for Words<'_, 't> {
    type Item = &'t str;

    /// The matches of a stage, and the gaps between them, go to the next stage.
    fn next(&mut self) -> Option<&'t str> {
        loop {
            let (stage, piece) = self.left.pop()?;
            if piece.is_empty() {
                continue;
            }
            let Some((regex, give_back)) = self.stages.get(stage) else {
                return Some(piece);
            };
            let Some((start, end)) = regex.find_iter(piece).next() else {
                self.left.push((stage + 1, piece));
                continue;
            };
            let end = shortened(*give_back, piece, start, end);
            self.left.extend([
                (stage, &piece[end..]),
                (stage + 1, &piece[start..end]),
                (stage + 1, &piece[..start]),
            ]);
        }
    }
}

/// The end of the match `start..end` of `piece` after what it gives back.
fn shortened(give_back: GiveBack, piece: &str, start: usize, end: usize) -> usize {
    let matched = &piece[start..end];
    let Some(last) = matched.chars().next_back() else {
        return end;
    };
    let kept = end - last.len_utf8();
    let applies = match give_back {
        GiveBack::Never => false,
        GiveBack::Any => true,
        GiveBack::UnlessLineEnd => !matches!(last, '\r' | '\n'),
    };
    // White space up to the end of the piece has no word behind it; a single character cannot be split.
    if applies && end < piece.len() && kept > start && matched.chars().all(char::is_whitespace) {
        kept
    } else {
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str, text: &str) -> Vec<String> {
        PreTokenizer::named(name)
            .unwrap()
            .split(text)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn every_name_compiles_and_keeps_every_byte() {
        let text = "A  b\r\n\r\n c1234567\u{3000}日本語、ㄅ한국어 \u{a0}\u{a0}x'LL don't!?\n/ ½²\u{301}e\u{301} \t ";
        for name in known_names() {
            let words = split(name, text);
            assert_eq!(words.concat(), text, "{name}");
            assert!(words.iter().all(|word| !word.is_empty()), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let message = PreTokenizer::named("viking").unwrap_err().to_string();
        assert!(
            message.contains("viking") && message.contains("deepseek-v3"),
            "{message}"
        );
    }

    #[test]
    fn white_space_leaves_its_last_character_to_the_word_behind_it() {
        assert_eq!(split("glm4", "a   b"), ["a", "  ", " b"]);
        assert_eq!(split("glm4", "a  \n  b"), ["a", "  \n", " ", " b"]);
        assert_eq!(split("glm4", "a \n\n"), ["a", " \n\n"]);
        assert_eq!(split("glm4", "   "), ["   "]);
        assert_eq!(split("glm4", "  1"), [" ", " ", "1"]);
        assert_eq!(split("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(split("gpt-2", "a\n\n"), ["a", "\n\n"]);
        assert_eq!(split("gpt-2", "a\n b"), ["a", "\n", " b"]);
    }

    #[test]
    fn digits_are_grouped_as_each_model_groups_them() {
        assert_eq!(split("glm4", "1234567"), ["123", "456", "7"]);
        assert_eq!(split("deepseek-v3", "1234567"), ["123", "456", "7"]);
        assert_eq!(split("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(split("youtu", "123"), ["1", "2", "3"]);
        assert_eq!(split("deepseek-coder", "123"), ["1", "2", "3"]);
        assert_eq!(split("deepseek-llm", "1234567"), ["1234567"]);
        assert_eq!(split("gpt-2", " 1234567"), [" 1234567"]);
        assert_eq!(split("smollm", "a 123"), ["a", " ", "1", "2", "3"]);
        assert_eq!(split("tekken", "123"), ["1", "2", "3"]);
        // Groups of three do not take a fourth digit, and other digits than ASCII's stay together.
        assert_eq!(split("default", "a 12345"), ["a", " ", "123", "45"]);
        assert_eq!(split("default", "١٢٣٤"), ["١٢٣٤"]);
    }

    #[test]
    fn words_of_kanana2_begin_with_capitals() {
        // llama.cpp computed them. Of letters beyond ASCII it does not know the case: they end a word as well as they begin one.
        for (text, words) in [
            ("HelloWorld", &["Hello", "World"][..]),
            ("HTTPServer's x", &["HTTPServer's", " x"]),
            ("camelCASE", &["camel", "CASE"]),
            ("aÉb ÀB'LL", &["aÉb", " À", "B'LL"]),
            ("12345a/b", &["123", "45", "a", "/b"]),
            ("x //\n/ y", &["x", " //\n/", " y"]),
            ("e\u{301}a", &["e", "\u{301}a"]),
            ("한국어 KIM입니다", &["한국어", " KIM입니다"]),
            ("a   b\n\n  c", &["a", "  ", " b", "\n\n", " ", " c"]),
        ] {
            assert_eq!(split("kanana2", text), words, "{text:?}");
        }
    }

    #[test]
    fn words_of_kimi_k2_part_from_chinese_characters() {
        // llama.cpp computed them.
        for (text, words) in [
            ("Hello世界again", &["Hello", "世界", "again"][..]),
            ("(世界)x's", &["(", "世界", ")x's"]),
            ("HelloWorld", &["HelloWorld"]),
            ("日本のゲーム", &["日本", "のゲーム"]),
            ("1234〇5", &["123", "4〇5"]),
            ("a!?\n\nb", &["a", "!?\n\n", "b"]),
            ("e\u{301}a", &["e", "\u{301}a"]),
            (" 世 x  y", &[" ", "世", " x", " ", " y"]),
            ("don'T ll'LL", &["don'T", " ll'LL"]),
        ] {
            assert_eq!(split("kimi-k2", text), words, "{text:?}");
        }
    }

    #[test]
    fn names_of_converters_that_mean_the_same() {
        let text = "It's 12345 a_b\u{3000}世界  x\n\n!";
        assert_eq!(split("joyai-llm", text), split("deepseek-v3", text));
        assert_eq!(split("gigachat", text), split("gpt-2", text));
    }

    #[test]
    fn wide_white_space_is_no_punctuation() {
        // U+3000 lies in ranges that the expressions name, yet counts as white space only.
        assert_eq!(split("deepseek-llm", "！\u{3000}！"), ["！", "\u{3000}！"]);
        assert_eq!(
            split("deepseek-coder", "日\u{3000}本"),
            ["日", "\u{3000}", "本"]
        );
    }
}
