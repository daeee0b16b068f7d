"""The routes of pooling models: embeddings, classes, scores and raw pooler outputs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from quire.errors import BadRequest
from quire.params.pooling import POOLING_TASKS, PoolingParams
from quire.server.http.responses import GENERATION_ERRORS, json_response
from quire.server.http.sse import cancel_on_disconnect
from quire.server.pooling import cohere, pooling, scores
from quire.server.pooling.embedding_format import check_encoding
from quire.server.pooling.scores import TextSide
from quire.server.schemas.pooling import (
    ClassifyRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from quire.server.schemas.pooling_responses import (
    ClassifiedList,
    CohereEmbeddings,
    EmbeddingList,
    PooledList,
    RankedList,
    ScoreList,
)
from quire.server.service.models import is_cross_encoder, supports
from quire.server.service.service import ResponseIds, get_service
from quire.types.request_model import json_body

POOLING_BODIES = (EmbeddingRequest, PoolingRequest, ClassifyRequest, ScoreRequest, RerankRequest, CohereEmbedRequest)
SCORING_MODELS = (is_cross_encoder, supports("embed", "token_embed"))
"""Which models a request without `model` prefers for scores."""


def _route_options(body: type[BaseModel], answer: type[BaseModel], summary: str, **content: Any) -> dict[str, Any]:
    """The arguments of a route decorator. content: further media types of the response."""
    success: dict[str, Any] = {"model": answer, "description": "The answer."}
    if content:
        success["content"] = content
    return {
        "response_model": None,
        "responses": {200: success, **GENERATION_ERRORS},
        "openapi_extra": json_body(body),
        "summary": summary,
    }


_BYTES: dict[str, Any] = {"application/octet-stream": {}}


router = APIRouter(tags=["Pooling"])


@router.post("/v1/embeddings", **_route_options(EmbeddingRequest, EmbeddingList, "Embed texts", **_BYTES))
async def create_embeddings(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, EmbeddingRequest, supports("embed"))
    if fields.normalize is not None:
        raise BadRequest("`normalize` was removed; use `use_activation` instead.", "normalize")
    check_encoding(fields)
    params = PoolingParams(task="embed", dimensions=fields.dimensions, use_activation=fields.use_activation)
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await pooling.prepare(service, served, fields, ids, params, "embd-", request.receive)
    return await cancel_on_disconnect(request.receive, pooling.run_vectors(call, fields, "embedding", "embedding"))


@router.post("/pooling", **_route_options(PoolingRequest, PooledList, "Pool texts", **_BYTES))
async def pool(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, PoolingRequest, supports(*POOLING_TASKS))
    if fields.dimensions is not None:
        raise BadRequest("`dimensions` is a field of /v1/embeddings only.", "dimensions")
    check_encoding(fields)
    task = fields.task or pooling.default_task(served)
    params = PoolingParams(task=task, use_activation=fields.use_activation)
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await pooling.prepare(service, served, fields, ids, params, "pooling-", request.receive)
    return await cancel_on_disconnect(request.receive, pooling.run_vectors(call, fields, "pooling", "data"))


@router.post("/classify", **_route_options(ClassifyRequest, ClassifiedList, "Classify texts"))
async def classify(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, ClassifyRequest, supports("classify"))
    params = PoolingParams(task="classify", use_activation=fields.use_activation)
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await pooling.prepare(service, served, fields, ids, params, "classify-", request.receive)
    return await cancel_on_disconnect(request.receive, pooling.run(call, pooling.class_item(served)))


@router.post("/v2/embed", **_route_options(CohereEmbedRequest, CohereEmbeddings, "Embed texts, Cohere's shape"))
async def embed(request: Request) -> Response:
    return await _embed(request, version=2)


@router.post("/v1/embed", **_route_options(CohereEmbedRequest, CohereEmbeddings, "Embed texts, Cohere's first shape"))
async def embed_v1(request: Request) -> Response:
    return await _embed(request, version=1)


async def _embed(request: Request, version: int) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, CohereEmbedRequest, supports("embed"))
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await cohere.prepare(service, served, fields, ids, request.receive)
    return await cancel_on_disconnect(request.receive, cohere.run(call, fields, version))


async def score(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, ScoreRequest, *SCORING_MODELS)
    first, second = scores.text_sides(fields)
    ids = ResponseIds.from_request(request, fields.request_id)
    scoring = await scores.prepare(service, served, fields, ids, first, second, "score-", request.receive)
    found = await cancel_on_disconnect(request.receive, scoring.run())
    return json_response(scores.score_body(scoring.call, found))


async def rerank(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, RerankRequest, *SCORING_MODELS)
    query = TextSide(texts=[scores.text_of(fields.query)], param="query")
    documents = TextSide(texts=scores.document_texts(fields), param="documents")
    ids = ResponseIds.from_request(request, fields.request_id)
    scoring = await scores.prepare(service, served, fields, ids, query, documents, "rerank-", request.receive)
    found = await cancel_on_disconnect(request.receive, scoring.run())
    return json_response(scores.rerank_body(scoring.call, fields, found))


for _path in ("/score", "/v1/score"):
    router.add_api_route(
        _path, score, methods=["POST"], **_route_options(ScoreRequest, ScoreList, "Score pairs of texts")
    )
for _path in ("/rerank", "/v1/rerank", "/v2/rerank"):
    router.add_api_route(
        _path, rerank, methods=["POST"], **_route_options(RerankRequest, RankedList, "Sort documents by a query")
    )
