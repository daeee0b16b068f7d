"""The plugins of examples/hook_tour, and an engine to run them in."""

from pathlib import Path

from quire.engine.build import build_engine
from quire.engine.engine import Engine
from quire.params.sampling import SamplingParams
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt, Request, RequestSummary

ROOT = Path(__file__).parents[3]
TOUR = ROOT / "examples" / "hook_tour"


SAME = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def engine(model: Path, registry: Registry, **settings: object) -> Engine:
    return build_engine(
        ModelConfig(model=str(model), dtype="float32", num_pages=64, max_num_batched_tokens=64, **settings),
        registry,
        tokenizer=lambda: Tokenizer.load(model),
    )


def generate(engine: Engine, text: str = "Hello", **params: object) -> list[int]:
    prompt = Prompt(token_ids=tuple(text.encode()))
    engine.add(Request(id="r", prompt=prompt, params=SamplingParams(temperature=0, ignore_eos=True, **params)))
    found: list[int] = []
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None, delta.error
            found.extend(delta.token_ids)
    return found


SUMMARY = RequestSummary(
    request_id="r1", model="tiny", adapters=(), finish_reason="stop", num_prompt_tokens=3, num_cached_tokens=0,
    num_generated_tokens=2, n=1, max_tokens=16, queue_s=0.0, prefill_s=0.1, decode_s=0.2, e2e_s=0.3, first_token_s=0.1,
)  # fmt: skip


PROCESSOR = """
@hookimpl
def quire_logits_processors():
    yield LogitsProcessor("dry", {"dry_multiplier": float}, build=lambda context: None)
"""
