"""KV memory between models: what is decided, and what happens to the pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, bundled, greedy
from hypothesis import given, settings, strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from quire.engine.build import build_engine
from quire.engine.elastic.decisions import IDLE_S, PoolState, resized
from quire.engine.elastic.elastic_pool import ElasticPagePool
from quire.engine.elastic.kv_pages import KvPages
from quire.engine.engine import Engine
from quire.engine.memory.ledger import MemoryBudget, MemoryLedger, MemoryUse
from quire.engine_process.pacing.kv_balance import INTERVAL_S, KvBalance
from quire.engine_process.step_loop import StepLoop
from quire.settings.model_config import ModelConfig
from quire_models import KVCache
from quire_models.parts.decoder import KvShape


def pool(name: str, **changes: Any) -> PoolState:
    values = {"page_bytes": 100, "num_pages": 40, "share": 40, "least": 10, "most": 100}
    return PoolState(name=name, **{**values, **changes})


def test_nothing_moves_without_demand():
    assert resized([pool("a", idle_s=99), pool("b")], 8000) == {}


def test_an_idle_pool_gives_pages_to_one_that_lacks_some():
    idle, busy = pool("a", idle_s=IDLE_S, page_bytes=50), pool("b", demands=True)
    assert resized([idle, busy], 6000) == {"a": 10}, "the idle one first gives up what it can"
    assert resized([pool("a", page_bytes=50, num_pages=10), busy], 6000) == {"b": 55}


def test_a_pool_that_was_used_just_now_keeps_its_share():
    assert resized([pool("a", idle_s=IDLE_S - 1), pool("b", demands=True)], 8000) == {}


def test_a_pool_gets_its_share_back_from_a_busy_one():
    lent, lender = pool("a", num_pages=70, demands=True), pool("b", num_pages=10, demands=True)
    assert resized([lent, lender], 8000) == {"a": 65}
    waits = pool("a", num_pages=65, num_over=5, demands=True)
    assert resized([waits, lender], 8000) == {}, "pages of running sequences are promised, and free later"


def test_the_one_with_least_of_its_share_comes_first():
    states = [pool("a", demands=True), pool("b", num_pages=20, demands=True)]
    assert resized(states, 6500) == {"b": 25}


def state_of(name: str, share: int, extra: int, least: int, more: int, **values: Any) -> PoolState:
    num_pages, most = max(least, extra), max(share, extra) + more
    return PoolState(name=name, share=share, num_pages=num_pages, least=least, most=most, **values)


states = st.builds(
    state_of,
    name=st.uuids().map(str),
    share=st.integers(10, 50),
    extra=st.integers(10, 80),
    least=st.integers(1, 10),
    more=st.integers(0, 50),
    page_bytes=st.integers(1, 300),
    num_over=st.integers(0, 10),
    demands=st.booleans(),
    idle_s=st.sampled_from([0.0, IDLE_S]),
)


@given(st.lists(states, min_size=1, max_size=4), st.integers(-1000, 20_000))
def test_no_decision_exceeds_a_limit(pools, more):
    total = sum(each.held_bytes for each in pools) + more
    changes, free = resized(pools, total), more
    for each in pools:
        count = changes.get(each.name, each.num_pages)
        if count > each.num_pages:
            assert count <= each.most
            assert each.demands
            free -= (count - each.num_pages) * each.page_bytes
        elif count < each.num_pages:
            assert count >= each.least
            assert count >= each.share or (each.idle_s >= IDLE_S and not each.demands)
    assert free >= min(0, more)


class Model:
    """A model as `KvBalance` sees it; `has_work` says whether it has requests, `waits` whether one waits."""

    def __init__(self, num_pages: int, capacity: int, width: int) -> None:
        memory = KVCache.allocate([KvShape(2, width)], capacity, 16, torch.float32, "cpu")
        self.pool, self.has_work, self.waits = ElasticPagePool(num_pages, 16, capacity=capacity), False, False
        self.kv_pages = KvPages(self.pool, memory, 4, num_pages, lambda: self.waits)
        self.tables: list[list[int]] = []

    def change(self, what: str, data: Any, turn: int) -> None:
        """Do what a scheduler may do between two steps."""
        if what == "allocate" and self.pool.available:
            pages = self.pool.allocate(data.draw(st.integers(1, self.pool.available)))
            assert max(pages) < self.pool.num_pages
            assert not self.in_use & set(pages)
            self.tables.append(pages)
            self.kv_pages.memory.k[0][pages] = 1.0
        elif what == "register" and self.tables:
            self.pool.register(self.tables[-1][0], bytes([turn]))
        elif what == "free" and self.tables:
            self.pool.free(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))
        self.waits, self.has_work = what == "wait", what != "rest"

    @property
    def in_use(self) -> set[int]:
        return {page for table in self.tables for page in table}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_page_in_use_is_given_away_and_the_sum_stays(data):
    now = [0.0]
    balance = KvBalance(lambda: now[0])
    models = {"a": Model(12, 40, 64), "b": Model(20, 40, 128), "c": Model(8, 9, 64)}
    for name, model in models.items():
        balance.add(name, model)
    total = sum(model.kv_pages.held_bytes for model in models.values())
    for turn in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["allocate", "register", "free", "wait", "rest"]))
        models[data.draw(st.sampled_from(sorted(models)))].change(what, data, turn)
        now[0] += data.draw(st.sampled_from([INTERVAL_S, IDLE_S]))
        balance.step(models)
        assert sum(model.kv_pages.held_bytes for model in models.values()) <= total
        for model in models.values():
            assert model.pool.num_pages >= model.kv_pages.least
            assert model.pool.num_used == len(model.in_use)
            assert (model.kv_pages.memory.k[0][sorted(model.in_use)] == 1.0).all()


def test_memory_follows_requests():
    now = [0.0]
    balance, models = KvBalance(lambda: now[0]), {"a": Model(40, 64, 64), "b": Model(40, 64, 64)}
    for name, model in models.items():
        balance.add(name, model)
    models["b"].waits = models["b"].has_work = True
    models["b"].pool.allocate(40)
    now[0] = IDLE_S
    balance.step(models)
    assert {name: model.pool.num_pages for name, model in models.items()} == {"a": 20, "b": 60}
    models["a"].waits = models["a"].has_work = True
    models["a"].pool.allocate(20)
    now[0] += INTERVAL_S
    balance.step(models)
    assert {name: model.pool.num_pages for name, model in models.items()} == {"a": 30, "b": 50}
    models["a"].pool.allocate(10)
    models["b"].pool.allocate(10)
    now[0] += INTERVAL_S
    balance.step(models)  # all pages of both are in use
    assert {name: model.pool.num_pages for name, model in models.items()} == {"a": 30, "b": 40}
    models["b"].pool.free(list(range(45, 50)))
    now[0] += INTERVAL_S
    balance.step(models)
    assert {name: model.pool.num_pages for name, model in models.items()} == {"a": 35, "b": 40}


def test_pages_that_are_given_up_are_zeros_and_forgotten():
    pages = ElasticPagePool(64, 16, capacity=64)
    memory = KVCache.allocate([KvShape(4, 64)], 64, 16, torch.float32, "cpu")  # a page is 16 KiB
    table = pages.allocate(64)
    memory.k[0].fill_(1.0)
    pages.register(63, b"last")
    pages.register(1, b"first")
    pages.free([page for page in table if page != 50])
    pages.resize(8)
    assert (pages.num_used, pages.num_over, pages.available, pages.num_idle) == (1, 1, 8, 1)
    assert pages.lookup(b"last") is None
    assert pages.lookup(b"first") == 1
    memory.release(pages.drain_released())
    assert not memory.k[0][52:62].any()
    assert memory.k[0][50].all()
    assert memory.k[0][:8].all()
    pages.free([50])
    assert (pages.num_used, pages.num_over, pages.available) == (0, 0, 8)
    assert pages.drain_released() == [50]
    pages.resize(64)
    assert sorted(pages.allocate(64)) == list(range(64))
    with pytest.raises(AssertionError):
        pages.allocate(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    made = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, max_position_embeddings=256)).save_pretrained(made)
    return made


@contextmanager
def engine_of(folder: Path, name: str = "tiny") -> Iterator[Engine]:
    """An engine with 64 pages of 8 KiB, and addresses for more."""
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "page_size": 16, "max_num_batched_tokens": 64}
    budget = MemoryBudget(total=1 << 30, kv_cache=1 << 19, max_kv_cache=1 << 19)
    config = ModelConfig(model=str(folder), served_model_name=(name,), **settings)
    with closing(build_engine(config, bundled(), budget)) as engine:
        yield engine


def test_answers_stay_while_pages_come_and_go(folder):
    prompts = [[7, 8, 9] * 20, [3, 4] * 30, [5] * 40]
    with engine_of(folder) as engine:
        rig = Rig(engine)
        want = rig.tokens(prompts, greedy(60))
        pages = engine.kv_pages
        assert pages is not None
        assert (pages.least, pages.share) == (16, 64)
        pages.resize(pages.least)
        assert engine.stats().num_pages == pages.least
        engine.reset_prefix_cache()
        ids = [rig.add(prompt, greedy(60)) for prompt in prompts]
        answers: dict[str, list[int]] = {each: [] for each in ids}
        for turn in range(5000):
            if not engine.has_work:
                break
            pages.resize(pages.least if turn % 7 < 4 else 90)
            pages.release()
            for delta in engine.step():
                answers[delta.request_id] += delta.token_ids
        assert [answers[each] for each in ids] == want


def test_a_busy_model_gets_the_pages_of_an_idle_one_and_gives_them_back(folder):
    now = [0.0]
    with engine_of(folder, "idle") as idle, engine_of(folder, "busy") as busy:
        loop = StepLoop(lambda message: None, lambda: now[0])
        loop.add(idle, 64)
        loop.add(busy, 64)
        rigs = {name: Rig(engine) for name, engine in (("idle", idle), ("busy", busy))}

        def counts() -> tuple[int, ...]:
            return tuple(engine.stats().num_pages for engine in (idle, busy))

        for i in range(12):
            rigs["busy"].add([i + 1] * 100, greedy(100, ignore_eos=True))
        for _ in range(30):
            loop.step()
            assert counts() == (64, 64)
        now[0] += IDLE_S
        for _ in range(3):
            loop.step()
            now[0] += INTERVAL_S
        assert counts()[0] < 64 < counts()[1]
        assert sum(counts()) == 128
        while busy.has_work:
            loop.step()
            now[0] += INTERVAL_S
        for i in range(12):
            rigs["idle"].add([i + 1] * 100, greedy(100, ignore_eos=True))
        while idle.has_work:
            loop.step()
            now[0] += INTERVAL_S
            assert sum(counts()) <= 128
        assert counts()[0] >= 64


def test_the_ledger_counts_what_models_hold_now():
    ledger, model = MemoryLedger(1 << 30), Model(40, 64, 64)
    ledger.enter(model, "tiny", MemoryUse(weights=1000, kv_cache=model.kv_pages.held_bytes))
    before = ledger.reserved
    model.kv_pages.resize(60)
    assert ledger.reserved == before + 20 * model.kv_pages.page_bytes
    ledger.enter(model, "tiny", MemoryUse(weights=1000))  # it sleeps
    assert ledger.reserved == 1000
