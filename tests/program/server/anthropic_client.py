"""Calls the scripted model by Anthropic's official client for Python: anthropic_client.py ADDRESS."""

import sys

import anthropic
from anthropic import Anthropic

client = Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
TEXT = "Good morning to all of you! END of this text."
MORNING = [{"role": "user", "content": "Good morning!"}]
TOOLS = [
    {"name": name, "description": "Does it.", "input_schema": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}}
    for name, key in [("read", "path"), ("write", "input")]
]


def ask(**more):
    return client.messages.create(**({"model": "script", "max_tokens": 500, "messages": MORNING} | more))


def whole():
    found = ask(system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}])
    assert found.content[0].text == TEXT and found.stop_reason == "end_turn"
    assert found.usage.output_tokens > 2
    found = ask(stop_sequences=[" END"])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", " END")


def streams():
    with client.messages.stream(model="script", max_tokens=500, messages=MORNING) as stream:
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().stop_reason == "end_turn"


def thoughts():
    found = ask(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    assert [block.type for block in found.content] == ["thinking", "text"]
    with client.messages.stream(
        model="script", max_tokens=2000, messages=MORNING, thinking={"type": "enabled", "budget_tokens": 1024}
    ) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_message()
    assert "thinking" in kinds and "signature" in kinds
    assert last.content[0].thinking == found.content[0].thinking and last.content[0].signature
    # What came can be sent back.
    turns = MORNING + [{"role": "assistant", "content": last.content}, {"role": "user", "content": "And now?"}]
    assert ask(messages=turns).content[0].text == TEXT


def agents():
    for streamed in (False, True):
        messages, calls = [{"role": "user", "content": "Go."}], []
        while True:
            more = {"model": "script", "max_tokens": 500, "messages": messages, "tools": TOOLS}
            if streamed:
                with client.messages.stream(**more) as stream:
                    found = stream.get_final_message()
            else:
                found = client.messages.create(**more)
            messages.append({"role": "assistant", "content": found.content})
            used = [block for block in found.content if block.type == "tool_use"]
            if not used:
                assert found.content[0].text == "Both steps are done."
                break
            assert found.stop_reason == "tool_use"
            calls += [(block.name, block.input) for block in used]
            results = [{"type": "tool_result", "tool_use_id": block.id, "content": "done"} for block in used]
            messages.append({"role": "user", "content": results})
        assert calls == [("read", {"path": 'a "b".txt'}), ("write", {"input": "one\ntwo ✓"})], calls


def counts():
    counted = client.messages.count_tokens(model="script", messages=MORNING, tools=TOOLS)
    usage = ask(tools=TOOLS).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def models():
    listed = client.models.list().data
    assert [model.id for model in listed] == ["script"] and listed[0].display_name == "script"
    assert client.models.retrieve("script").type == "model"


def errors():
    try:
        ask(extra_body={"temperature": 101})
        raise AssertionError("it was answered")
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error" and "temperature" in str(error)
    try:
        ask(messages=[{"role": "user", "content": "x" * 40}] * 200)
        raise AssertionError("it was answered")
    except anthropic.BadRequestError as error:
        assert "prompt is too long" in str(error)


for check in [whole, streams, thoughts, agents, counts, models, errors]:
    check()
    print(check.__name__)
