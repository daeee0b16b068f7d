"""How the prompt after two calls must look in each format: the calls, and the results of the tools."""

from dataclasses import dataclass
from pathlib import Path

from tool_texts import BOTH, LIST, as_json, fenced, gemma, message, object_of, plain, tagged, xml

EXAMPLES = Path(__file__).parents[3] / "examples" / "chat_templates"
MADE = Path(__file__).parents[2] / "data" / "tool_templates"

RESULTS = ("3", "seen {é} 🙂")
"""What the tools said."""
BOS = "{% set bos_token, eos_token, current_date = '', '</s>', '2025-06-28' %}"
"""What stands for tokens that the tests' tokenizer has not, and for today."""


@dataclass(frozen=True)
class Form:
    """template: its name. called: both calls. result: a result.

    "%s" stands for the text of a result, "%n" for the tool's name; "%0", "%1" and "%i" for ids of calls.
    """

    template: str
    called: str
    result: str

    @property
    def source(self):
        """The chat template."""
        example = EXAMPLES / f"tool_{self.template}.jinja"
        return BOS + (example if example.is_file() else MADE / f"{self.template}.jinja").read_text()

    def shown(self, ids):
        """The calls, and the result of each, in order."""
        results = [
            self.result.replace("%n", name).replace("%i", call_id).replace("%s", text)
            for name, call_id, text in zip(("add", "look"), ids, RESULTS, strict=True)
        ]
        return [self.called.replace("%0", ids[0]).replace("%1", ids[1]), *results]


def python(value):
    """As Python reads it, texts in the quotes of JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_json(key)}: {python(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(python, value)) + "]"
    return as_json(value) if isinstance(value, str) else repr(value)


def python_call(name, arguments):
    return f"{name}({', '.join(f'{key}={python(value)}' for key, value in arguments.items())})"


PYTHON = f"[{', '.join(python_call(*one) for one in BOTH)}]"
OBJECTS = "; ".join(object_of(*one, key="parameters") for one in BOTH)
WITH_IDS = ", ".join(f'{object_of(*one)[:-1]}, "id": "%{i}"}}' for i, one in enumerate(BOTH))
TAGGED = "\n".join(tagged(*one) for one in BOTH)
XML = "\n".join(xml(*one) for one in BOTH)
IPYTHON = "<|start_header_id|>ipython<|end_header_id|>\n\n%s<|eot_id|>"
IPYTHON4 = "<|header_start|>ipython<|header_end|>\n\n%s<|eot|>"
RESPONSE = "<tool_response>\n%s\n</tool_response>"
OUTPUT = "<｜tool▁output▁begin｜>%s<｜tool▁output▁end｜>"


def _around(calls):
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


FORMS = {
    **dict.fromkeys(("hermes", "qwen3_json", "granite4"), Form("hermes", TAGGED, RESPONSE)),
    **dict.fromkeys(("qwen3_coder", "qwen3_xml"), Form("qwen3_coder", XML, RESPONSE)),
    "llama3_json": Form("llama3_json", OBJECTS, IPYTHON),
    "llama4_json": Form("llama4_json", OBJECTS, IPYTHON4),
    "pythonic": Form("pythonic", PYTHON, IPYTHON),
    "llama4_pythonic": Form("llama4_pythonic", f"<|python_start|>{PYTHON}<|python_end|>", IPYTHON4),
    "mistral": Form(
        "mistral", f"[TOOL_CALLS][{WITH_IDS}]", '[TOOL_RESULTS]{"content": "%s", "call_id": "%i"}[/TOOL_RESULTS]'
    ),
    "granite": Form(
        "granite",
        f"<|tool_call|>{LIST}",
        "<|start_of_role|>tool_response<|end_of_role|>%s<|end_of_text|>",
    ),
    "phi4_mini_json": Form("phi4_mini_json", f"functools{LIST}", "<|tool_response|>%s"),
    "deepseek_v3": Form("deepseek_v3", _around("\n".join(fenced(*one) for one in BOTH)), OUTPUT),
    "deepseek_v31": Form("deepseek_v31", _around("".join(plain(*one) for one in BOTH)), OUTPUT),
    "functiongemma": Form(
        "functiongemma",
        "".join(f"<start_function_call>call:{n}{gemma(a, '<escape>')}<end_function_call>" for n, a in BOTH),
        "<start_function_response>response:%n{value:<escape>%s<escape>}<end_function_response>",
    ),
    "gemma4": Form(
        "gemma4",
        "".join(f"<|tool_call>call:{n}{gemma(a, mark)}<tool_call|>" for mark in ['<|"|>'] for n, a in BOTH),
        '<|tool_response>response:%n{value:<|"|>%s<|"|>}<tool_response|>',
    ),
    "openai": Form(
        "openai",
        message(*BOTH[0]) + message(*BOTH[1], again="<|start|>assistant"),
        "<|start|>functions.%n to=assistant<|channel|>commentary<|message|>%s",
    ),
}
"""By parser."""
