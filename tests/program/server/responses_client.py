"""Calls the scripted model by OpenAI's official client for Python and its responses: responses_client.py ADDRESS."""

import sys

import openai
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
TEXT = "Good morning to all of you! END of this text."
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "name": "read", "description": "Reads.", "parameters": PARAMETERS, "strict": True},
    {"type": "custom", "name": "write", "description": "Writes."},
]


def respond(**more):
    return client.responses.create(**({"model": "script", "input": "Good morning!"} | more))


def whole():
    found = respond()
    assert found.output_text == TEXT and found.status == "completed"
    assert found.output[0].type == "reasoning" and found.output[0].content[0].text.startswith("Somebody")
    assert found.usage.output_tokens_details.reasoning_tokens > 0


def streams():
    kinds, text = [], ""
    for event in respond(stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == TEXT and kinds[0] == "response.created" and kinds[-1] == "response.completed"
    with client.responses.stream(model="script", input="Good morning!", tools=TOOLS) as stream:
        last = stream.get_final_response()
    call = [item for item in last.output if item.type == "function_call"][0]
    assert call.parsed_arguments == {"path": 'a "b".txt'}, call


def agent(**how):
    items, calls = [{"role": "user", "content": "Go."}], []
    while True:
        found = respond(input=items, tools=TOOLS, **how)
        calls += [item for item in found.output if item.type.endswith("_call")]
        if found.output_text == "Both steps are done.":
            break
        items += [item.model_dump(exclude_none=True) for item in found.output]
        items.append({"type": calls[-1].type + "_output", "call_id": calls[-1].call_id, "output": "done"})
    assert [call.name for call in calls] == ["read", "write"]
    assert calls[1].input == "one\ntwo ✓"


def agents():
    agent()
    agent(store=False, include=["reasoning.encrypted_content"])


def kept():
    first = respond(tools=TOOLS)
    call = [item for item in first.output if item.type == "function_call"][0]
    result = [{"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
    second = respond(input=result, tools=TOOLS, previous_response_id=first.id)
    assert second.output[0].name == "write"
    assert client.responses.retrieve(second.id).output[0].name == "write"
    assert client.responses.input_items.list(second.id).data[0].call_id == call.call_id
    client.responses.delete(second.id)
    try:
        client.responses.retrieve(second.id)
        raise AssertionError("it is kept")
    except openai.NotFoundError:
        pass


def schemas():
    class Animal(BaseModel):
        legs: bool

    found = client.responses.parse(model="script", input="Hi", text_format=Animal, reasoning={"effort": "none"})
    assert found.output_parsed.legs in (True, False)


def counts():
    assert client.responses.input_tokens.count(model="script", input="Hi").input_tokens > 2


def errors():
    for more, param in [({"background": True}, "background"), ({"max_output_tokens": 0}, "max_output_tokens")]:
        try:
            respond(**more)
            raise AssertionError(f"{more} was answered")
        except openai.BadRequestError as error:
            assert error.param == param


for check in [whole, streams, agents, kept, schemas, counts, errors]:
    check()
    print(check.__name__)
