"""What the model is asked: items, instructions, tools, formats and other fields as the body of a chat."""

import json

import pytest
from api_rig import in_process

from quire.plugin import BadRequest
from quire_apis.responses.chat_body import chat_body, tools_of
from quire_apis.responses.items import input_items
from quire_apis.responses.prompts import ROOM
from quire_apis.responses.schemas import ResponseRequest
from quire_apis.responses.writing.custom_input import CustomInput

USER = {"role": "user", "content": "Hi"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CUSTOM = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}}


def body_of(**fields):
    request = ResponseRequest.model_validate(fields)
    items = input_items(request.input)
    return chat_body(request, items, tools_of(request, items))


def messages_of(*items, **fields):
    return body_of(input=list(items), **fields)["messages"]


def test_a_text_is_what_the_user_says():
    assert body_of(input="Hi", model="m") == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_instructions_and_the_first_system_messages_become_one():
    items = [
        {"role": "developer", "content": "b"},
        {"role": "system", "content": "c"},
        USER,
        {**USER, "role": "system"},
    ]
    found = messages_of(*items, instructions="a")
    assert found == [{"role": "system", "content": "a\n\nb\n\nc"}, USER, {**USER, "role": "system"}]
    assert body_of(instructions="a")["messages"] == [{"role": "system", "content": "a"}]


def test_reasoning_text_and_calls_of_one_turn_become_one_message():
    turn = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I do."}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": 'a"b'},
    ]
    outputs = [
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]},
    ]
    said, first, second, again = messages_of(USER, *turn, *outputs, turn[0])[1:]
    assert (said["role"], said["reasoning"], said["content"]) == ("assistant", "hm", "I do.")
    called = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in said["tool_calls"]]
    assert called == [("1", "f", "{}"), ("2", "patch", json.dumps({"input": 'a"b'}))]
    assert first == {"role": "tool", "tool_call_id": "1", "name": "f", "content": "one"}
    assert second == {"role": "tool", "tool_call_id": "2", "name": "patch", "content": "two"}
    assert again == {"role": "assistant", "content": "", "reasoning": "hm"}


def test_pictures_and_recordings_are_parts_of_a_message():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    (message,) = messages_of({"role": "user", "content": [{"type": "input_text", "text": "x"}, image, sound]})
    assert message["content"] == [
        {"type": "text", "text": "x"},
        {"type": "image_url", "image_url": {"url": image["image_url"], "detail": "auto"}},
        sound,
    ]


def test_items_that_other_services_made_are_left_out():
    foreign = ["web_search_call", "local_shell_call", "local_shell_call_output", "mcp_list_tools", "compaction"]
    assert messages_of(*({"type": kind, "id": "x"} for kind in foreign), USER) == [USER]
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "of another service"}
    assert messages_of(sealed, USER) == [USER]


WRONG = {
    "an unknown type": {"type": "mesage"},
    "a type that is a list": {"type": [1], "role": "user", "content": "x"},
    "no type": {"text": "x"},
    "an unknown role": {"role": "robot", "content": "x"},
    "no content": {"role": "user"},
    "an unknown part": {"role": "user", "content": [{"type": "smell"}]},
    "a part without text": {"role": "user", "content": [{"type": "input_text"}]},
    "a text as part": {"role": "user", "content": ["x"]},
    "a picture of a file": {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]},
    "a file": {"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]},
    "a call without arguments": {"type": "function_call", "call_id": "1", "name": "f"},
    "an output of no call": {"type": "function_call_output", "output": "x"},
    "an output that is a number": {"type": "function_call_output", "call_id": "1", "output": 3},
    "reasoning that is a text": {"type": "reasoning", "summary": "x"},
    "reasoning of numbers": {"type": "reasoning", "content": [1]},
    "tools that are a text": {"type": "additional_tools", "tools": "x"},
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_item_is_named(kind):
    with pytest.raises(BadRequest, match=r"`input\[1\]"):
        messages_of(USER, WRONG[kind])


def test_tools_are_offered_as_functions():
    space = {"type": "namespace", "name": "files", "description": "x", "tools": [{"type": "function", "name": "read"}]}
    added = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "more"}]}
    body = body_of(input=[added, USER], tools=[FUNCTION, CUSTOM, space, {"type": "mcp", "server_label": "x"}])
    functions = {tool["function"]["name"]: tool["function"] for tool in body["tools"]}
    assert list(functions) == ["f", "patch", "files__read", "more"]
    assert functions["f"] == {"name": "f", "parameters": {"type": "object"}, "strict": True}
    parameter = functions["patch"]["parameters"]["properties"]["input"]
    assert parameter["type"] == "string"
    assert "start: X" in parameter["description"]
    assert "tools" not in body_of(input="x", tools=[{"type": "web_search"}])


