"""A scheduler with a pretend runner, for examples of one rule each."""

from fake_runner import PretendRunner
from scheduler_invariants import check_scheduler

from quire.engine.scheduler.candidates import Admission
from quire.engine.scheduler.limits import SchedulerLimits
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.scheduler import Scheduler
from quire.params.sampling import SamplingParams
from quire.records import Context
from quire.types import Prompt, Request, Sample, StepResult
from quire_plugins.policies import FirstComeFirstServed

EOS = 0


class ScriptedRunner(PretendRunner):
    """Samples what the test says: `script[seq_id]` or else token 5."""

    def __init__(self, *sizes) -> None:
        super().__init__(*sizes)
        self.script: dict[int, list[Sample]] = {}

    def sample(self, row, entry):
        if row.start.seq_id in self.script:
            return self.script[row.start.seq_id].pop(0)
        return Sample(5)


class Rig:
    """Everything between `add` and the deltas, with the last plan to look at."""

    def __init__(
        self,
        *,
        num_pages=64,
        page_size=4,
        host_pages=0,
        policy=None,
        caching=True,
        runner=PretendRunner,
        try_admit=None,
        clock=None,
        max_model_len=200,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        eos_ids=frozenset({EOS}),
        **limits,
    ) -> None:
        bounds = SchedulerLimits(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            eos_ids=eos_ids,
            **limits,
        )
        host = PagePool(host_pages, page_size, caching=False) if host_pages else None
        self.pool = PagePool(num_pages, page_size, caching)
        policy = policy or FirstComeFirstServed(Context())
        self.scheduler = Scheduler(
            self.pool, policy, bounds, host, try_admit or (lambda request: Admission.READY), clock or (lambda: 0.0)
        )
        whole = bounds.bidirectional_media, bounds.media_in_one
        self.runner = runner(num_pages, page_size, host_pages, max_num_seqs, max_num_batched_tokens, *whole)
        self.ids = iter(range(1000))
        self.deltas = []
        self.plans = []

    def add(self, prompt, params=None, request_id=None, media=(), **request) -> str:
        """Queue a request; by default one that generates `max_tokens` tokens whatever comes."""
        request_id = request_id or f"r{next(self.ids)}"
        if not hasattr(params, "num_seqs"):
            params = SamplingParams(**{"ignore_eos": True, "max_tokens": 4} | (params or {}))
        prompt = Prompt(token_ids=tuple(prompt), media=media)
        self.scheduler.add(Request(id=request_id, prompt=prompt, params=params, **request))
        return request_id

    def step(self, max_tokens=None, max_background=0):
        """One step; its deltas."""
        plan = self.scheduler.plan(max_tokens, max_background)
        self.plans.append(plan)
        deltas = self.scheduler.commit(plan, self.runner.run(plan))
        check_scheduler(self.scheduler)
        self.deltas += deltas
        return deltas

    def run(self) -> None:
        """Steps until nothing is left."""
        while self.scheduler.has_work:
            self.step()

    @property
    def plan(self):
        """The last plan."""
        return self.plans[-1]

    def counts(self) -> dict[int, int]:
        """Tokens per seq id in the last plan."""
        return {chunk.seq_id: len(chunk.token_ids) for chunk in self.plan.chunks}

    def output(self, request_id, index=0) -> list[int]:
        """All tokens that deltas reported of a seq."""
        return [t for d in self.deltas if (d.request_id, d.index) == (request_id, index) for t in d.token_ids]

    def last(self, request_id, index=0):
        """The last delta of a seq."""
        return [d for d in self.deltas if (d.request_id, d.index) == (request_id, index)][-1]

    def order(self) -> list[str]:
        """Request ids in the order in which they ended."""
        return [delta.request_id for delta in self.deltas if delta.finish_reason]

    def stats(self):
        """The scheduler's figures."""
        return self.scheduler.stats("m")


def commit_with(rig: Rig, plan, samples: dict[int, Sample]):
    """Commit a plan with hand-made samples."""
    rig.runner.run(plan)
    deltas = rig.scheduler.commit(plan, StepResult(samples))
    rig.deltas += deltas
    return deltas
