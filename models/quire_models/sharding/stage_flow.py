"""What a rank of one stage gets from the stage before, and gives to the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from quire_kernels.groups.stage_link import StageLink
from quire_models.sharding.stages import Stage, cuts

Step = Callable[[Tensor, Any], Tensor]

INPUT = ""
"""Name of the first block's input among the tensors of a message."""

LAST_CALL = 1 << 40
"""Number of a call that stands for all that are left of a plan."""


class StageFailed(RuntimeError):
    """An earlier stage could not compute its part of a forward pass; the message says why."""


class StageFlow:
    """Hidden states on their way through the stages. source: from the stage before. sink: to the next one.

    Both ends number the forward passes of a plan alike. failures: of sequences, by id, as the stages before and this
    one have found them in the current plan; they arrive at the last stage.
    """

    def __init__(self, source: StageLink | None, sink: StageLink | None) -> None:
        self._source, self._sink = source, sink
        self._plan = self._call = self._oldest = 0
        self._early: dict[int, list[tuple[dict[str, Any], dict[str, Tensor]]]] = {}
        self.failures: dict[int, str] = {}

    def start_plan(self, number: int) -> None:
        """The forward passes from now on are those of this plan."""
        self._plan, self._call, self.failures = number, 0, {}

    def forget_before(self, number: int) -> None:
        """Drop what has arrived, and what will, for plans before this one: they have ended."""
        self._oldest = number
        self._early = {plan: messages for plan, messages in self._early.items() if plan >= number}

    def receive(self, fwd: Any) -> Tensor:
        """Input of the stage's first block, [tokens, width]; what blocks share is in `fwd.step_cache` then.

        Raises StageFailed, or RankLost.
        """
        assert self._source is not None, "the first stage looks embeddings up"
        self._call += 1
        tensors = self._await()
        x = tensors.pop(INPUT)
        fwd.step_cache.update(tensors)
        return x

    def relay(self, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` returns at the first stage, at each of them; every stage must ask for it. Raises RankLost."""
        self._call += 1
        found = compute() if self._source is None else self._await()[INPUT]
        if self._sink is not None:
            self._sink.send(self._header(self._call, None), {INPUT: found})
        return found

    def _await(self) -> dict[str, Tensor]:
        """What belongs to the current forward pass. Messages of other plans are kept for these."""
        assert self._source is not None
        while True:
            early = self._early.get(self._plan)
            header, tensors = early.pop(0) if early else self._source.receive()
            if header["plan"] != self._plan:
                if header["plan"] >= self._oldest:
                    self._early.setdefault(header["plan"], []).append((header, tensors))
            elif header["call"] >= self._call:
                break
        if header["error"] is not None:
            raise StageFailed(header["error"])
        self.failures |= {int(seq_id): message for seq_id, message in header["failures"].items()}
        return tensors

    def send(self, x: Tensor, fwd: Any) -> None:
        """Give the next stage x [tokens, width], and what later blocks read of the step. Raises RankLost."""
        assert self._sink is not None, "the last stage keeps hidden states"
        if self._source is None:
            self._call += 1
        shared = {key: value for key, value in fwd.step_cache.items() if isinstance(key, str)}
        self._sink.send(self._header(self._call, None), {INPUT: x, **shared})

    def fail(self, message: str) -> None:
        """Tell the next stage that nothing more comes of the current plan. Raises RankLost."""
        if self._sink is not None:
            self._sink.send(self._header(LAST_CALL, message), {})

    def _header(self, call: int, error: str | None) -> dict[str, Any]:
        return {"plan": self._plan, "call": call, "failures": self.failures, "error": error}

    def close(self) -> None:
        """End waits for other stages. Any thread may call it."""
        for link in (self._source, self._sink):
            if link is not None:
                link.close()


class ModelStage:
    """What a module computes of its model. whole: the model. check: raises if what was computed is worthless."""

    def __init__(self, flow: StageFlow, stage: Stage, whole: Any, check: Callable[[], None]) -> None:
        self.flow, self.is_first, self.is_last = flow, stage.is_first, stage.is_last
        self._held, self._check = cuts(whole, stage.count)[stage.index], check
        self.has_tower = stage.has_tower(whole)

    def compute(self, module: Any, fwd: Any) -> Tensor:
        """Hidden states: of the logit rows at the last stage, else of all tokens, which the next stage gets."""
        x: Tensor = module.run_steps(module.embed_tokens(fwd) if self.is_first else self.flow.receive(fwd), fwd)
        if not self.is_last:
            self._check()
            self.flow.send(x, fwd)
        return x

    def steps(self, steps: Sequence[Step], blocks: Sequence[Any]) -> tuple[Step, ...]:
        """Those of this stage; each step of the whole model belongs to the last block before it."""
        numbers = {id(block): i for i, block in enumerate(blocks)}
        found: list[Step] = []
        current = -1
        for step in steps:
            current = numbers.get(id(step), current)
            if max(current, 0) in self._held:
                found.append(step)
        return tuple(found)
