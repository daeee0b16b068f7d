"""A tiny model of random weights that must keep to a form, whatever it would rather say."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine_rig import Rig, make_rig

from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire_testing.tiny import END_ID, tiny_llama

PROMPT = list(b"Say: ")


@contextmanager
def structured_rig(folder: Path, **settings: object) -> Iterator[Rig]:
    """An engine with every back end."""
    sizes = {"num_pages": 1400, "max_num_batched_tokens": 256, "max_num_seqs": 64}
    settings = {"structured_outputs_timeout_s": 200.0, **settings}  # back ends are imported in it, at idle priority
    rig = make_rig(tiny_llama(folder), registry.load(None), **{**sizes, **settings})
    try:
        yield rig
    finally:
        rig.engine.close()


def answers(rig: Rig, asked: Sequence[StructuredSpec]) -> list[str | None]:
    """What the model says at temperature 1 under each constraint; None where it came to no end. Raises for errors."""
    params = [SamplingParams(seed=i, max_tokens=400, structured=each) for i, each in enumerate(asked)]
    ids = [rig.add(PROMPT, each) for each in params]
    found = rig.drain()
    texts: list[str | None] = []
    for request_id, each in zip(ids, asked, strict=True):
        answer = found[request_id, 0]
        if answer.last.finish_reason == "length":
            texts.append(None)
            continue
        assert answer.last.finish_reason == "stop", (each, answer.last.error)
        texts.append(bytes(i for i in answer.token_ids if i != END_ID).decode())
    return texts


def refusals(rig: Rig, asked: Sequence[StructuredSpec]) -> list[str]:
    """Why each is refused; every one must be."""
    ids = [rig.add(PROMPT, SamplingParams(max_tokens=4, structured=each)) for each in asked]
    found = rig.drain()
    reasons = []
    for request_id, each in zip(ids, asked, strict=True):
        error = found[request_id, 0].last.error
        assert error is not None, each
        assert error[0] == "BadRequest", (each, error)
        reasons.append(error[1])
    return reasons