NAMED = {"type": "function", "function": {"name": "f"}}
CHOICES = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    '{"type": "function", "name": "f"}': NAMED,
    '{"type": "custom", "name": "patch"}': {"type": "function", "function": {"name": "patch"}},
    '{"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}, {"type": "mcp"}]}': {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [NAMED]},
    },
    '{"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}': "none",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_form_of_tool_choice_has_its_counterpart(choice):
    given = json.loads(choice) if choice.startswith("{") else choice
    assert body_of(input="x", tools=[FUNCTION, CUSTOM], tool_choice=given)["tool_choice"] == CHOICES[choice]


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([], "required"),
        ([{"type": "web_search"}], "required"),
        ([FUNCTION], "always"),
        ([FUNCTION], {"type": "function", "name": "g"}),
        ([FUNCTION], {"type": "custom", "name": "f"}),
        ([FUNCTION], {"type": "web_search_preview"}),
        ([FUNCTION], {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}),
        ([FUNCTION], {"type": "allowed_tools", "mode": "some"}),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(tools, choice):
    with pytest.raises(BadRequest, match="tool_choice"):
        body_of(input="x", tools=tools, tool_choice=choice)


def test_settings_have_the_names_of_the_chat():
    schema = {"type": "object"}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}, "verbosity": "low"}
    body = body_of(
        input="x",
        text=text,
        reasoning={"effort": "low"},
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.5,
        top_logprobs=3,
        include=["message.output_text.logprobs"],
        truncation="auto",
        adapters=["a"],
        seed=1,
        speculative=False,
        client_metadata={"x": "y"},
    )
    del body["messages"]
    assert body == {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
        "reasoning_effort": "low",
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.5,
        "logprobs": True,
        "top_logprobs": 3,
        "adapters": ["a"],
        "seed": 1,
        "speculative": False,
        "client_metadata": {"x": "y"},
    }
    assert body_of(input="x", text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("field", ["messages", "max_tokens", "response_format", "n", "echo", "logprobs"])
def test_fields_of_the_chat_that_have_another_name_here_are_refused(field):
    with pytest.raises(BadRequest, match=f"`{field}`"):
        body_of(input="x", **{field: 2})


async def test_the_beginning_is_left_out_of_an_input_that_is_too_long_if_the_request_says_so(rig):
    said = [{"role": "system", "content": "Be brief."}]
    for number in range(40):
        said += [{"role": "user", "content": f"{number:02}" * 4}, {"role": "assistant", "content": "ok"}]
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    said += [call, {"type": "function_call_output", "call_id": "1", "output": "x"}, {"role": "user", "content": "So?"}]
    rig.set_context(400)
    try:
        async with in_process(rig.app) as client:
            refused = await client.post("/v1/responses", json={"input": said})
            assert (refused.status_code, "maximum context length" in refused.text) == (400, True)
            rig.says("Fine.")
            cut = (await client.post("/v1/responses", json={"input": said, "truncation": "auto"})).json()
            prompt = rig.script.prompt()
            fills = await client.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 1000})
            assert fills.json()["status"] == "completed"
            alone = await client.post("/v1/responses", json={"input": "x" * 500, "truncation": "auto"})
            assert alone.status_code == 400
    finally:
        rig.set_context(1 << 16)
    assert cut["output"][0]["content"][0]["text"] == "Fine."
    assert prompt.startswith("[system]Be brief.[")
    assert prompt.endswith("[assistant]okf({})[tool]x[user]So?[assistant]")
    assert 400 - ROOM - len("[user]19191919") < len(prompt) <= 400 - ROOM  # no item more than it takes


async def test_bodies_that_make_no_sense_are_refused(rig):
    wrong = [
        {"input": 3},
        {"input": []},
        {},
        {"input": "x", "metadata": {"k": "v" * 600}},
        {"input": "x", "prompt": {"id": "p"}},
        {"input": "x", "text": {"format": {"type": "json_schema"}}},
        {"input": "x", "reasoning": {"effort": "huge"}},
        {"input": "x", "tools": [{"name": "f"}]},
        {"input": "x", "tools": [{"type": "function"}]},
        {"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": ["f"]}]},
        {"input": "x", "truncation": "some"},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 17_000}]},
        {"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION] * 1025}]},
    ]
    async with in_process(rig.app) as client:
        answers = [await client.post("/v1/responses", json=body) for body in wrong]
    assert [answer.status_code for answer in answers] == [400] * len(wrong)


@pytest.mark.parametrize("text", ["", "x", 'a"b\\c\n\té 😀 \\u0041'])
def test_the_input_of_a_custom_tool_is_read_however_its_arguments_are_split(text):
    for arguments in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False, indent=1)):
        for size in (1, 2, 3, 5, 100):
            found = CustomInput()
            parts = [found.push(arguments[begin : begin + size]) for begin in range(0, len(arguments), size)]
            assert "".join(parts) + found.end() == text


def test_half_a_pair_of_surrogates_in_the_input_of_a_custom_tool_becomes_a_replacement_character():
    found = CustomInput()
    text = found.push('{"input": "a\\ud83d') + found.push('\\ud83d\\ude00b"}') + found.end()
    assert text == "a\ufffd😀b"


def test_arguments_of_another_shape_are_the_input_of_a_custom_tool():
    for arguments in ('{"text": "x"}', "[1]", '{"input": 3}', "{", '{"input": "\\q"}', ""):
        found = CustomInput()
        assert found.push(arguments) + found.end() == arguments
