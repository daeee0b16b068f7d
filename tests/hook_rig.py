"""The plugins of examples/hook_tour on a site of their own, and a tiny model to try them on."""

from pathlib import Path

import pytest
from plugin_site import PluginSite, site

from quire.config import ModelConfig
from quire.engine.engine import Engine
from quire.records import Registry
from quire.sampling import SamplingParams
from quire.testing import tiny_llama
from quire.text.tokenizer import Tokenizer
from quire.types import Prompt, Request, RequestSummary

__all__ = ["site"]

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "examples" / "hook_tour"


@pytest.fixture
def tour(site: PluginSite) -> PluginSite:
    site.link(TOUR)
    return site


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


SAME = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def engine(model: Path, registry: Registry, **settings: object) -> Engine:
    return Engine.build(
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
