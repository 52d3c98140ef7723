"""Calls the server by OpenAI's official client for Python: openai_client.py BASE_URL. The server's template knows tools."""

import json
import sys

import openai
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="first", max_retries=0)
MODEL = client.models.list().data[0].id
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["Bonn", "Köln"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["place", "days"],
        },
    },
}


def chat(**more):
    settings = {"model": MODEL, "messages": FOX, "temperature": 0, "max_tokens": 8}
    return client.chat.completions.create(**(settings | more))


def refused(kind, **more):
    try:
        chat(**more)
    except kind as error:
        return error
    raise AssertionError(f"{more} was answered")


def models():
    assert client.models.retrieve(MODEL).id == MODEL


def streams():
    whole = chat()
    text = whole.choices[0].message.content
    assert text and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 8
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage.completion_tokens == 8
    # What a client leaves early is not answered on.
    for _ in chat(stream=True, max_tokens=None):
        break


def several():
    found = chat(n=3, seed=1, temperature=1.2)
    assert [c.index for c in found.choices] == [0, 1, 2]
    assert chat(seed=2, temperature=1.2).choices[0].message.content == found.choices[1].message.content


def log_probabilities():
    found = chat(logprobs=True, top_logprobs=4).choices[0].logprobs.content
    assert len(found) == 8
    for token in found:
        assert len(token.top_logprobs) == 4 and token.logprob <= 0
        assert bytes(token.bytes).decode(errors="replace") == token.token
    table = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=4, temperature=0, logprobs=2)
    assert len(table.choices[0].logprobs.tokens) == 4
    assert len(table.choices[0].logprobs.top_logprobs[0]) == 2


def schemas():
    schema = {
        "type": "object",
        "properties": {"animal": {"enum": ["fox", "hen"]}, "legs": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["animal", "legs"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": schema}}
    found = json.loads(chat(response_format=form, max_tokens=80).choices[0].message.content)
    assert found["animal"] in ("fox", "hen") and 1 <= found["legs"] <= 9, found


def tools():
    found = chat(tools=[TOOL], tool_choice="required", max_tokens=120).choices[0]
    assert found.finish_reason == "tool_calls"
    call = found.message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and arguments["place"] in ("Bonn", "Köln"), call
    with client.chat.completions.stream(
        model=MODEL, messages=FOX, temperature=0, max_tokens=120, tools=[TOOL], tool_choice="required"
    ) as stream:
        last = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert last.function.arguments == call.function.arguments
    messages = FOX + [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    assert chat(messages=messages, tools=[TOOL]).choices[0].message.content is not None


def completions():
    one = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=6, temperature=0)
    parts = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=6, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == one.choices[0].text


def errors():
    error = refused(openai.BadRequestError, temperature=101)
    assert error.param == "temperature" and "0 to 100" in str(error)
    error = refused(openai.BadRequestError, messages=[{"role": "king", "content": "x"}])
    assert error.param == "messages[0].role"
    assert chat(model="gpt-9").model == MODEL
    error = refused(openai.BadRequestError, messages=[{"role": "user", "content": "fox " * 3000}])
    assert error.code == "context_length_exceeded"
    try:
        client.embeddings.create(model=MODEL, input="x")
        raise AssertionError("there are embeddings")
    except openai.NotFoundError as error:
        assert "no embeddings" in str(error)
    try:
        OpenAI(base_url=sys.argv[1], api_key="wrong", max_retries=0).models.list()
        raise AssertionError("a wrong key is accepted")
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"


for check in [models, streams, several, log_probabilities, schemas, tools, completions, errors]:
    check()
    print(check.__name__)
