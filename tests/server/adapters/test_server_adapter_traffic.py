"""Adapters that come and go, on the real server, while others are asked: whose weights answer, and what is freed."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from adapter_client import AdapterClient, held_back
from letter_adapters import Voices
from lora_rig import Base
from serving import POLL_S, Server, serving

from quire import LLM, LoRARequest, SamplingParams
from quire.engine.adapters.admission import REQUESTS_PER_LEASE
from quire_testing.tiny import tiny_llama

pytestmark = pytest.mark.slow

PROMPT = list(b"All the world is a stage, and all the men and women merely players") * 2
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK = 256
"""Of an adapter's ballast, so that it takes memory that can be measured."""
LONG_ANSWER = 2500
"""Tokens of an answer that is still written after a small adapter was loaded beside it."""


@dataclass
class Rig:
    """A server of the model `base` with one slot, adapters that say a letter, and a second model for peft's."""

    root: Path
    voices: Voices
    other: Base
    server: Server
    asks: AdapterClient

    def voice(self, letter: str) -> Path:
        folder = self.root / f"says-{letter}"
        return folder if folder.exists() else self.voices.adapter(folder, letter)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    root = tmp_path_factory.mktemp("models")
    base = tiny_llama(root / "base", hidden_size=256, intermediate_size=2048, max_position_embeddings=8192)
    other = Base(root / "other", "LlamaForCausalLM")
    flags = ("--enable-lora", "--dtype", "float32", "--num-pages", "600", "--enable-prompt-tokens-details")
    lora = ("--max-loras", "1", "--max-cpu-loras", "6", "--max-lora-rank", RANK)
    with serving(f"base={base}", f"other={other.folder}", *flags, *lora) as server:
        asks = AdapterClient(server.url)
        yield Rig(root, Voices(base, RANK), other, server, asks)
        asks.http.close()


@pytest.fixture
def asks(rig: Rig) -> Iterator[AdapterClient]:
    """A client; no adapter is left after a test."""
    yield rig.asks
    rig.asks.forget_all()
    until_none_is_left(rig.asks)


def until_none_is_left(asks: AdapterClient) -> None:
    """An adapter goes with its last request, which ends soon after its answer, or after it was hung up on."""
    while asks.rows():
        time.sleep(POLL_S)


def load(asks: AdapterClient, name: str, folder: Path, model: str = "base", **more: bool) -> None:
    reply = asks.load(name, folder, base_model_name=model, **more)
    assert reply.status_code == 200, reply.text


# --- unload and reload -------------------------------------------------------------------------------


def test_requests_in_flight_finish_on_the_weights_they_began_with(rig: Rig, asks: AdapterClient) -> None:
    without_ballast = Voices(rig.root / "base")
    old_voice, new_voice = (without_ballast.adapter(rig.root / f"small-{letter}", letter) for letter in "AB")
    load(asks, "voice", old_voice)
    with asks.stream("voice", LONG_ANSWER, stream_interval=20) as pieces:
        first = next(pieces)
        assert asks.unload("voice").status_code == 200
        assert asks.complete("voice").status_code == 404
        (row,) = asks.rows()
        assert (row["state"], row["requests"]) == ("retired", 1)
        load(asks, "voice", new_voice)
        old, new = asks.rows()
        assert (old["state"], new["state"], old["requests"]) == ("retired", "ready", 1)
        assert new["revision"] > old["revision"]
        assert first + "".join(pieces) == "A" * LONG_ANSWER
    assert asks.text("voice") == "B" * 8
    assert [row["state"] for row in asks.rows()] == ["ready"], "the old one is gone with its last request"


def test_unloading_frees_the_memory(rig: Rig, asks: AdapterClient) -> None:
    """Twelve come and go, and less than one is left: the allocator may keep a few freed tensors, of 2 MiB each."""
    load(asks, "warm", rig.voice("A"))
    asks.text("warm")
    asks.unload("warm")
    until_none_is_left(asks)
    before = rig.server.host_bytes()
    for _ in range(3):
        for letter in "ABCD":
            load(asks, letter, rig.voice(letter))
            assert asks.text(letter) == letter * 8
        reported = sum(row["bytes"] for row in asks.rows())
        grown = rig.server.host_bytes() - before
        assert grown > 0.8 * reported > 40e6
        for letter in "ABCD":
            asks.unload(letter)
        until_none_is_left(asks)
    assert rig.server.host_bytes() - before < reported / 4


