use super::*;

/// Expected texts below come from Jinja2 with the settings of `transformers`' `apply_chat_template`.
const GLM: &str = include_str!("../../tests/data/glm-4.7-flash.jinja");
const DEEPSEEK_V2: &str = include_str!("../../tests/data/deepseek-v2-lite-chat.jinja");
const DEEPSEEK_V3: &str = include_str!("../../tests/data/deepseek-v3.1.jinja");

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
fn glm_renders_every_role_with_thinking_on_off_and_unset() {
    let template = parse(GLM);
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
}

#[test]
fn deepseek_v2_renders_and_has_no_thinking_switch() {
    let template = parse(DEEPSEEK_V2);
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
    let template = parse(DEEPSEEK_V3);
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
}

#[test]
fn the_date_is_available() {
    let text = parse("{{ strftime_now('%Y-%m-%d') }}")
        .render(&[], true, None)
        .unwrap();
    assert_eq!(text.len(), "2000-01-01".len(), "{text}");
    let error = parse("{{ strftime_now('%Q') }}")
        .render(&[], true, None)
        .unwrap_err();
    assert!(error.to_string().contains("%Q"), "{error}");
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
        matches!(&error, TokenizerError::TemplateEndless { key, line: 2, .. } if key == "test"),
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
fn real_templates_need_a_hundredth_of_the_fuel() {
    let turns: Vec<_> = (0..200)
        .map(|i| Message::new(["user", "assistant"][i % 2], "What is it?".repeat(20)))
        .collect();
    for source in [GLM, DEEPSEEK_V2, DEEPSEEK_V3] {
        let mut template = parse(source);
        let full = template.render(&turns, true, None).unwrap();
        template.environment.set_fuel(Some(FUEL / 100));
        assert_eq!(template.render(&turns, true, None).unwrap(), full);
    }
}
