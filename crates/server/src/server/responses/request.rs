//! A request for a response as a request for a chat.

use std::cell::Cell;

use serde_json::{Map, Value, json};

use super::items::{INPUT, Shape, spaced, unsealed};
use crate::effort;
use crate::server::app::number;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::kept::Kept;
use crate::server::messages::content;
use crate::server::tools::GRAMMAR;
use crate::server::translated::{Messages, call, demand, refuse, shared, tool};
use crate::server::tree;

/// Fields that the API has in its own way.
const OWN: [&str; 16] = [
    "input",
    "instructions",
    "previous_response_id",
    "conversation",
    "store",
    "background",
    "prompt",
    "include",
    "tools",
    "tool_choice",
    "max_output_tokens",
    "reasoning",
    "text",
    "top_logprobs",
    "truncation",
    "metadata",
];

/// Fields that mean nothing here. docs/serving.md tells why.
const SILENT: [&str; 9] = [
    "max_tool_calls",
    "stream_options",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
    "context_management",
    "client_metadata",
];

/// The most bytes of memory of all items that a request refers to.
const MOST_REFERRED: usize = 24 << 20;

/// Fields that cannot be met.
const REFUSED: [(&str, &str); 3] = [
    (
        "conversation",
        "is not supported; go on from an earlier response with previous_response_id",
    ),
    (
        "background",
        "must be false: a response is generated while its client waits",
    ),
    (
        "prompt",
        "is not supported: this server keeps no templates of prompts; give input and instructions",
    ),
];

/// The names of a chat's fields in this API.
pub(super) const NAMES: [(&str, &str); 6] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    (".function.name", ".name"),
    (".function.parameters", ".parameters"),
];

/// The extras that a response may be asked to include. All but the last two are of tools and pictures, which there are none of.
const INCLUDED: [&str; 8] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
];

/// Tools that the vendor's servers run themselves. Agents name them in every request, so the model is just not told of them.
const HOSTED: [&str; 9] = [
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "image_generation",
    "code_interpreter",
    "mcp",
    "tool_search",
];

/// A request.
pub(super) struct Request {
    /// The request for a chat.
    pub(super) chat: Value,
    pub(super) shape: Shape,
    /// The items of the request, each with an id.
    pub(super) input: Vec<Value>,
    /// The tools that the model is told of, as the request has them.
    tools: Vec<Value>,
    pub(super) previous: Option<String>,
    /// Whether the response may be kept.
    pub(super) store: bool,
}

impl Request {
    /// Reads it. What it goes on from is looked up in `kept`.
    ///
    /// # Errors
    /// The fault, by its field.
    pub(super) fn read(fields: &Fields<'_>, kept: &Kept) -> Result<Self, ApiError> {
        refuse(fields, &REFUSED)?;
        fields.object("metadata")?.map(|metadata| metadata.all());
        fields.skip(&SILENT);
        fields.one_of("truncation", &["auto", "disabled"])?;
        let mut chat = shared(fields, &[&OWN[..], &SILENT].concat())?;
        let mut shape = Shape::default();
        let tools = read_tools(fields, &mut chat, &mut shape)?;
        let previous = fields.text("previous_response_id")?;
        let input = input(fields, kept)?;
        let messages = messages(fields, previous, &input, kept)?;
        chat.insert("messages".to_owned(), messages);
        put_limits(fields, &mut chat, &mut shape)?;
        Ok(Self {
            chat: chat.into(),
            shape,
            input,
            tools,
            previous: previous.map(str::to_owned),
            store: fields.flag("store")?.unwrap_or(true),
        })
    }
}

