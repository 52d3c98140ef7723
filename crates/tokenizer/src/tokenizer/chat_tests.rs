//! Protects chat templates: those of the models render every role and switch thinking, and what a template may do has limits.

use minijinja::context;

use super::constructs::{render_with, variables};
use super::*;
use crate::tokenizer::testing::fixture;
use crate::tokenizer::{ToolCall, exact};

// Expected texts below come from Jinja2 with the settings of `transformers`' `apply_chat_template`.

/// Shows the thoughts of a turn only where no question follows it, and has a switch for thinking.
const THOUGHTS: &str = r"{{ bos_token }}
{%- set left = namespace(questions=0) -%}
{%- for turn in messages if turn.role == 'user' -%}
  {%- set left.questions = loop.length -%}
{%- endfor -%}
{% for turn in messages %}
  {%- if turn.role not in ['system', 'user', 'assistant'] %}
    {{- raise_exception('nobody is called ' ~ turn.role) }}
  {%- elif turn.role == 'assistant' %}
    {%- set halves = turn.content.split('</think>', 1) %}
    {{- '<|bot|>' }}
    {%- if halves | length == 2 and not left.questions %}
      {{- halves[0].strip() ~ '</think>' }}
    {%- endif %}
    {{- halves | last | trim }}{{ eos_token }}
  {%- else %}
    {%- set left.questions = left.questions - (1 if turn.role == 'user' else 0) %}
    {{- '<|' ~ turn.role ~ '|>' ~ turn.content }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|bot|>
  {%- if enable_thinking is not defined or enable_thinking %}<think>{% else %}<think></think>{% endif %}
{%- endif %}
";

/// Lists tools, their calls and, in groups, their results; joins the parts of a turn.
const TOOLS: &str = r"{%- macro call(name, arguments) -%}
  <call>{{ name }}{% for key, value in arguments.items() %} {{ key }}={{ value if value is string else value | tojson }}{% endfor %}</call>
{%- endmacro -%}
{%- if tools %}
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>
{% endif %}
{% for turn in messages %}
{% if turn.role == 'tool' %}
{% if loop.previtem.role != 'tool' %}<results>{% endif %}
<result>{{ turn.content }}</result>
{%- if loop.last or loop.nextitem.role != 'tool' %}</results>{% endif %}
{% else %}
<{{ turn.role }}>
{%- if turn.reasoning_content is string %}({{ turn.reasoning_content }}){% endif %}
{%- if turn.content is string %}
{{- turn.content.split('</think>')[-1].strip() -}}
{% else %}
{%- for part in turn.content -%}
{{ part if part is string else part.text | default('[' ~ part.type ~ ']') }}
{%- endfor -%}
{% endif %}
{%- for item in turn.tool_calls %}
{%- set item = item.function or item -%}
{{ call(item.name, item.arguments) }}
{%- endfor %}
{% endif %}

{% endfor %}
{%- if add_generation_prompt and messages[-1].role != 'assistant' %}<assistant>{% endif %}
";

/// Has no switch for thinking.
const PLAIN: &str = "{{ bos_token }}{% for turn in messages %}{{ turn['role'] | title + '> ' + turn['content'] + eos_token + '\n' }}\
     {% endfor %}{% if add_generation_prompt %}{{ 'Assistant>' }}{% endif %}";

/// The template of this name as its publisher ships it, where there are fixtures.
fn published(name: &str) -> Option<String> {
    fixture(&format!("templates/{name}.jinja"))
}

fn parse(source: &str) -> ChatTemplate {
    ChatTemplate::parse("test", source, "<B>", "<E>").unwrap()
}

fn conversation() -> Vec<Message> {
    vec![
        Message::new("system", "Be brief."),
        Message::new("user", "Hi"),
        Message::new("assistant", "<think>\nhm\n</think>\nHello!"),
        Message::new("user", "Why?\n"),
    ]
}

#[test]
fn thoughts_of_earlier_turns_go_and_thinking_is_switched_by_either_name() {
    let turns = "<B><|system|>Be brief.<|user|>Hi<|bot|>Hello!<E><|user|>Why?\n<|bot|>";
    for switch in THINKING_SWITCHES {
        let template = parse(&THOUGHTS.replace("enable_thinking", switch));
        assert_eq!(template.switches, [switch]);
        assert!(template.supports_thinking());
        for (think, end) in [
            (None, "<think>"),
            (Some(true), "<think>"),
            (Some(false), "<think></think>"),
        ] {
            assert_eq!(
                template.render(&conversation(), true, think).unwrap(),
                format!("{turns}{end}"),
                "{switch} {think:?}"
            );
        }
        // The last turn keeps its thoughts, and nothing is to follow it.
        assert_eq!(
            template.render(&conversation()[..3], false, None).unwrap(),
            "<B><|system|>Be brief.<|user|>Hi<|bot|><think>\nhm</think>Hello!<E>"
        );
        let error = template
            .render(&[Message::new("critic", "Boo")], true, None)
            .unwrap_err();
        assert!(
            error.to_string().contains("nobody is called critic"),
            "{error}"
        );
    }
}

#[test]
fn a_template_without_a_switch_refuses_to_switch_thinking() {
    let template = parse(PLAIN);
    assert!(!template.supports_thinking());
    assert_eq!(
        template.render(&conversation()[..2], true, None).unwrap(),
        "<B>System> Be brief.<E>\nUser> Hi<E>\nAssistant>"
    );
    assert_eq!(
        template.render(&conversation()[..2], false, None).unwrap(),
        "<B>System> Be brief.<E>\nUser> Hi<E>\n"
    );
    for think in [true, false] {
        let error = template
            .render(&conversation(), true, Some(think))
            .unwrap_err();
        assert!(
            matches!(error, TokenizerError::NoThinkingSwitch { .. }),
            "{error}"
        );
    }
}

#[test]
fn tools_their_calls_and_their_results() {
    let turns = "<system>Rule.\n<user>One[image]two\n\
         <assistant>(r1)<call>weather place=Köln days=2 exact=true</call><call>clock</call>\n\
         <results><result>3 °C</result>\n<result>noon</result></results>\n<assistant>Cold.\n<user>Sure?\n";
    assert_eq!(
        render_with(TOOLS, &variables()).unwrap(),
        format!(
            "<tools>\n{{\"name\": \"weather\", \"needs\": {{\"place\": \"a <city>, it's \\\"Köln\\\" & so on\", \
             \"days\": null}}}}\n</tools>\n{turns}<assistant>"
        )
    );
    let none = context! { tools => (), add_generation_prompt => false, ..variables() };
    assert_eq!(render_with(TOOLS, &none).unwrap(), turns);
    assert_eq!(
        parse(TOOLS).render(&conversation(), true, None).unwrap(),
        "<system>Be brief.\n<user>Hi\n<assistant>Hello!\n<user>Why?\n<assistant>"
    );
}

#[test]
fn numbers_that_no_value_holds_are_written_digit_by_digit() {
    let large = format!(
        "{{\"n\":[12345678901234567890123,-{},1e400]}}",
        "7".repeat(60)
    );
    let arguments = serde_json::from_str(&exact::with_texts(&large)).expect("it is JSON");
    let call = ToolCall {
        id: "c".to_owned(),
        name: "f".to_owned(),
        arguments,
    };
    let message = Message {
        tool_calls: vec![call],
        ..Message::new("assistant", "")
    };
    let json = "{{ messages[0].tool_calls[0].function.arguments | tojson(separators=(',', ':')) }}";
    let texts = "{% for n in messages[0].tool_calls[0].function.arguments.n %}{{ n if n is not string }},{% endfor %}";
    let as_text = "{{ messages[0].tool_calls[0].function.arguments + '' }}";
    let listed = large.trim_start_matches("{\"n\":[").replace("]}", ",");
    for (source, expected) in [(json, &large), (texts, &listed), (as_text, &large)] {
        let rendered =
            parse(source).render_with(std::slice::from_ref(&message), &Rendering::default());
        assert_eq!(&rendered.expect("it can be rendered"), expected);
    }
}

#[test]
fn glm_renders_every_role_with_thinking_on_off_and_unset() {
    let Some(source) = published("glm-4.7-flash") else {
        return;
    };
    let template = parse(&source);
    assert!(template.supports_thinking());
    let turns = "[gMASK]<sop><|system|>Be brief.<|user|>Hi<|assistant|></think>Hello!<|user|>Why?\n<|assistant|>";
    for (think, end) in [
        (None, "<think>"),
        (Some(true), "<think>"),
        (Some(false), "</think>"),
    ] {
        assert_eq!(
            template.render(&conversation(), true, think).unwrap(),
            format!("{turns}{end}"),
            "{think:?}"
        );
    }
    assert_eq!(
        template.render(&conversation()[..3], false, None).unwrap(),
        "[gMASK]<sop><|system|>Be brief.<|user|>Hi<|assistant|><think>hm</think>Hello!"
    );
    // With tools, what comes after their list.
    let rendered = render_with(&source, &variables()).unwrap();
    let (_, turns) = rendered.split_once("<|system|>Rule.").unwrap();
    assert_eq!(
        turns,
        "<|user|>Onetwo<|assistant|></think><tool_call>weather<arg_key>place</arg_key><arg_value>Köln</arg_value>\
         <arg_key>days</arg_key><arg_value>2</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value></tool_call>\
         <tool_call>clock</tool_call><|observation|><tool_response>3 °C</tool_response>\
         <tool_response>noon</tool_response><|assistant|></think>Cold.<|user|>Sure?<|assistant|><think>"
    );
}

#[test]
fn deepseek_v2_renders_and_has_no_thinking_switch() {
    let Some(source) = published("deepseek-v2-lite-chat") else {
        return;
    };
    let template = parse(&source);
    assert_eq!(
        template.render(&conversation(), true, None).unwrap(),
        "<B>Be brief.\n\nUser: Hi\n\nAssistant: <think>\nhm\n</think>\nHello!<E>User: Why?\n\n\nAssistant:"
    );
    assert!(!template.supports_thinking());
    let error = template
        .render(&conversation(), true, Some(false))
        .unwrap_err();
    assert!(
        matches!(error, TokenizerError::NoThinkingSwitch { .. }),
        "{error}"
    );
}

#[test]
fn deepseek_v3_switches_thinking_by_its_own_name() {
    let Some(source) = published("deepseek-v3.1") else {
        return;
    };
    let template = parse(&source);
    let turns = "<B>Be brief.<｜User｜>Hi<｜Assistant｜><think></think>\nHello!<｜end▁of▁sentence｜><｜User｜>Why?\n<｜Assistant｜>";
    assert_eq!(
        template.render(&conversation(), true, Some(true)).unwrap(),
        format!("{turns}<think>")
    );
    let off = template.render(&conversation(), true, Some(false)).unwrap();
    assert_eq!(off, format!("{turns}<think></think>"));
}

#[test]
fn plain_template_with_loop_controls_blocks_and_json() {
    let template = parse(
        "{% for m in messages %}\n    {% if m.role == 'system' %}\n        {% continue %}\n    {% endif %}\n    \
         {{ m | tojson }}\n{% endfor %}\n{{ messages[0] | tojson(indent=2) }}|\
         {{ [1, 2.5, none, true, 'é\"<'] | tojson(ensure_ascii=True) }}{{ [] | tojson(indent=2) }}\n",
    );
    assert_eq!(
        template.render(&conversation()[..2], false, None).unwrap(),
        "    {\"role\": \"user\", \"content\": \"Hi\"}\n{\n  \"role\": \"system\",\n  \"content\": \"Be brief.\"\n}|\
         [1, 2.5, null, true, \"\\u00e9\\\"<\"][]"
    );
}

#[test]
fn messages_are_data_and_not_template() {
    let template = parse("{% for m in messages %}{{ m.content }}{% endfor %}");
    let message = Message::new("user", "{{ 1 + 1 }} <b>&'\" \\u0041 {% endfor %}");
    assert_eq!(
        template
            .render(std::slice::from_ref(&message), true, None)
            .unwrap(),
        message.content
    );
}

#[test]
fn errors_name_the_template_and_the_line() {
    let error =
        ChatTemplate::parse("tokenizer.chat_template", "a\nb\n{% for %}", "", "").unwrap_err();
    assert!(
        matches!(&error, TokenizerError::TemplateSyntax { line: 3, .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .starts_with("tokenizer.chat_template cannot be parsed, line 3: "),
        "{error}"
    );

    let refusing = parse(
        "\n{% if messages[0].role != 'user' %}\n{{ raise_exception('user first, please') }}{% endif %}",
    );
    match refusing.render(&conversation(), true, None).unwrap_err() {
        TokenizerError::TemplateRender { line, detail, .. } => {
            assert_eq!((line, detail.as_str()), (3, "user first, please"));
        }
        other => panic!("{other}"),
    }
    let failing = parse("\n{{ messages.nothing.more }}")
        .render(&[], true, None)
        .unwrap_err();
    assert!(
        matches!(failing, TokenizerError::TemplateRender { line: 2, .. }),
        "{failing}"
    );
    let wide = parse("{{ [1] | tojson(indent=9223372036854775807) }}").render(&[], true, None);
    match wide.unwrap_err() {
        TokenizerError::TemplateRender { detail, .. } => assert_eq!(
            detail,
            "tojson has an indent of 9223372036854775807; at most 64 was expected"
        ),
        other => panic!("{other}"),
    }
}

#[test]
fn the_date_is_available() {
    let text = parse("{{ strftime_now('%Y-%m-%d') }}")
        .render(&[], true, None)
        .unwrap();
    assert_eq!(text.len(), "2000-01-01".len(), "{text}");
    let error = parse("{{ strftime_now('%E') }}")
        .render(&[], true, None)
        .unwrap_err();
    assert!(error.to_string().contains("%E"), "{error}");
}

#[test]
fn a_template_without_end_is_stopped_and_named() {
    // The longest range that there is, three times nested: 10^15 turns.
    let inner = "{% for i in range(100000) %}".repeat(3);
    let source = format!("\n{inner}{}", "{% endfor %}".repeat(3));
    let error = parse(&source)
        .render(&conversation(), true, None)
        .unwrap_err();
    assert!(
        matches!(&error, TokenizerError::TemplateStopped { key, line: 2, .. } if key == "test"),
        "{error}"
    );
    assert!(error.to_string().contains("--raw"), "{error}");
    // A macro that calls itself ends by its depth.
    let error = parse("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")
        .render(&conversation(), true, None)
        .unwrap_err();
    assert!(
        matches!(error, TokenizerError::TemplateRender { .. }),
        "{error}"
    );
}

#[test]
fn templates_need_a_hundredth_of_what_they_may_take() {
    let turns: Vec<_> = (0..200)
        .map(|i| Message::new(["user", "assistant"][i % 2], "What is it?".repeat(20)))
        .collect();
    let published = ["glm-4.7-flash", "deepseek-v2-lite-chat", "deepseek-v3.1"].map(published);
    let own = [THOUGHTS, TOOLS, PLAIN].map(str::to_owned);
    for source in own.into_iter().chain(published.into_iter().flatten()) {
        let mut template = parse(&source);
        let full = template.render(&turns, true, None).unwrap();
        template.program.take_less(100);
        assert_eq!(template.render(&turns, true, None).unwrap(), full);
    }
}
