"""How models of each family write the same calls: add(a=1, note=NOTE) and look({"q": {"deep": [1, {"x": "}"}]}})."""

import json

from quire.records import ToolCall

NOTE = "é{\"]}' 漢🙂 <b>"
ADD = {"a": 1, "note": NOTE}
LOOK = {"q": {"deep": [1.5, {"x": "}]"}, None, True]}, "n": -2}
CALLS = [ToolCall("add", json.dumps(ADD)), ToolCall("look", json.dumps(LOOK))]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "note": {"type": "string"}},
                "required": ["a"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"q": {"$ref": "#/$defs/question"}, "n": {"type": ["integer", "null"]}},
                "$defs": {"question": {"type": "object"}},
            },
        },
    },
]


def as_json(value):
    return json.dumps(value, ensure_ascii=False)


def object_of(name, arguments, key="arguments"):
    return f'{{"name": "{name}", "{key}": {as_json(arguments)}}}'


def tagged(name, arguments):
    return f"<tool_call>\n{object_of(name, arguments)}\n</tool_call>"


def xml(name, arguments):
    values = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else as_json(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def fenced(name, arguments):
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{as_json(arguments)}\n```<｜tool▁call▁end｜>"


def plain(name, arguments):
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{as_json(arguments)}<｜tool▁call▁end｜>"


def python(name, arguments):
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def gemma(value, quote):
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(one, quote)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma(one, quote) for one in value) + "]"
    return as_json(value)


def message(name, arguments, again=""):
    return f"{again}<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{as_json(arguments)}<|call|>"


LIST = f"[{object_of('add', ADD)}, {object_of('look', LOOK)}]"
BOTH = [("add", ADD), ("look", LOOK)]


HARMONY = (
    f"<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant{message(*BOTH[0])}"
    f"<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{as_json(LOOK)}<|call|>"
    "<|start|>assistant<|channel|>final<|message|>done<|return|>"
)
"""Messages on channels; the recipient of the second call stands elsewhere."""


def _around(*calls):
    return f"Let me see. {calls[0]} and {calls[1]}\n done"


SERIES = {
    "hermes": _around(*(tagged(*one) for one in BOTH)),
    "qwen3_json": _around(*(tagged(*one) for one in BOTH)),
    "granite4": _around(*(tagged(*one) for one in BOTH)),
    "qwen3_coder": _around(*(xml(*one) for one in BOTH)),
    "qwen3_xml": _around(*(xml(*one) for one in BOTH)),
    "functiongemma": _around(
        *(f"<start_function_call>call:{n}{gemma(a, '<escape>')}<end_function_call>" for n, a in BOTH)
    ),
    "gemma4": _around(*(f"<|tool_call>call:{n}{gemma(a, QUOTE)}<tool_call|>" for QUOTE in ['<|"|>'] for n, a in BOTH)),
    "deepseek_v3": f"Hm.<｜tool▁calls▁begin｜>{fenced(*BOTH[0])}\n{fenced(*BOTH[1])}<｜tool▁calls▁end｜> done",
    "deepseek_v31": f"Hm.<｜tool▁calls▁begin｜>{plain(*BOTH[0])}{plain(*BOTH[1])}<｜tool▁calls▁end｜> done",
    "llama3_json": "; ".join(object_of(*one, key="parameters") for one in BOTH),
    "llama4_json": "; ".join(object_of(*one, key="parameters") for one in BOTH),
    "pythonic": f"[{', '.join(python(*one) for one in BOTH)}]",
    "llama4_pythonic": f"Hm.<|python_start|>[{', '.join(python(*one) for one in BOTH)}]<|python_end|> done",
    "mistral": f"Hm.[TOOL_CALLS]{LIST}",
    "granite": f"Hm.<|tool_call|>{LIST}",
    "phi4_mini_json": f"Hm.functools{LIST}",
    "openai": HARMONY,
}
"""By parser, an answer with both calls, and text around them where the format allows it."""

CONTENTS = {
    **dict.fromkeys(("llama3_json", "llama4_json", "pythonic"), ""),
    **dict.fromkeys(("mistral", "granite", "phi4_mini_json"), "Hm."),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31", "llama4_pythonic"), "Hm. done"),
    "openai": "Let me see.\ndone",
}
"""What of it is no call, where that is not the usual."""

USUAL = "Let me see.  and\n done"

MORE = {
    "hermes": {
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>': [ToolCall("add", '{"a": 1}')],
        '<tool_call>{"name": "add"}</tool_call>': [ToolCall("add", "{}")],
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>': [ToolCall("add", '{"a": 1}')],
        '<tool_call>{"name": "add", "arguments": {"t": "</tool_call>\\"x"}}</tool_call>': [
            ToolCall("add", '{"t": "</tool_call>\\"x"}')
        ],
        '<tool_call>{"name": "add", "arguments": {"a": 1}}': [ToolCall("add", '{"a": 1}')],
        '<tool_call>[{"name": "f", "arguments": {}}, {"arguments": {}, "name": "g"}]</tool_call>': [
            ToolCall("f", "{}"),
            ToolCall("g", "{}"),
        ],
    },
    "llama3_json": {
        '<|python_tag|>{"name": "add", "parameters": {"a": 1}}': [ToolCall("add", '{"a": 1}')],
        ' {"type": "function", "name": "add", "parameters": {"a": "1"}} ': [ToolCall("add", '{"a": "1"}')],
    },
    "mistral": {
        'Hm.[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]look[ARGS]{}': [
            ToolCall("add", '{"a": 1}'),
            ToolCall("look", "{}"),
        ],
        '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"t": "[TOOL_CALLS]"}': [ToolCall("add", '{"t": "[TOOL_CALLS]"}')],
        '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]': [
            ToolCall("f", "{}"),
            ToolCall("g", "{}"),
        ],
        '[TOOL_CALLS]add{"a": 1}': [ToolCall("add", '{"a": 1}')],
    },
    "qwen3_coder": {
        "<function=add><parameter=a>7</parameter><parameter=note>7</parameter></function>": [
            ToolCall("add", '{"a": 7, "note": "7"}')
        ],
        "<tool_call><function=look>\n<parameter=n>\nnull\n</parameter>\n</function></tool_call>": [
            ToolCall("look", '{"n": null}')
        ],
        "<tool_call><function=add><parameter=a>no number</parameter></function></tool_call>": [
            ToolCall("add", '{"a": "no number"}')
        ],
    },
    "pythonic": {
        " [f(), m.g(x=[1, (2,)], y={'k': true}, z=null)]": [
            ToolCall("f", "{}"),
            ToolCall("m.g", '{"x": [1, [2]], "y": {"k": true}, "z": null}'),
        ],
        "[a-b(from='in=1, is(', class = 2, user-id=-3, x-y.z = \"'\")]": [
            ToolCall("a-b", '{"from": "in=1, is(", "class": 2, "user-id": -3, "x-y.z": "\'"}')
        ],
    },
    "llama4_pythonic": {"[add(a=1)]": [ToolCall("add", '{"a": 1}')]},
    "gemma4": {"<|tool_call>call:now{}<tool_call|>": [ToolCall("now", "{}")]},
    "openai": {
        '<|start|>assistant to=functions.add<|channel|>analysis code<|message|> {"a": 1}': [
            ToolCall("add", '{"a": 1}')
        ],
        "<|channel|>commentary to=functions.now<|message|><|call|>": [ToolCall("now", "{}")],
        '<|channel|>commentary to=look<|message|>{"t": "<|call|>\\"<|start|>"}<|end|>': [
            ToolCall("look", '{"t": "<|call|>\\"<|start|>"}')
        ],
        "<|channel|>commentary to=functions.f<|message|>{}<|start|>assistant<|channel|>final<|message|>": [
            ToolCall("f", "{}")
        ],
    },
}
"""Other spellings."""

NO_CALLS = {
    "hermes": ["<tool_call>oops</tool_call> x", "<tool_call"],
    "llama3_json": [
        '{"answer": 1}',
        '{"name": "x", "cost": 5}',
        '{"name',
        "<|python_tag|>print(1)",
        '{"name": "f", "parameters": 5}',
        " \n",
    ],
    "pythonic": ["[1] is a footnote", "[f", "[f(1)]", "[f(x=g())]", "[f(a=1", "[a link](x)", "["],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS]add[ARGS]", "[TOOL_CALLS][1]", "[TOOL"],
    "qwen3_coder": ["<tool_call>\n<function\n</tool_call> x", "<func", "a <function=f>"],
    "gemma4": ["<|tool_call>call:f{a:}<tool_call|>", "<|tool_call>f{}<tool_call|>"],
    "functiongemma": ["<start_function_call>call:f{a:<escape>x}<end_function_call>"],
    "deepseek_v3": ["<｜tool▁calls▁begin｜>f<｜tool▁calls▁end｜> x"],
    "granite": ["<|tool_call|>[1]", "a <|tool_call"],
    "phi4_mini_json": ["functools are fun", "functools[]x"],
    "openai": [
        "<|channel|>analysis<|message|>hm, to=functions.f {}<|end|>",
        "<|channel|>commentary to=functions.f<|message|>oops<|call|>",
        "<|channel|>commentary to=python<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.f",
        "<|chan",
        "a <|message|> b <|end|>",
        "<|channel|>" + "x" * 600 + "<|message|>{}",
    ],
}
"""Answers in which there is no call; they stay as they are."""