/// The fields that a response repeats, with what they are where they are left out.
pub(super) fn repeated(fields: &Fields<'_>, request: &Request) -> Value {
    let given = |name: &str| fields.get(name).cloned();
    let inner = |outer: &str, name: &str| fields.get(outer).and_then(|outer| outer.get(name));
    let format = inner("text", "format").cloned();
    let mut repeated = json!({
        "store": request.store,
        "tools": request.tools,
        "tool_choice": given("tool_choice").unwrap_or_else(|| "auto".into()),
        "parallel_tool_calls": given("parallel_tool_calls").unwrap_or(true.into()),
        "reasoning": {"effort": inner("reasoning", "effort"), "summary": null},
        "text": {"format": format.unwrap_or_else(|| json!({"type": "text"})), "verbosity": inner("text", "verbosity")},
        "truncation": "disabled",
        "metadata": given("metadata").unwrap_or_else(|| json!({})),
    });
    let others = [
        "instructions",
        "previous_response_id",
        "max_output_tokens",
        "max_tool_calls",
        "temperature",
        "top_p",
        "top_logprobs",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
    ];
    for name in others {
        repeated[name] = given(name).unwrap_or_default();
    }
    repeated
}

/// Reads the limits of the answer, its thoughts and its form.
fn put_limits(
    fields: &Fields<'_>,
    chat: &mut Map<String, Value>,
    shape: &mut Shape,
) -> Result<(), ApiError> {
    let mut put = |name: &str, value: &Value| chat.insert(name.to_owned(), value.clone());
    if let Some(most) = fields.get("max_output_tokens") {
        put("max_tokens", most);
    }
    if let Some(reasoning) = fields.object("reasoning")?
        && let Some(effort) = reasoning.get("effort")
    {
        put("reasoning_effort", effort);
    }
    if let Some(text) = fields.object("text")?
        && let Some(format) = text.object("format")?
    {
        let form = match format.one_of("type", &["text", "json_object", "json_schema"])? {
            Some("json_schema") => {
                let schema = format.needed_object("schema")?.all();
                json!({"type": "json_schema", "json_schema": {"name": format.text("name")?, "schema": schema}})
            }
            kind => json!({ "type": kind.unwrap_or("text") }),
        };
        put("response_format", &form);
    }
    let include = fields.list("include")?.unwrap_or_default();
    let is_known = |item: &&Value| item.as_str().is_some_and(|name| INCLUDED.contains(&name));
    if let Some(other) = include.iter().find(|item| !is_known(item)) {
        let message = format!("names {other}, but must name only {}", INCLUDED.join(", "));
        return Err(fields.wrong("include", &message));
    }
    let includes = |name: &str| include.iter().any(|item| item == name);
    shape.sealed = includes("reasoning.encrypted_content");
    let most = fields.count("top_logprobs", 0..=20)?.unwrap_or(0);
    shape.log_probs = most > 0 || includes("message.output_text.logprobs");
    if shape.log_probs {
        put("logprobs", &true.into());
        put("top_logprobs", &most.into());
    }
    Ok(())
}

/// Reads the tools and which of them may be called. Returned are those that the model is told of.
fn read_tools(
    fields: &Fields<'_>,
    chat: &mut Map<String, Value>,
    shape: &mut Shape,
) -> Result<Vec<Value>, ApiError> {
    let (mut described, mut kept) = (vec![], vec![]);
    for given in fields.objects("tools")?.unwrap_or_default() {
        let kind = given.needed_text("type")?;
        match kind {
            "function" => {
                let name = given.needed_text("name")?;
                described.push(function(name, &given));
            }
            "custom" => described.push(custom(&given, shape)?),
            "namespace" => described.extend(of_namespace(&given, shape)?),
            hosted if HOSTED.contains(&hosted) => {}
            other => {
                let message = format!("is '{other}', but must be function, custom or namespace");
                return Err(given.wrong("type", &message));
            }
        }
        if !HOSTED.contains(&kind) {
            kept.push(given.all().clone().into());
        }
    }
    if let Some(choice) = choice(fields, &mut described)? {
        chat.insert("tool_choice".to_owned(), choice);
    }
    if !described.is_empty() {
        chat.insert("tools".to_owned(), described.into());
    }
    Ok(kept)
}

/// A function by the name that the model calls.
fn function(name: &str, given: &Fields<'_>) -> Value {
    let [about, parameters] = ["description", "parameters"].map(|name| given.get(name));
    tool(name, about, parameters)
}