def test_a_reload_never_meets_pages_of_the_old_weights(rig: Rig, asks: AdapterClient) -> None:
    made = [rig.other.adapter(name, r=8, target_modules=TARGETS) for name in ("first", "second")]
    folder = rig.root / "replaced"
    for i, source in enumerate([*made, made[0]]):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        load(asks, "same", folder, "other", load_inplace=i > 0)
        fresh, cached = (asks.complete("same", PROMPT, 12, return_token_ids=True).json() for _ in range(2))
        expected = rig.other.greedy(source, PROMPT, 12)
        assert [answer["choices"][0]["token_ids"] for answer in (fresh, cached)] == [expected, expected]
        found = [(answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0) for answer in (fresh, cached)]
        assert found[0] == 0, "pages of another revision are not its own, of the same weights neither"
        assert found[1] >= len(PROMPT) - 16
    assert asks.ids("other", PROMPT) == rig.other.greedy(None, PROMPT, 12)


def test_what_was_loaded_comes_back_after_the_host_died(rig: Rig, asks: AdapterClient) -> None:
    load(asks, "voice", rig.voice("A"))
    load(asks, "pinned", rig.voice("B"), pinned=True)
    rig.server.kill_engine()
    assert {row["id"]: (row["state"], row["pinned"]) for row in asks.rows()} == {
        "voice": ("ready", False),
        "pinned": ("ready", True),
    }
    assert asks.text("voice") == "A" * 8
    assert asks.text("pinned") == "B" * 8


# --- turns -------------------------------------------------------------------------------------------


async def test_with_one_slot_a_flood_on_one_adapter_does_not_lock_out_three_others(
    rig: Rig, asks: AdapterClient
) -> None:
    for letter in "ABCD":
        load(asks, letter, rig.voice(letter))
    begun, others_done, finished = asyncio.Event(), asyncio.Event(), {letter: 0 for letter in "ABCD"}
    async with httpx.AsyncClient(base_url=rig.server.url, timeout=120) as http:

        async def ask(letter: str) -> None:
            body = {"model": letter, "prompt": "x", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            reply = await http.post("/v1/completions", json=body)
            assert reply.json()["choices"][0]["text"] == letter * 4
            finished[letter] += 1

        async def flood() -> None:
            while not others_done.is_set():
                await ask("A")
                begun.set()

        async def quiet(letter: str) -> int:
            """How many of A's requests ended while this one's turn came five times."""
            before = finished["A"]
            for _ in range(5):
                await ask(letter)
            return finished["A"] - before

        floods = [asyncio.ensure_future(flood()) for _ in range(8)]
        await begun.wait()
        passed = await asyncio.gather(*map(quiet, "BCD"))  # it would never end if A kept the slot
        others_done.set()
        await asyncio.gather(*floods)
    assert max(passed) <= 5 * (REQUESTS_PER_LEASE + 8)
    assert [finished[letter] for letter in "BCD"] == [5, 5, 5]


def test_while_a_large_adapter_is_read_every_step_goes_on(rig: Rig, asks: AdapterClient) -> None:
    load(asks, "voice", rig.voice("A"))
    folder = shutil.copytree(rig.voice("B"), rig.root / "large")
    with held_back(rig.server) as release:
        assert asks.load("large", folder, base_model_name="base", wait=False).status_code == 200
        for model in ("base", "voice"):
            with asks.stream(model, 100) as pieces:
                assert len(list(pieces)) > 1, "its tokens come as ever"
        assert asks.row("large")["state"] == "loading"
        release.set()
        asks.when("large", "ready")
    assert asks.text("large") == "B" * 8


# --- without a server --------------------------------------------------------------------------------


def test_offline_a_request_names_its_adapter_and_where_it_lies(tmp_path: Path) -> None:
    base = Base(tmp_path / "base", "LlamaForCausalLM")
    adapters = [base.adapter(name, r=4, target_modules=TARGETS) for name in "ab"]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    with LLM(model=str(base.folder), enable_lora=True, dtype="float32", num_pages=64) as llm:
        asked = [None, *(LoRARequest(path.name, i, str(path)) for i, path in enumerate(adapters, start=1))]
        outputs = llm.generate([{"prompt_token_ids": PROMPT}] * 3, params, lora_request=asked, use_tqdm=False)
        one = llm.generate([{"prompt_token_ids": PROMPT}], params, lora_request=asked[1], use_tqdm=False)
    answers = [list(output.outputs[0].token_ids) for output in (*outputs, *one)]
    assert answers == [base.greedy(path, PROMPT, 10) for path in (None, *adapters, adapters[0])]
