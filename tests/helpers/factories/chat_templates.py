"""Messages, tools and templates, and the prompts that transformers renders with them."""

from typing import Any

from tiny_tokenizers import TEMPLATE
from transformers.utils.chat_template_utils import render_jinja_template

from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import ChatTemplate

USER = {"role": "user", "content": "What is 2 + 2?"}


PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}


ASSISTANT = {"role": "assistant", "content": "It is  "}


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "quote": "<a> & 'é'"}}}]


LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


TOOL_USE = """
{%- if tools %}
    {{- "# Tools\n" }}
    {%- for tool in tools %}
        {{- tool | tojson }}{{ "\n" }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and ns.last >= 0 %}
        {%- set ns.last = (messages|length - 1) - loop.index0 %}{% break %}
    {%- endif %}
{%- endfor %}
{%- macro show(call) %}
    {{- call.function.name }}({{ call.function.arguments | tojson(indent=2) }})
{%- endmacro %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}{{ show(call) }}{% endfor %}
    {%- elif message.role == "assistant" %}
        {% generation %}{{ message.content }}{% endgeneration %}
    {%- else %}
        {{- message.role ~ ": " ~ message.content ~ eos_token ~ "\n" }}
    {%- endif %}
{%- endfor %}
{{- ns.last }}{{ dict(a=1).items() | list }}
"""


PARTS = (
    "{% for message in messages %}{{ message.role }}:{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<{{ part.type }}>{% endif %}{% endfor %}\n{% endfor %}"
)


def chat(renderer: TemplatePool, template: str | None = TEMPLATE, **kwargs: Any) -> ChatTemplate:
    templates = {} if template is None else {"default": template}
    return ChatTemplate(templates, {"bos_token": "<s>", "eos_token": "</s>"}, renderer, **kwargs)


def theirs(template: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    variables = {"bos_token": "<s>", "eos_token": "</s>", **kwargs}
    (text,), _ = render_jinja_template([messages], chat_template=template, **variables)
    return text