/// The functions of a namespace.
fn of_namespace(given: &Fields<'_>, shape: &mut Shape) -> Result<Vec<Value>, ApiError> {
    let space = given.needed_text("name")?;
    let mut described = vec![];
    for inner in given.objects("tools")?.unwrap_or_default() {
        if inner.one_of("type", &["function"])?.is_some() {
            let name = inner.needed_text("name")?;
            let called = spaced(space, name);
            described.push(function(&called, &inner));
            let names = [space, name].map(str::to_owned);
            shape.spaced.insert(called, names);
        }
    }
    Ok(described)
}

/// A tool whose input is a text: a function with one argument.
fn custom(given: &Fields<'_>, shape: &mut Shape) -> Result<Value, ApiError> {
    let name = given.needed_text("name")?;
    shape.custom.insert(name.to_owned());
    let mut input = json!({"type": "string", "description": "The whole input of the tool."});
    if let Some(format) = given.object("format")?
        && format.one_of("type", &["text", "grammar"])? == Some("grammar")
    {
        format.needed_text("syntax")?;
        let syntax = format.one_of("syntax", &["lark", "regex"])?;
        let definition = format.needed_text("definition")?;
        input["description"] = "The whole input of the tool. It must match the grammar.".into();
        input[GRAMMAR] = json!({"syntax": syntax, "definition": definition});
        if syntax == Some("regex") {
            input["pattern"] = format!("^(?:{definition})$").into();
        }
    }
    let parameters = json!({
        "type": "object",
        "properties": {INPUT: input},
        "required": [INPUT],
        "additionalProperties": false,
    });
    Ok(tool(name, given.get("description"), Some(&parameters)))
}

/// The tools that may be called, as a chat has them. Where only some may be, the others are left out of `tools`.
fn choice(fields: &Fields<'_>, tools: &mut Vec<Value>) -> Result<Option<Value>, ApiError> {
    if !matches!(fields.get("tool_choice"), Some(Value::Object(_))) {
        return Ok(fields.get("tool_choice").cloned());
    }
    let choice = fields.needed_object("tool_choice")?;
    match choice.needed_text("type")? {
        "function" | "custom" => Ok(Some(demand(choice.needed_text("name")?))),
        "allowed_tools" => {
            let allowed = choice.objects("tools")?.unwrap_or_default();
            let names = allowed.iter().map(|tool| tool.text("name"));
            let names: Vec<_> = names.collect::<Result<_, _>>()?;
            tools.retain(|tool| names.contains(&tool["function"]["name"].as_str()));
            let mode = choice.one_of("mode", &["auto", "required"])?;
            Ok(Some(mode.unwrap_or("auto").into()))
        }
        other => {
            let message = format!("is '{other}', but this server runs no tools of its own");
            Err(choice.wrong("type", &message))
        }
    }
}

/// The items of a request, each with an id. References are replaced by what they refer to.
fn input(fields: &Fields<'_>, kept: &Kept) -> Result<Vec<Value>, ApiError> {
    let with_id = |mut item: Map<String, Value>| {
        let is_nameless = item.get("id").is_none_or(Value::is_null);
        if is_nameless {
            item.insert("id".to_owned(), format!("item_{:016x}", number()).into());
        }
        Value::from(item)
    };
    let items = match fields.get("input") {
        None => return Ok(vec![]),
        Some(Value::String(text)) => {
            let item = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]});
            return Ok(item.as_object().cloned().map(with_id).into_iter().collect());
        }
        Some(_) => fields.objects("input")?.unwrap_or_default(),
    };
    let referred = Cell::new(0);
    let read = |item: &Fields<'_>| match item.text("type")? {
        Some("item_reference") => {
            let id = item.needed_text("id")?;
            let message = format!("refers to '{id}', which is not kept here; send the item itself");
            effort::check().map_err(ApiError::stopped)?;
            let found = kept.item(id).ok_or_else(|| item.wrong("id", &message))?;
            // A request may name one item again and again.
            referred.set(referred.get() + tree::bytes(&found));
            match referred.get() > MOST_REFERRED {
                true => Err(item.wrong(
                    "id",
                    "refers to one of too many large items; refer to fewer",
                )),
                false => Ok(found),
            }
        }
        _ => Ok(with_id(item.all().clone())),
    };
    items.iter().map(read).collect()
}

