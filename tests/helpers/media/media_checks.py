"""The checks of a family whose prompts have media: what `family_checks` checks of text, for any modality.

Logits, tokens and adapters of a tiny random model are those of transformers and peft. Greedy tokens are checked in one
pass: they are those of transformers if each is the most likely one after the tokens before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from engine_rig import Rig, greedy, rig_of
from llava_rig import our_logits
from parity_model import total_preemptions
from torch import Tensor

from quire.engine.loading.load import LoadedModel
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import AdapterRef, ModelInfo, Prompt, WeightedAdapter
from quire_models import TowerCall
from quire_models.towers.tower import SupportsDummyInput

TOLERANCE = 1e-4
NEW_TOKENS = 20
BYTES = range(256)
"""Tokens of answers; the ids after them stand for media in some models, or begin and end them."""

PAGE, ROOMY = 16, 400
"""Tokens of a page; pages for every seq at once."""

SPARE = 1
"""Pages beyond the prompts of two seqs, whose answers take at least one each."""


@dataclass(frozen=True)
class Question:
    """A prompt. media: items by modality, in the order of their markers in the text."""

    text: str
    media: Mapping[str, Sequence[Any]] = field(default_factory=dict)


class MediaModel(Protocol):
    """A tiny random model on disk, and the same in transformers.

    folder: the model with its tokenizer. adapter: made with peft, None if the family has none. questions: asked
    together; the longest comes last, and the first has no medium where the family permits that. later: asked after
    them; such prompts begin as earlier ones do, and continue otherwise or have another medium. settings: of the
    engine. least_step: tokens of the longest medium, where one must be computed in one step; else 1.
    """

    folder: Path
    adapter: Path | None
    questions: Sequence[Question]
    later: Sequence[Question]
    settings: Mapping[str, Any]
    least_step: int

    def check_inputs(self, prompts: Sequence[Prompt]) -> None:
        """Raises AssertionError if prompts of the questions are not what transformers' processor makes of them."""
        ...

    def logits(self, prompt: Prompt, answer: Sequence[int], question: Question, adapted: bool) -> Tensor:
        """[tokens, vocab] by transformers, of the prompt of a question, or the decoder's part of it, and an answer."""
        ...


