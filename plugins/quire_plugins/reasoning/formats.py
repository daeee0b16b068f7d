"""Reasoning formats of models, and the limit on reasoning tokens."""

from __future__ import annotations

from collections.abc import Iterable

from quire.plugin import Context, LogitsProcessor, LogitsProcessorImpl, ReasoningParser, hookimpl
from quire_plugins.reasoning import harmony

THINK = ("<think>", "</think>")
CHANNEL = ("<|channel>thought\n", "<channel|>")
SPOKEN = ("Here is my thought process:", "Here is my response:")
BRACKETS = ("[THINK]", "[/THINK]")


@hookimpl
def quire_reasoning_parsers() -> Iterable[ReasoningParser]:
    """`<think>` tags under the names of the models that use them, and four other formats.

    Models of the first two names reason unless the prompt has closed the section; the others reason if their answer
    opens it.
    """
    yield ReasoningParser("deepseek_r1", *THINK, _is_deepseek, implicit=True)
    yield ReasoningParser("qwen3", *THINK, _is_qwen, implicit=True)
    for name in ("deepseek_v3", "glm45", "olmo3", "nemotron_v3", "kimi_k2", "ernie45", "hunyuan_a13b"):
        yield ReasoningParser(name, *THINK, lambda template: False)
    yield ReasoningParser("granite", *SPOKEN, lambda template: SPOKEN[0] in template)
    yield ReasoningParser("mistral", *BRACKETS, lambda template: BRACKETS[0] in template, special_tokens=BRACKETS)
    yield ReasoningParser(
        "gemma4", *CHANNEL, lambda template: "<|channel>" in template, special_tokens=("<|channel>", "<channel|>")
    )
    yield ReasoningParser("openai_gptoss", harmony.ANALYSIS, harmony.END, harmony.matches, channels=harmony.CHANNELS)


def _is_deepseek(template: str) -> bool:
    return "</think>" in template and "<｜Assistant｜>" in template


def _is_qwen(template: str) -> bool:
    return "</think>" in template and "<|im_start|>" in template


@hookimpl
def quire_logits_processors() -> Iterable[LogitsProcessor]:
    """The reasoning budget. The server makes its field `reasoning_limit` from `thinking_token_budget` and the model's
    delimiters.
    """

    def build(context: Context) -> LogitsProcessorImpl:
        from quire_plugins.reasoning.budget import ReasoningBudget  # imports torch

        del context
        return ReasoningBudget()

    yield LogitsProcessor("reasoning-limit", {"reasoning_limit": dict}, build)
