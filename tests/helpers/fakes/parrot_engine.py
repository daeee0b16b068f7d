"""An engine whose output repeats the prompt."""

from collections import deque
from typing import Any

from quire import LLM, BeamSearchParams
from quire.errors import Overloaded
from quire.types import EngineStats, ModelInfo, Request, SeqDelta


class ParrotEngine:
    """Says the last words of each prompt again, one token per step for each request, latest request first."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.waiting: dict[str, deque[SeqDelta]] = {}
        self.requests: list[Request] = []
        self.aborted: list[tuple[str, int | None]] = []
        self.most_requests = 99
        self.interrupt_at: int | None = None
        self.fail_at: int | None = None
        self.steps = self.resets = self.closes = 0

    def add(self, request: Request) -> None:
        if len(self.waiting) >= self.most_requests:
            raise Overloaded("full")
        self.requests.append(request)
        params, ids = request.params, request.prompt.token_ids
        beams = isinstance(params, BeamSearchParams)
        deltas: deque[SeqDelta] = deque()
        for index in range(params.num_seqs):
            said = ids[-(params.max_tokens or len(ids)) :]
            steps = [said] if beams else [(i,) for i in said]
            for number, step in enumerate(steps):
                last = number == len(steps) - 1
                deltas.append(
                    SeqDelta(
                        request_id=request.id,
                        index=index,
                        token_ids=tuple(step),
                        finish_reason="length" if last else None,
                        num_cached_tokens=0 if not deltas else None,
                        cumulative_logprob=-1.0 - index if beams else None,
                    )
                )
        self.waiting[request.id] = deltas

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))
        if index is None:
            self.waiting.pop(request_id, None)

    def step(self) -> list[SeqDelta]:
        self.steps += 1
        if self.steps == self.interrupt_at:
            raise KeyboardInterrupt
        if self.steps == self.fail_at:
            name = next(iter(self.waiting))
            return [SeqDelta(request_id=name, error=("PluginFailed", "it broke"), finish_reason="error")]
        deltas = [queue.popleft() for queue in reversed(self.waiting.values()) if queue]
        self.waiting = {name: queue for name, queue in self.waiting.items() if queue}
        return deltas

    def stats(self) -> EngineStats:
        return EngineStats(model=self.info.name, num_waiting=len(self.waiting))

    def reset_prefix_cache(self) -> int:
        self.resets += 1
        return 0

    def close(self) -> None:
        self.closes += 1


def engine_of(llm: LLM) -> ParrotEngine:
    engine: ParrotEngine = llm._engine
    return engine


def texts(outputs: list[Any]) -> list[str]:
    return [output.outputs[0].text for output in outputs]