/// The messages of a chat: instructions, what the request goes on from, and its own items.
fn messages(
    fields: &Fields<'_>,
    previous: Option<&str>,
    input: &[Value],
    kept: &Kept,
) -> Result<Value, ApiError> {
    let mut all = Messages::default();
    if let Some(text) = fields.text("instructions")?.filter(|t| !t.is_empty()) {
        all.said("system", text);
    }
    if let Some(id) = previous {
        let answers = kept.conversation(id).map_err(|missing| {
            let message = format!(
                "leads to '{missing}', which is not kept any more; send the whole conversation as input"
            );
            let error = fields.wrong("previous_response_id", &message);
            error.with_code("previous_response_not_found")
        })?;
        for item in answers
            .iter()
            .flat_map(|a| a.input.iter().chain(a.output()))
        {
            add(&Fields::of_body(item)?, &mut all)?;
        }
    }
    if input.is_empty() && previous.is_none() {
        let message = "is missing; it must be a text or a list of items";
        return Err(fields.wrong("input", message));
    }
    // With their ids they are still found at the same places.
    let body = json!({ "input": input });
    let items = Fields::of_body(&body)?;
    for item in items.objects("input")?.unwrap_or_default() {
        add(&item, &mut all)?;
    }
    Ok(all.all())
}

/// Adds an item to the messages.
fn add(item: &Fields<'_>, all: &mut Messages) -> Result<(), ApiError> {
    match item.text("type")?.unwrap_or("message") {
        "message" => said(item, all)?,
        "reasoning" => {
            if let Some(thoughts) = thoughts(item)? {
                all.thought(&thoughts);
            }
        }
        "function_call" => {
            let (id, name) = (item.needed_text("call_id")?, item.needed_text("name")?);
            let space = item.text("namespace")?;
            let name = space.map_or_else(|| name.to_owned(), |space| spaced(space, name));
            let arguments = item.needed_text("arguments")?;
            all.called(call(id, &name, &arguments.into()));
        }
        "custom_tool_call" => {
            let (id, name) = (item.needed_text("call_id")?, item.needed_text("name")?);
            let arguments = json!({INPUT: item.needed_text("input")?});
            all.called(call(id, name, &arguments));
        }
        "function_call_output" | "custom_tool_call_output" => {
            let id = item.needed_text("call_id")?;
            let output = content(item, "output")?;
            all.returned(id, output.unwrap_or_default());
        }
        other => {
            let message = format!(
                "is '{other}', but must be message, reasoning, function_call, custom_tool_call, or the output of one of these calls"
            );
            return Err(item.wrong("type", &message));
        }
    }
    Ok(())
}

/// Adds a message.
fn said(item: &Fields<'_>, all: &mut Messages) -> Result<(), ApiError> {
    let roles = ["user", "assistant", "system", "developer"];
    let Some(role) = item.one_of("role", &roles)? else {
        let message = format!("is missing; it must be one of {}", roles.join(", "));
        return Err(item.wrong("role", &message));
    };
    let Some(text) = content(item, "content")? else {
        let message = "is missing; it must be a text or a list of parts";
        return Err(item.wrong("content", message));
    };
    match role {
        "assistant" => all.answered(&text),
        other => all.said(other, text),
    }
    Ok(())
}

/// The thoughts of a reasoning item: its content, or the same sealed, or else its summary. Those that another server has sealed are lost.
fn thoughts(item: &Fields<'_>) -> Result<Option<String>, ApiError> {
    let texts = |name: &str| -> Result<Option<String>, ApiError> {
        let parts = item.objects(name)?.unwrap_or_default();
        let texts = parts.iter().map(|part| part.needed_text("text"));
        let texts: Vec<_> = texts.collect::<Result<_, _>>()?;
        Ok((!texts.is_empty()).then(|| texts.join("\n")))
    };
    if let Some(text) = texts("content")? {
        return Ok(Some(text));
    }
    if let Some(text) = item.text("encrypted_content")?.and_then(unsealed) {
        return Ok(Some(text.to_owned()));
    }
    texts("summary")
}
