//! The marks of calls in each form, and other spellings of them that models write.

use super::Format;

pub(super) const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALLS_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const TAG_BEGIN: &str = "<tool_call>";
pub(super) const TAG_END: &str = "</tool_call>";
pub(super) const KEY_BEGIN: &str = "<arg_key>";
pub(super) const KEY_END: &str = "</arg_key>";
pub(super) const VALUE_BEGIN: &str = "<arg_value>";
pub(super) const VALUE_END: &str = "</arg_value>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";
pub(super) const KIMI_CALLS_BEGIN: &str = "<|tool_calls_section_begin|>";
pub(super) const KIMI_CALLS_END: &str = "<|tool_calls_section_end|>";
pub(super) const KIMI_CALL_BEGIN: &str = "<|tool_call_begin|>";
pub(super) const KIMI_CALL_END: &str = "<|tool_call_end|>";
pub(super) const KIMI_SEPARATOR: &str = "<|tool_call_argument_begin|>";
pub(super) const GIGACHAT_BEGIN: &str = "<|message_sep|>\n\nfunction call<|role_sep|>";
const GIGACHAT_ROLE: &str = "function call<|role_sep|>";
const GIGACHAT_END: &str = "<|message_sep|>";
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
/// The beginning of a call of Llama 3, up to the name.
const NAMED: &str = "{\"name\": \"";

/// All marks of calls, some of which may be special tokens of a vocabulary.
pub(in crate::server) const MARKS: [&str; 19] = [
    CALLS_BEGIN,
    CALLS_END,
    CALL_BEGIN,
    CALL_END,
    SEPARATOR,
    TAG_BEGIN,
    TAG_END,
    KEY_BEGIN,
    KEY_END,
    VALUE_BEGIN,
    VALUE_END,
    KIMI_CALLS_BEGIN,
    KIMI_CALLS_END,
    KIMI_CALL_BEGIN,
    KIMI_CALL_END,
    KIMI_SEPARATOR,
    GIGACHAT_END,
    "<|role_sep|>",
    PYTHON_TAG,
];

/// The marks behind which a name and JSON stand. Models also write those of DeepSeek with other bars and underscores, as llama.cpp knows.
pub(super) const BEGINS: [&str; 10] = [
    CALLS_BEGIN,
    CALL_BEGIN,
    KIMI_CALLS_BEGIN,
    KIMI_CALL_BEGIN,
    "<｜tool_calls_begin｜>",
    "<｜tool_call_begin｜>",
    "<｜tool calls begin｜>",
    "<｜tool▁calls｜>",
    "<|tool_calls_begin|>",
    "<|tool▁calls▁begin|>",
];

/// The marks behind such calls.
pub(super) const ENDS: [&str; 9] = [
    CALL_END,
    CALLS_END,
    KIMI_CALL_END,
    KIMI_CALLS_END,
    "<｜tool_call_end｜>",
    "<｜tool_calls_end｜>",
    "<|tool_calls_end|>",
    "<|tool▁call▁end|>",
    "<|tool▁calls▁end|>",
];

/// The marks between the name and the JSON of such calls.
pub(super) const SEPARATORS: [&str; 5] = [
    SEPARATOR,
    KIMI_SEPARATOR,
    "<｜tool_sep｜>",
    "<|tool_sep|>",
    "<|tool▁sep|>",
];

impl Format {
    /// The format of a model's calls, by the text of its chat template, which writes earlier calls.
    pub(in crate::server) fn of_template(source: &str) -> Option<Self> {
        if source.contains(KEY_BEGIN) {
            Some(Self::Tagged)
        } else if source.contains(CALL_BEGIN) {
            Some(match source.contains("```json") {
                true => Self::DeepSeekFenced,
                false => Self::DeepSeek,
            })
        } else if source.contains(KIMI_CALL_BEGIN) {
            Some(Self::Kimi)
        } else if [FUNCTION, PARAMETER]
            .iter()
            .all(|text| source.contains(text))
        {
            Some(Self::Xml)
        } else if source.contains(TAG_BEGIN) {
            Some(Self::Json)
        } else if ["function call", GIGACHAT_END, "<|role_sep|>"]
            .iter()
            .all(|text| source.contains(text))
        {
            Some(Self::GigaChat)
        } else if ["<|start_header_id|>", NAMED, "\"parameters\": "]
            .iter()
            .all(|text| source.contains(text))
            && !source.contains(FUNCTION)
        {
            Some(Self::Llama)
        } else {
            None
        }
    }

    /// The marks with which an answer begins that is a call.
    pub(in crate::server) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Tagged | Self::Json => &[TAG_BEGIN],
            Self::Xml => &[TAG_BEGIN, FUNCTION],
            Self::DeepSeek | Self::DeepSeekFenced => &[CALLS_BEGIN, CALL_BEGIN],
            Self::Kimi => &[KIMI_CALLS_BEGIN, KIMI_CALL_BEGIN],
            Self::GigaChat => &[GIGACHAT_END],
            Self::Llama => &[NAMED, PYTHON_TAG],
        }
    }

    /// The text before the name of the first call.
    pub(in crate::server) fn opening(self) -> String {
        match self {
            Self::Tagged | Self::Json => TAG_BEGIN.to_owned(),
            Self::Xml => format!("{TAG_BEGIN}\n{FUNCTION}"),
            Self::DeepSeek => format!("{CALLS_BEGIN}{CALL_BEGIN}"),
            Self::DeepSeekFenced => format!("{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}"),
            Self::Kimi => format!("{KIMI_CALLS_BEGIN}{KIMI_CALL_BEGIN}functions."),
            Self::GigaChat => GIGACHAT_BEGIN.to_owned(),
            Self::Llama => String::new(),
        }
    }

    /// The marks that begin calls.
    pub(super) const fn begins(self) -> &'static [&'static str] {
        match self {
            Self::Tagged | Self::Json => &[TAG_BEGIN],
            Self::Xml => &[TAG_BEGIN, FUNCTION],
            Self::DeepSeek | Self::DeepSeekFenced | Self::Kimi => &BEGINS,
            Self::GigaChat => &[GIGACHAT_BEGIN, GIGACHAT_ROLE],
            Self::Llama => &[PYTHON_TAG],
        }
    }

    /// The marks that end calls or parts of them, and may be doubled behind one.
    pub(super) const fn ends(self) -> &'static [&'static str] {
        match self {
            Self::Tagged | Self::Json => &[TAG_END, VALUE_END, KEY_END],
            Self::Xml => &[TAG_END, FUNCTION_END, PARAMETER_END],
            Self::DeepSeek | Self::DeepSeekFenced | Self::Kimi => &ENDS,
            Self::GigaChat => &[GIGACHAT_END],
            Self::Llama => &[],
        }
    }

    /// Whether the template refuses messages with several calls, as those of Llama 3 do.
    pub(in crate::server) fn is_single(self, source: &str) -> bool {
        self == Self::Llama && source.contains("single tool-calls at once")
    }
}
