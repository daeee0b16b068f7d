"""Whole answers: run a job to its end and write what came of it, large ones in a worker thread.

It knows no wire shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from quire.server.answer_size import is_large
from quire.server.job import Job
from quire.server.models import Served
from quire.server.service import Service
from quire.text.outputs import RequestOutput

Shape = Callable[[Sequence[RequestOutput]], dict[str, Any]]
"""Brings one output per prompt into the shape of the wire."""


async def written(service: Service, served: Served, job: Job, shape: Shape) -> Response:
    """The answer with all that came of a job."""
    await job.run(lambda number, piece: None)

    def write() -> bytes:
        return msgspec.json.encode(shape(job.outputs()))

    num_tokens = sum(collector.num_output_tokens for collector in job.collectors)
    num_prompt = sum(len(request.prompt.token_ids) for request in job.requests)
    params = job.requests[0].params
    large = is_large(params, num_tokens, num_prompt, served.info.vocab_size)
    return Response(await service.written(large, write), media_type="application/json")
