"""Chat templates render the prompts that transformers renders."""

from pathlib import Path
from typing import Any

import pytest
from chat_templates import ASSISTANT, LLAMA3, PARTS, TOOL_USE, TOOLS, USER, chat, theirs
from tiny_tokenizers import TEMPLATE, byte_level, save
from transformers import AutoTokenizer

from quire.errors import BadRequest, ConfigError
from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import ChatTemplate, read_template
from quire.text.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.process

# --- rendering as transformers does ----------------------------------------------------------------


@pytest.mark.parametrize(
    "template", [TEMPLATE, LLAMA3, TOOL_USE, "{{ messages | tojson }}", "{{ add_generation_prompt }}"]
)
@pytest.mark.parametrize("prompt", [True, False])
def test_a_prompt_is_the_one_that_transformers_renders(template: str, prompt: bool, renderer: TemplatePool) -> None:
    messages = [{"role": "system", "content": " Be <kind> & brief. "}, USER, ASSISTANT, USER]
    ours = chat(renderer, template).render(messages, add_generation_prompt=prompt, tools=TOOLS)
    assert ours == theirs(template, messages, add_generation_prompt=prompt, tools=TOOLS)


def test_tool_calls_reach_the_template_as_objects(renderer: TemplatePool) -> None:
    def call(arguments: Any) -> dict[str, Any]:
        return {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}

    sent = [USER, {"role": "assistant", "content": None, "tool_calls": [call('{"a": [1, 2]}')]}]
    seen = [USER, {"role": "assistant", "content": "", "tool_calls": [call({"a": [1, 2]})]}]
    assert chat(renderer, TOOL_USE).render(sent, tools=TOOLS) == theirs(
        TOOL_USE, seen, tools=TOOLS, add_generation_prompt=True
    )
    broken = [USER, {"role": "assistant", "tool_calls": [call("{oops")]}]
    assert "{oops" in chat(renderer, TOOL_USE).render(broken)


@pytest.mark.parametrize("template", [TEMPLATE, LLAMA3, PARTS])
@pytest.mark.parametrize("text", ["It is", "It is ", " It\n"])
def test_a_final_message_can_be_continued(template: str, text: str, renderer: TemplatePool) -> None:
    final: Any = [{"type": "text", "text": text}] if template == PARTS else text
    messages = [{**USER, "content": [{"type": "text", "text": "hi"}] if template == PARTS else "hi"}]
    messages.append({"role": "assistant", "content": final})
    ours = chat(renderer, template).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert ours == theirs(template, messages, add_generation_prompt=False, continue_final_message=True)
    assert messages[-1]["content"] == final


def test_a_message_that_the_template_drops_cannot_be_continued(renderer: TemplatePool) -> None:
    with pytest.raises(BadRequest, match="cannot be continued"):
        chat(renderer, "nothing").render([USER], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(BadRequest, match="exclude each other"):
        chat(renderer).render([USER], add_generation_prompt=True, continue_final_message=True)


def test_variables_of_the_request_reach_the_template(renderer: TemplatePool) -> None:
    template = "{{ enable_thinking }} {{ documents[0].title }} {{ bos_token }}"
    documents = [{"title": "Doc", "text": "…"}]
    made = chat(renderer, template).render([USER], documents=documents, kwargs={"enable_thinking": False})
    assert made == "False Doc <s>"
    with pytest.raises(BadRequest, match="cannot set messages"):
        chat(renderer).render([USER], kwargs={"messages": []})
    with pytest.raises(BadRequest, match="list of objects"):
        chat(renderer).render([USER], tools=[print])  # type: ignore[list-item]


def test_the_request_may_bring_a_template_or_name_one(renderer: TemplatePool) -> None:
    made = ChatTemplate({"default": "default", "tool_use": "with tools"}, {}, renderer)
    assert made.render([USER]) == "default"
    assert made.render([USER], tools=TOOLS) == "with tools"
    assert made.render([USER], template="tool_use") == "with tools"
    assert made.render([USER], template="{{ 1 + 1 }}") == "2"
    with pytest.raises(BadRequest, match="at most"):
        made.render([USER], template="x" * (1 << 21))
    with pytest.raises(BadRequest, match="one of tool_use"):
        ChatTemplate({"tool_use": "x"}, {}, renderer).render([USER])


def test_a_model_without_template_says_what_to_do(renderer: TemplatePool) -> None:
    with pytest.raises(BadRequest, match=r"no chat template; start it with --chat-template"):
        chat(renderer, None).render([USER])


def test_templates_come_from_the_tokenizer_a_file_or_the_command_line(renderer: TemplatePool, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path / "model"))
    ours = ChatTemplate.from_tokenizer(tokenizer, renderer).render([USER])
    expected = AutoTokenizer.from_pretrained(tmp_path / "model").apply_chat_template(
        [USER], tokenize=False, add_generation_prompt=True
    )
    assert ours == expected
    assert ChatTemplate.from_tokenizer(tokenizer, renderer, "{{ 'given' }}").render([USER]) == "given"
    (tmp_path / "mine.jinja").write_text("{{ 'file' }}")
    assert (
        ChatTemplate.from_tokenizer(tokenizer, renderer, str(tmp_path / "mine.jinja")).default_template
        == "{{ 'file' }}"
    )
    with pytest.raises(ConfigError, match="neither a file nor a template"):
        read_template("missing.jinja")


def test_a_wrong_template_is_found_at_the_start(renderer: TemplatePool) -> None:
    chat(renderer).check()
    with pytest.raises(ConfigError, match=r"'default' cannot be used.*line 2"):
        chat(renderer, "\n{% for %}").check()
