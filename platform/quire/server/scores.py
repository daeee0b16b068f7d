"""`/score` and `/rerank`: how well texts go together, by whatever the model can: classes, embeddings, tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.types import Receive

from quire.errors import BadRequest
from quire.pooling import Pooled, PoolingParams
from quire.server.models import Served
from quire.server.pooling import Call, check_count, limits_of, make_call
from quire.server.prompts import tokenizing
from quire.server.schema_pooling import RerankRequest, ScoreFields, ScoreRequest, TextObject
from quire.server.service import Naming, Service
from quire.text.inputs import InputLimits
from quire.text.long_texts import Wanted
from quire.text.pooled_inputs import pair_prompts, pooled_prompts
from quire.text.scoring import pairs, score, scoring_task
from quire.types import Prompt

FIELD_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


@dataclass(frozen=True, kw_only=True)
class Side:
    """The texts on one side, and the field that they came in."""

    texts: Sequence[str]
    param: str


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """A call, and what makes scores of its results. slow: that takes a while."""

    call: Call
    scores: Callable[[Sequence[Pooled]], list[float]]
    slow: bool

    async def run(self) -> list[float]:
        """The score of each pair."""
        results = await self.call.job.results()
        return await self.call.service.written(self.slow, partial(self.scores, results))


def sides_of(fields: ScoreRequest) -> tuple[Side, Side]:
    """What is to be compared; raises BadRequest unless exactly one pair of fields was given."""
    known = ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")
    given = [name for name in known if getattr(fields, name) is not None]
    for names in FIELD_PAIRS:
        if given == list(names):
            first, second = (Side(texts=_list(getattr(fields, name)), param=name) for name in names)
            return first, second
    choices = ", ".join(f"`{first}` with `{second}`" for first, second in FIELD_PAIRS)
    got = ", ".join(f"`{name}`" for name in given) or "none of them"
    raise BadRequest(f"Exactly one of these is needed: {choices}; got {got}.", given[0] if given else "text_1")


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


async def prepare(
    service: Service,
    served: Served,
    fields: ScoreFields,
    naming: Naming,
    first: Side,
    second: Side,
    prefix: str,
    receive: Receive,
) -> Scoring:
    """Check, pair and tokenize; nothing runs yet. receive: tells when the client is gone."""
    task = scoring_task(served.name, served.info.tasks, served.info.labels)
    params = PoolingParams(task=task, use_activation=fields.use_activation)
    for side in (first, second):
        check_count(service, len(side.texts), side.param)
    couples = pairs(len(first.texts), len(second.texts))
    make = _pair_prompts if task == "classify" else _single_prompts
    limits = [limits_of(service, served, fields, side.param) for side in (first, second)]

    def work(wanted: Wanted) -> tuple[list[Prompt], Couples]:
        return make(served, fields, [replace(one, wanted=wanted) for one in limits], first, second, couples)

    size = sum(len(first.texts[a]) + len(second.texts[b]) for a, b in couples)  # a pair is a text of its own
    prompts, places = await tokenizing(service, receive, size, work)
    call = make_call(service, served, fields, naming, prompts, params, prefix)

    def scores(results: Sequence[Pooled]) -> list[float]:
        if task == "classify":
            return [float(results[place].numbers()[0]) for place, _ in places]
        return [score(task, results[a], results[b]) for a, b in places]

    return Scoring(call=call, scores=scores, slow=task == "token_embed")


Couples = Sequence[tuple[int, int]]


def _pair_prompts(
    served: Served,
    fields: ScoreFields,
    limits: Sequence[InputLimits],
    first: Side,
    second: Side,
    couples: Couples,
) -> tuple[list[Prompt], Couples]:
    """A prompt for each pair, and where its result will be."""
    prompts = pair_prompts(
        [(first.texts[a], second.texts[b]) for a, b in couples],
        served.tokenizer,
        limits[1],
        most_of_first=fields.max_tokens_per_query or None,
        most_of_second=fields.max_tokens_per_doc or None,
        token_types=served.info.token_types,
    )
    return prompts, [(place, place) for place in range(len(prompts))]


def _single_prompts(
    served: Served,
    fields: ScoreFields,
    limits: Sequence[InputLimits],
    first: Side,
    second: Side,
    couples: Couples,
) -> tuple[list[Prompt], Couples]:
    """A prompt for each different text of either side, and where the results of each pair will be."""
    prompts: list[Prompt] = []
    places: list[dict[str, int]] = []
    asked = (fields.max_tokens_per_query, fields.max_tokens_per_doc)
    for side, most, within in zip((first, second), asked, limits, strict=True):
        texts = list(dict.fromkeys(side.texts))
        places.append({text: len(prompts) + number for number, text in enumerate(texts)})
        prompts += pooled_prompts(texts, served.tokenizer, within, most_of_text=most or None)
    return prompts, [(places[0][first.texts[a]], places[1][second.texts[b]]) for a, b in couples]


def score_answer(call: Call, scores: Sequence[float]) -> dict[str, Any]:
    """The answer of `/score`."""
    data = [{"index": number, "object": "score", "score": one} for number, one in enumerate(scores)]
    return {**call.common(), "data": data, "usage": call.usage()}


def documents_of(fields: RerankRequest) -> list[str]:
    """The texts of the documents."""
    return list(map(text_of, fields.documents))


def text_of(given: str | TextObject) -> str:
    """A text that came as it is or as an object."""
    return given if isinstance(given, str) else given.text


def rerank_answer(call: Call, fields: RerankRequest, scores: Sequence[float]) -> dict[str, Any]:
    """The answer of `/rerank`: the best documents first, in their order where scores are equal."""
    texts = documents_of(fields)
    order = sorted(range(len(scores)), key=lambda number: -scores[number])[: fields.top_n or None]
    results: list[dict[str, Any]] = [{"index": number, "relevance_score": scores[number]} for number in order]
    if fields.return_documents:
        for result in results:
            result["document"] = {"text": texts[result["index"]], "multi_modal": None}
    num_tokens = call.job.num_prompt_tokens
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    head = call.common()
    return {"id": head["id"], "model": head["model"], "usage": usage, "results": results}
