"""The routes that give numbers instead of text: embeddings, classes, scores, what poolers give."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from quire.errors import BadRequest
from quire.pooling import POOLING_TASKS, PoolingParams
from quire.server import cohere, pooling, scores
from quire.server.body import json_body
from quire.server.errors import GENERATION_ERRORS
from quire.server.models import does, judges
from quire.server.routes_openai import json_response
from quire.server.schema_pooled import (
    ClassifiedList,
    CohereEmbeddings,
    EmbeddingList,
    PooledList,
    RankedList,
    ScoreList,
)
from quire.server.schema_pooling import (
    ClassifyRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from quire.server.scores import Side
from quire.server.service import Naming, Service
from quire.server.sse import unless_gone
from quire.server.vectors import check_encoding

POOLING_BODIES = (EmbeddingRequest, PoolingRequest, ClassifyRequest, ScoreRequest, RerankRequest, CohereEmbedRequest)


def _documented(body: type[BaseModel], answer: type[BaseModel], summary: str, **content: Any) -> dict[str, Any]:
    """What a route tells of itself."""
    good: dict[str, Any] = {"model": answer, "description": "The answer."}
    if content:
        good["content"] = content
    return {
        "response_model": None,
        "responses": {200: good, **GENERATION_ERRORS},
        "openapi_extra": json_body(body),
        "summary": summary,
    }


_BYTES: dict[str, Any] = {"application/octet-stream": {}}


def pooling_router(service: Service) -> APIRouter:
    """`/v1/embeddings`, `/v2/embed`, `/pooling`, `/classify`, `/score`, `/rerank`."""
    router = APIRouter(tags=["Pooling"])

    @router.post("/v1/embeddings", **_documented(EmbeddingRequest, EmbeddingList, "Embed texts", **_BYTES))
    async def create_embeddings(request: Request) -> Response:
        served, fields = await service.accept(request, EmbeddingRequest, does("embed"))
        if fields.normalize is not None:
            raise BadRequest("`normalize` is not known any more; say `use_activation` instead.", "normalize")
        check_encoding(fields)
        params = PoolingParams(task="embed", dimensions=fields.dimensions, use_activation=fields.use_activation)
        naming = Naming.of(request, fields.request_id)
        call = await pooling.prepare(service, served, fields, naming, params, "embd-", request.receive)
        return await unless_gone(request.receive, pooling.vectors(call, fields, "embedding", "embedding"))

    @router.post("/pooling", **_documented(PoolingRequest, PooledList, "Pool texts", **_BYTES))
    async def pool(request: Request) -> Response:
        served, fields = await service.accept(request, PoolingRequest, does(*POOLING_TASKS))
        if fields.dimensions is not None:
            raise BadRequest("`dimensions` is a field of /v1/embeddings only.", "dimensions")
        check_encoding(fields)
        task = fields.task or pooling.default_task(served)
        params = PoolingParams(task=task, use_activation=fields.use_activation)
        naming = Naming.of(request, fields.request_id)
        call = await pooling.prepare(service, served, fields, naming, params, "pooling-", request.receive)
        return await unless_gone(request.receive, pooling.vectors(call, fields, "pooling", "data"))

    @router.post("/classify", **_documented(ClassifyRequest, ClassifiedList, "Classify texts"))
    async def classify(request: Request) -> Response:
        served, fields = await service.accept(request, ClassifyRequest, does("classify"))
        params = PoolingParams(task="classify", use_activation=fields.use_activation)
        naming = Naming.of(request, fields.request_id)
        call = await pooling.prepare(service, served, fields, naming, params, "classify-", request.receive)
        return await unless_gone(request.receive, pooling.answer(call, pooling.classified(served)))

    @router.post("/v2/embed", **_documented(CohereEmbedRequest, CohereEmbeddings, "Embed texts, Cohere's shape"))
    async def embed(request: Request) -> Response:
        served, fields = await service.accept(request, CohereEmbedRequest, does("embed"))
        naming = Naming.of(request, fields.request_id)
        call = await cohere.prepare(service, served, fields, naming, request.receive)
        return json_response(await unless_gone(request.receive, cohere.answer(call, fields)))

    @router.post("/v1/embed", **_documented(CohereEmbedRequest, CohereEmbeddings, "Embed texts, Cohere's first shape"))
    async def embed_v1(request: Request) -> Response:
        served, fields = await service.accept(request, CohereEmbedRequest, does("embed"))
        naming = Naming.of(request, fields.request_id)
        call = await cohere.prepare(service, served, fields, naming, request.receive)
        return json_response(cohere.as_v1(await unless_gone(request.receive, cohere.answer(call, fields)), fields))

    _add_scores(router, service)
    return router


def _add_scores(router: APIRouter, service: Service) -> None:
    async def score(request: Request) -> Response:
        served, fields = await service.accept(request, ScoreRequest, judges, does("embed", "token_embed"))
        first, second = scores.sides_of(fields)
        naming = Naming.of(request, fields.request_id)
        scoring = await scores.prepare(service, served, fields, naming, first, second, "score-", request.receive)
        found = await unless_gone(request.receive, scoring.run())
        return json_response(scores.score_answer(scoring.call, found))

    async def rerank(request: Request) -> Response:
        served, fields = await service.accept(request, RerankRequest, judges, does("embed", "token_embed"))
        query = Side(texts=[scores.text_of(fields.query)], param="query")
        documents = Side(texts=scores.documents_of(fields), param="documents")
        naming = Naming.of(request, fields.request_id)
        scoring = await scores.prepare(service, served, fields, naming, query, documents, "rerank-", request.receive)
        found = await unless_gone(request.receive, scoring.run())
        return json_response(scores.rerank_answer(scoring.call, fields, found))

    for path in ("/score", "/v1/score"):
        about = _documented(ScoreRequest, ScoreList, "Score pairs of texts")
        router.add_api_route(path, score, methods=["POST"], **about)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        about = _documented(RerankRequest, RankedList, "Sort documents by a query")
        router.add_api_route(path, rerank, methods=["POST"], **about)
