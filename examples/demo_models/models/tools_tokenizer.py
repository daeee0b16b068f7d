"""What the demo with tools reads: its chat template, its tokenizer, and batches to learn from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from data.tools.tool_dialogues import Message, training_dialogues
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens, but no special ones: decoding leaves them in the text."""
IGNORE = -100

# As Hermes models write it, without their long instruction. Of a tool's parameters the properties are shown, and which
# are required unless all are. Content is a text or a list of parts.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content -%}{%- for part in content -%}{{ part['text'] }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- macro required(schema) -%}
    {%- if schema.get('required', []) | length < schema.get('properties', {}) | length -%}
        {{- ', "required": ' + (schema.get('required', []) | tojson) -}}
    {%- endif -%}
{%- endmacro -%}
{%- if tools or messages[0]['role'] == 'system' -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if messages[0]['role'] == 'system' -%}{{ text(messages[0]['content']) }}{%- endif -%}
    {%- if tools -%}
        {{- '\\n\\n' if messages[0]['role'] == 'system' and messages[0]['content'] else '' -}}
        {{- '<tools>' -}}
        {%- for tool in tools -%}
            {%- set function = tool['function'] -%}
            {%- set schema = function.get('parameters') or {} -%}
            {{- '\\n{"name": ' + (function['name'] | tojson) -}}
            {%- if function.get('description') -%}
                {{- ', "description": ' + (function['description'] | tojson) -}}
            {%- endif -%}
            {{- ', "parameters": ' + (schema.get('properties', {}) | tojson) + required(schema) + '}' -}}
        {%- endfor -%}
        {{- '\\n</tools>' -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] == 'tool' -%}
        {{- '<|im_start|>tool' if loop.first or messages[loop.index0 - 1]['role'] != 'tool' else '' -}}
        {{- '\\n<tool_response>\\n' + text(message['content']) + '\\n</tool_response>' -}}
        {{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1]['role'] != 'tool' else '' -}}
    {%- elif message['role'] != 'system' or not loop.first -%}
        {{- '<|im_start|>' + message['role'] + '\\n' + text(message['content']) -}}
        {%- for call in message.get('tool_calls') or [] -%}
            {%- set arguments = call['function']['arguments'] -%}
            {{- '' if loop.first and not message['content'] else '\\n' -}}
            {{- '<tool_call>\\n{"name": ' + (call['function']['name'] | tojson) + ', "arguments": ' -}}
            {{- arguments if arguments is string else arguments | tojson -}}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
_ANSWER = re.compile(rf"(?<={re.escape(START)}assistant\n).*?{re.escape(END)}", re.DOTALL)


def train_tokenizer(vocab_size: int, dialogues: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on generated dialogues.

    Words never contain the space before them, digits and newlines stand alone: a name is the same tokens in a sentence
    and between the quotation marks of JSON, so that it can be copied without knowing it.
    """
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(r"\n|\d|[^\W\d_]+|(?:_|[^\w\n])+"), behavior="isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in (PAD, START, END)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample_text(dialogues), trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def _sample_text(dialogues: int) -> Iterator[str]:
    """The text from which the tokenizer learns, role names included."""
    stream = training_dialogues("tokenizer")
    for _ in range(dialogues):
        messages, tools = next(stream)
        for tool in tools:
            function = tool["function"]
            shown = {**function, "parameters": function["parameters"]["properties"]}
            yield json.dumps(shown, ensure_ascii=False)
        for message in messages:
            yield f"{message['role']}\n{message['content']}"
            for call in message.get("tool_calls", ()):
                yield json.dumps(call["function"], ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Dialogues side by side in rows, each of which sees only itself.

    ids, targets: [rows, length]; targets are IGNORE outside of answers. visible: [rows, 1, length, length].
    """

    ids: torch.Tensor
    targets: torch.Tensor
    visible: torch.Tensor


class Encoder:
    """Turns dialogues into tokens by the chat template, and into batches."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def dialogue(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> tuple[list[int], list[int]]:
        """Ids of a dialogue, and targets that are IGNORE outside of what the assistant says."""
        text = self._tokenizer.apply_chat_template(list(messages), tools=list(tools) or None, tokenize=False)
        ids: list[int] = []
        targets: list[int] = []
        end = 0
        # In pieces, which equals encoding the whole: newlines and special tokens never merge with others.
        for answer in _ANSWER.finditer(text):
            before, said = self._ids(text[end : answer.start()]), self._ids(answer.group())
            ids += before + said
            targets += [IGNORE] * len(before) + said
            end = answer.end()
        return ids, targets

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def batch(self, seed: str, rows: int, length: int, *, short: bool = False) -> Batch:
        """The batch of a seed: so many rows of so many tokens; short: of short dialogues."""
        stream = training_dialogues(seed, short=short)
        filled = [self._row(stream, length) for _ in range(rows)]
        ids, targets, owners = (torch.tensor([row[part] for row in filled]) for part in range(3))
        same = owners[:, :, None] == owners[:, None, :]
        return Batch(ids=ids, targets=targets, visible=same.tril()[:, None])

    def _row(
        self, stream: Iterator[tuple[list[Message], list[dict[str, Any]]]], length: int
    ) -> tuple[list[int], list[int], list[int]]:
        """Ids, targets and the number of the dialogue at each position. The last dialogue may be cut off."""
        ids: list[int] = []
        targets: list[int] = []
        owners: list[int] = []
        number = 0
        while len(ids) < length:
            new_ids, new_targets = self.dialogue(*next(stream))
            ids, targets = ids + new_ids, targets + new_targets
            owners += [number] * len(new_ids)
            number += 1
        return ids[:length], targets[:length], owners[:length]
