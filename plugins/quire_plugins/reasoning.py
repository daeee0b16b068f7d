"""How models write down what they think, and a limit to how much of it there may be."""

from __future__ import annotations

from collections.abc import Iterable

from quire.hookspecs import hookimpl
from quire.records import Context, LogitsProcessor, ProcessesLogits, ReasoningParser
from quire_plugins import harmony

THINK = ("<think>", "</think>")
CHANNEL = ("<|channel>thought\n", "<channel|>")
SPOKEN = ("Here is my thought process:", "Here is my response:")
BRACKETS = ("[THINK]", "[/THINK]")


@hookimpl
def quire_reasoning_parsers() -> Iterable[ReasoningParser]:
    """Tags of the DeepSeek kind under the names of those that have them, and four other styles.

    The first two reason unless the prompt says they have already; the others reason when they begin to.
    """
    yield ReasoningParser("deepseek_r1", *THINK, _is_deepseek, implicit=True)
    yield ReasoningParser("qwen3", *THINK, _is_qwen, implicit=True)
    for name in ("deepseek_v3", "glm45", "olmo3", "nemotron_v3", "kimi_k2", "ernie45", "hunyuan_a13b"):
        yield ReasoningParser(name, *THINK, lambda template: False)
    yield ReasoningParser("granite", *SPOKEN, lambda template: SPOKEN[0] in template)
    yield ReasoningParser("mistral", *BRACKETS, lambda template: BRACKETS[0] in template, marks=BRACKETS)
    yield ReasoningParser(
        "gemma4", *CHANNEL, lambda template: "<|channel>" in template, marks=("<|channel>", "<channel|>")
    )
    yield ReasoningParser("openai_gptoss", harmony.ANALYSIS, harmony.END, harmony.matches, channels=harmony.CHANNELS)


def _is_deepseek(template: str) -> bool:
    return "</think>" in template and "<｜Assistant｜>" in template


def _is_qwen(template: str) -> bool:
    return "</think>" in template and "<|im_start|>" in template


@hookimpl
def quire_logits_processors() -> Iterable[LogitsProcessor]:
    """The limit. `reasoning_limit` is made by the server of `thinking_token_budget` and what it knows of the model."""

    def build(context: Context) -> ProcessesLogits:
        from quire_plugins.reasoning_limit import EndsReasoning  # imports torch

        del context
        return EndsReasoning()

    yield LogitsProcessor("reasoning-limit", {"reasoning_limit": dict}, build)