def check_media_family(model: MediaModel, found: Registry) -> None:
    """Everything that holds for a family, with four engines. Raises AssertionError."""
    with _engine(model, found, 7, page_size=PAGE, num_pages=ROOMY) as rig:
        prompts = [_prompt(model, found, rig.engine.info, question) for question in model.questions]
        model.check_inputs(prompts)
        _check_logits(model, rig.engine.loaded, prompts)
        answers = _answers(rig, prompts)
        _check_answers(model, model.questions, prompts, answers, False)
        kinds = len({token for answer in answers for token in answer.tokens})
        assert kinds > 20, f"the model says only {kinds} different tokens, which would hide mistakes"
        if model.adapter is not None:
            _check_adapted(rig, model, prompts, answers)
        _check_prefix_hits(rig, model, found)
        _check_dummy_input(rig.engine.loaded)
    with _engine(model, found, 1, page_size=PAGE, num_pages=ROOMY) as rig:
        _same(_answers(rig, prompts[:2]), answers[:2], "in chunks of 1")
    order = [len(prompts) - 1, *range(len(prompts) - 1)]
    pages = sum(-(-len(prompts[i].token_ids) // PAGE) for i in order[:2]) + SPARE
    for way, swap in ("recompute", 0.0), ("swap", 0.02):
        room = {"page_size": PAGE, "num_pages": pages, "enable_prefix_caching": False}
        settings = {**room, "preemption": way, "swap_space": swap}
        with _engine(model, found, 33, **settings) as rig:
            _same(_answers(rig, [prompts[i] for i in order]), [answers[i] for i in order], f"by {way}")
            assert total_preemptions(rig)[way == "swap"] > 0, f"no seq was preempted by {way}"


def media_answers(model: MediaModel, found: Registry, rig: Rig) -> list[list[int]]:
    """Tokens of the answers to all questions, without and with the adapter if there is one."""
    prompts = [_prompt(model, found, rig.engine.info, question) for question in model.questions]
    adapted = [False] * len(prompts)
    if model.adapter is not None:
        rig.engine.load_adapter("adapter", model.adapter)
        prompts, adapted = [*prompts, *prompts], [*adapted, *[True] * len(prompts)]
    return [answer.tokens for answer in _answers(rig, prompts, adapted, 8)]


@dataclass(frozen=True)
class _Answer:
    tokens: list[int]
    logprobs: list[float]


def _prompt(model: MediaModel, found: Registry, info: ModelInfo, question: Question) -> Prompt:
    tokenizer = Tokenizer.load(model.folder)
    media = {modality: list(items) for modality, items in question.media.items()}
    value = {"prompt": question.text, "multi_modal_data": media} if media else question.text
    return to_prompt(value, tokenizer, multimodal=MultimodalProcessor(found, info, tokenizer))  # type: ignore[arg-type]


def _engine(model: MediaModel, found: Registry, step: int, **settings: Any) -> Any:
    """step: tokens of a step, if no medium must be computed in one."""
    settings = {**model.settings, **settings, "max_num_batched_tokens": max(step, model.least_step)}
    return rig_of(model.folder, found, **settings)


def _check_logits(model: MediaModel, loaded: LoadedModel, prompts: Sequence[Prompt]) -> None:
    """Of each prompt, computed whole; models that read media by cross-attention are compared by their answers."""
    if loaded.decoder.encoder_input is not None:
        return
    for question, prompt in zip(model.questions, prompts, strict=True):
        wanted = model.logits(prompt, (), question, False)
        worst = (our_logits(loaded, prompt) - wanted).abs().max().item()
        assert worst <= TOLERANCE, f"{question.text!r}: logits differ by up to {worst:.2g}"


def _answers(
    rig: Rig, prompts: Sequence[Prompt], adapted: Sequence[bool] = (), max_tokens: int = NEW_TOKENS
) -> list[_Answer]:
    """Answers to the prompts, all in one batch. adapted: which of them use the adapter, if any does."""
    use = (WeightedAdapter(AdapterRef(name="adapter")),)
    params = greedy(max_tokens, ignore_eos=True, logprobs=0, allowed_token_ids=BYTES)
    ids = [
        rig.add(prompt, params, adapters=use if yes else ())
        for prompt, yes in zip(prompts, adapted or [False] * len(prompts), strict=True)
    ]
    answers = rig.drain()
    for request_id in ids:
        last = answers[request_id, 0].last
        assert last.finish_reason == "length", last
    each = [answers[request_id, 0] for request_id in ids]
    return [_Answer(one.token_ids, [position.logprob for position in one.logprobs]) for one in each]


def _check_answers(
    model: MediaModel,
    questions: Sequence[Question],
    prompts: Sequence[Prompt],
    answers: Sequence[_Answer],
    adapted: bool,
) -> None:
    """Each token is the most likely one by transformers, with the same log-probability."""
    for question, prompt, answer in zip(questions, prompts, answers, strict=True):
        what = f"{question.text!r}, adapted: {adapted}"
        logits = model.logits(prompt, answer.tokens, question, adapted)[-len(answer.tokens) - 1 : -1]
        assert logits[:, BYTES].argmax(-1).tolist() == answer.tokens, what
        wanted = logits.log_softmax(-1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        worst = (torch.tensor(answer.logprobs) - wanted).abs().max().item()
        assert worst <= 2 * TOLERANCE, f"{what}: log-probabilities differ by up to {worst:.2g}"


def _same(found: Sequence[_Answer], wanted: Sequence[_Answer], how: str) -> None:
    assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted], f"tokens change {how}"


def _check_adapted(rig: Rig, model: MediaModel, prompts: Sequence[Prompt], plain: Sequence[_Answer]) -> None:
    """A mixed batch of the base, whose tokens stay the same, and the adapter."""
    rig.engine.load_adapter("adapter", model.adapter)  # type: ignore[arg-type]
    count = len(prompts)
    found = _answers(rig, [*prompts, *prompts], [False] * count + [True] * count)
    _same(found[:count], plain, "beside adapted seqs")
    _check_answers(model, model.questions, prompts, found[count:], True)
    assert [one.tokens for one in found[count:]] != [one.tokens for one in plain], "the adapter changes no token"


def _check_prefix_hits(rig: Rig, model: MediaModel, found: Registry) -> None:
    """Prompts that leave earlier ones in the middle of their pages, or have another medium, base and adapted."""
    prompts = [_prompt(model, found, rig.engine.info, question) for question in model.later]
    for adapted in (False, True) if model.adapter is not None else (False,):
        before = rig.engine.stats().num_cached_tokens_total
        answers = _answers(rig, prompts, [adapted] * len(prompts))
        _check_answers(model, model.later, prompts, answers, adapted)
        cached = rig.engine.stats().num_cached_tokens_total
        assert cached > before, f"no cached pages were used, adapted: {adapted}"


def _check_dummy_input(loaded: LoadedModel) -> None:
    """The example that memory is measured with is what the tower takes."""
    tower: Any = loaded.module.tower
    if isinstance(tower, SupportsDummyInput):
        item, num_rows = tower.dummy_input()
        with torch.inference_mode():
            assert len(tower([item], TowerCall("cpu"))[0]) == num_rows
