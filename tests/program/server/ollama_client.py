"""Calls the scripted model by ollama's official client for Python: ollama_client.py ADDRESS."""

import json
import sys

import ollama

client = ollama.Client(host=sys.argv[1])
TEXT = "Good morning to all of you! END of this text."
MORNING = [{"role": "user", "content": "Good morning!"}]


def read(path: str) -> str:
    """Reads a file.

    Args:
      path: The file.
    """


def write(input: str) -> str:
    """Writes a text.

    Args:
      input: The text.
    """


def chats():
    found = client.chat("script", messages=MORNING)
    assert found.message.content == TEXT and found.message.thinking.startswith("Somebody")
    assert found.done and found.done_reason == "stop" and found.eval_count > 2 and found.total_duration > 0
    found = client.chat("script", messages=MORNING, think=False, options={"num_predict": 2, "num_ctx": 4096})
    assert found.done_reason == "length" and not found.message.thinking
    parts = list(client.chat("script", messages=MORNING, stream=True, think=False))
    assert "".join(part.message.content for part in parts) == TEXT and parts[-1].done


def prompts():
    assert client.generate("script", "Good morning!", think=False).response == TEXT
    parts = client.generate("script", "Good morning!", stream=True, think=False)
    assert "".join(part.response for part in parts) == TEXT
    assert client.generate("script", "<|quiet|>", raw=True).response == TEXT
    assert client.generate("script", "").done_reason == "load"


def agents():
    for streamed in (False, True):
        messages, calls = [{"role": "user", "content": "Go."}], []
        while True:
            if streamed:
                text, made = "", []
                for part in client.chat("script", messages=messages, tools=[read, write], stream=True):
                    text += part.message.content
                    made += part.message.tool_calls or []
                message = ollama.Message(role="assistant", content=text, tool_calls=made or None)
            else:
                message = client.chat("script", messages=messages, tools=[read, write]).message
            messages.append(message)
            if not message.tool_calls:
                assert message.content == "Both steps are done."
                break
            for call in message.tool_calls:
                calls.append((call.function.name, dict(call.function.arguments)))
                messages.append({"role": "tool", "tool_name": call.function.name, "content": "done"})
        assert calls == [("read", {"path": 'a "b".txt'}), ("write", {"input": "one\ntwo ✓"})], calls


def schemas():
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": False}
    found = client.chat("script", messages=MORNING, format=schema, think=False)
    assert json.loads(found.message.content) == {"n": 7}


def models():
    assert [model.model for model in client.list().models] == ["script:latest"]
    assert [model.model for model in client.ps().models] == ["script:latest"]
    shown = client.show("script:latest")
    assert set(shown.capabilities) == {"completion", "tools", "thinking"}
    assert shown.modelinfo["general.architecture"] == "deepseek2" and shown.details.family == "deepseek2"


def errors():
    for asked in [
        lambda: client.chat("script", messages=[{"role": "user", "content": "x", "images": [b"x"]}]),
        lambda: client.generate("script", "x", suffix="y"),
    ]:
        try:
            asked()
            raise AssertionError("it was answered")
        except ollama.ResponseError as error:
            assert error.status_code == 400 and error.error
    try:
        client.embed("script", "x")
        raise AssertionError("there are embeddings")
    except ollama.ResponseError as error:
        assert error.status_code == 404 and "no embeddings" in error.error
    assert client.generate("script", "", keep_alive=0).done_reason == "unload"


for check in [chats, prompts, agents, schemas, models, errors]:
    check()
    print(check.__name__)
