"""Prepares and runs `/score` and `/rerank`: scores pairs of texts by classification, embeddings or token embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from starlette.types import Receive

from quire.errors import BadRequest
from quire.params.pooling import PoolingParams, PoolingResult
from quire.server.pooling.pooling import PoolingCall, check_count, input_limits, make_call
from quire.server.schemas.pooling import RerankRequest, ScoreFields, ScoreRequest, TextObject
from quire.server.service.models import ServedModel
from quire.server.service.prompts import run_text_work
from quire.server.service.service import ResponseIds, Service
from quire.text.inputs.inputs import InputLimits
from quire.text.inputs.pooling_inputs import pair_prompts, pooled_prompts
from quire.text.outputs.scoring import pairs, score, scoring_task
from quire.text.tokenizer.long_texts import ShouldContinue
from quire.types import Prompt

FIELD_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))

IndexPairs: TypeAlias = Sequence[tuple[int, int]]
"""Pairs of indices, one into each of two lists."""


@dataclass(frozen=True, kw_only=True)
class TextSide:
    """The texts of one side of all pairs. param: the field that they come from."""

    texts: Sequence[str]
    param: str


@dataclass(frozen=True, kw_only=True)
class ScoreCall:
    """A prepared call. scores: computes the scores from the results. is_slow: in a worker thread."""

    call: PoolingCall
    scores: Callable[[Sequence[PoolingResult]], list[float]]
    is_slow: bool

    async def run(self) -> list[float]:
        """Run to the end and return the score of each pair."""
        results = await self.call.job.results()
        return await self.call.service.encode(self.is_slow, partial(self.scores, results))


def text_sides(fields: ScoreRequest) -> tuple[TextSide, TextSide]:
    """The texts to compare; raises `BadRequest` unless exactly one pair of fields is given."""
    known = ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")
    given = [name for name in known if getattr(fields, name) is not None]
    for names in FIELD_PAIRS:
        if given == list(names):
            first, second = (TextSide(texts=_list(getattr(fields, name)), param=name) for name in names)
            return first, second
    choices = ", ".join(f"`{first}` with `{second}`" for first, second in FIELD_PAIRS)
    got = ", ".join(f"`{name}`" for name in given) or "none of them"
    raise BadRequest(f"Exactly one of these is needed: {choices}; got {got}.", given[0] if given else "text_1")


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


async def prepare(
    service: Service,
    served: ServedModel,
    fields: ScoreFields,
    ids: ResponseIds,
    first: TextSide,
    second: TextSide,
    prefix: str,
    receive: Receive,
) -> ScoreCall:
    """Check the fields, pair and tokenize; nothing runs yet. receive: notices a disconnect."""
    task = scoring_task(served.name, served.info.tasks, served.info.labels)
    params = PoolingParams(task=task, use_activation=fields.use_activation)
    for side in (first, second):
        check_count(service, len(side.texts), side.param)
    index_pairs = pairs(len(first.texts), len(second.texts))
    make = _pair_prompts if task == "classify" else _single_prompts
    limits = [input_limits(service, served, fields, side.param) for side in (first, second)]

    def work(should_continue: ShouldContinue) -> tuple[list[Prompt], IndexPairs]:
        limited = [replace(limit, should_continue=should_continue) for limit in limits]
        return make(served, fields, limited, first, second, index_pairs)

    size = sum(len(first.texts[a]) + len(second.texts[b]) for a, b in index_pairs)  # pairs are tokenized separately
    prompts, result_pairs = await run_text_work(service, receive, size, work)
    call = make_call(service, served, fields, ids, prompts, params, prefix)

    def scores(results: Sequence[PoolingResult]) -> list[float]:
        if task == "classify":
            return [float(results[index].numbers()[0]) for index, _ in result_pairs]
        return [score(task, results[a], results[b]) for a, b in result_pairs]

    return ScoreCall(call=call, scores=scores, is_slow=task == "token_embed")


def _pair_prompts(
    served: ServedModel,
    fields: ScoreFields,
    limits: Sequence[InputLimits],
    first: TextSide,
    second: TextSide,
    index_pairs: IndexPairs,
) -> tuple[list[Prompt], IndexPairs]:
    """One prompt per pair, and the indices of the results of each pair."""
    prompts = pair_prompts(
        [(first.texts[a], second.texts[b]) for a, b in index_pairs],
        served.tokenizer,
        limits[1],
        max_first_tokens=fields.max_tokens_per_query or None,
        max_second_tokens=fields.max_tokens_per_doc or None,
        token_types=served.info.token_types,
    )
    return prompts, [(index, index) for index in range(len(prompts))]


def _single_prompts(
    served: ServedModel,
    fields: ScoreFields,
    limits: Sequence[InputLimits],
    first: TextSide,
    second: TextSide,
    index_pairs: IndexPairs,
) -> tuple[list[Prompt], IndexPairs]:
    """One prompt per distinct text of each side, and the indices of the results of each pair."""
    prompts: list[Prompt] = []
    indices: list[dict[str, int]] = []
    max_tokens = (fields.max_tokens_per_query, fields.max_tokens_per_doc)
    for side, max_length, limit in zip((first, second), max_tokens, limits, strict=True):
        texts = list(dict.fromkeys(side.texts))
        indices.append({text: len(prompts) + number for number, text in enumerate(texts)})
        prompts += pooled_prompts(texts, served.tokenizer, limit, max_text_tokens=max_length or None)
    return prompts, [(indices[0][first.texts[a]], indices[1][second.texts[b]]) for a, b in index_pairs]


def score_body(call: PoolingCall, scores: Sequence[float]) -> dict[str, Any]:
    """The body of the answer of `/score`."""
    data = [{"index": number, "object": "score", "score": value} for number, value in enumerate(scores)]
    return {**call.base_fields(), "data": data, "usage": call.usage()}


def document_texts(fields: RerankRequest) -> list[str]:
    return list(map(text_of, fields.documents))


def text_of(given: str | TextObject) -> str:
    """The text of a query or document, which may be an object."""
    return given if isinstance(given, str) else given.text


def rerank_body(call: PoolingCall, fields: RerankRequest, scores: Sequence[float]) -> dict[str, Any]:
    """The body of the answer of `/rerank`: the best documents first, equal ones in the order of the request."""
    texts = document_texts(fields)
    order = sorted(range(len(scores)), key=lambda number: -scores[number])[: fields.top_n or None]
    results: list[dict[str, Any]] = [{"index": number, "relevance_score": scores[number]} for number in order]
    if fields.return_documents:
        for result in results:
            result["document"] = {"text": texts[result["index"]], "multi_modal": None}
    num_tokens = call.job.num_prompt_tokens
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    base = call.base_fields()
    return {"id": base["id"], "model": base["model"], "usage": usage, "results": results}
