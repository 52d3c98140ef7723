"""Calls the scripted model by litellm, in each API that it can speak to a server of one's own: litellm_client.py ADDRESS."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LITELLM_MODE"] = "PRODUCTION"

import litellm

litellm.telemetry = False
litellm.suppress_debug_info = True
TEXT = "Good morning to all of you! END of this text."
MORNING = [{"role": "user", "content": "Good morning!"}]
ADDRESS = sys.argv[1]
PROVIDERS = {
    "openai": f"{ADDRESS}/v1",
    "hosted_vllm": f"{ADDRESS}/v1",
    "anthropic": ADDRESS,
    "ollama_chat": ADDRESS,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}}}
    for name, key in [("read", "path"), ("write", "input")]
]


def ask(provider, **more):
    return litellm.completion(model=f"{provider}/script", api_base=PROVIDERS[provider], api_key="none", **({"messages": MORNING, "max_tokens": 500} | more))


def texts():
    for provider in PROVIDERS:
        assert ask(provider).choices[0].message.content == TEXT, provider
        parts = ask(provider, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == TEXT, provider


def agents():
    for provider in PROVIDERS:
        messages, names = [{"role": "user", "content": "Go."}], []
        while True:
            message = ask(provider, messages=messages, tools=TOOLS).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                assert message.content == "Both steps are done.", provider
                break
            for call in message.tool_calls:
                names.append(call.function.name)
                messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "done"})
        assert names == ["read", "write"], provider


def responses():
    found = litellm.responses(model="openai/script", api_base=f"{ADDRESS}/v1", api_key="none", input="Good morning!")
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.output[1].content[0].text == TEXT


def errors():
    for provider in PROVIDERS:
        try:
            ask(provider, temperature=101)
            raise AssertionError(provider)
        except litellm.BadRequestError:
            pass
        except litellm.APIConnectionError as error:
            # It takes ollama's errors so.
            assert provider.startswith("ollama") and "temperature" in str(error)


for check in [texts, agents, responses, errors]:
    check()
    print(check.__name__)
