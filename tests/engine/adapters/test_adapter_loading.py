"""Adapters that come and go while an engine answers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from adapted_rig import PROMPT, PROMPTS, ask, load_all, rig_of, same, states
from engine_rig import Answer
from random_adapters import Kit
from safetensors.torch import save_file

from quire.errors import BadRequest, NotFound
from quire.types import AdapterRef, WeightedAdapter


def test_requests_in_flight_finish_on_what_is_unloaded_and_new_ones_are_refused(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        flying = ask(rig, PROMPTS[0], "a")
        rig.engine.step()
        rig.engine.unload_adapter("a")
        with pytest.raises(NotFound, match="Adapters loaded: b, c, s"):
            ask(rig, PROMPTS[0], "a")
        assert "release a" not in kit.built["SCALE"].asked
        assert same(rig.drain()[flying, 0], expected_answers["a", 0])
        kit.built["SCALE"].wait_for("release a")
        rig.engine.unload_adapter("b")
        assert kit.built["SCALE"].asked.count("release b") == 1
        with pytest.raises(NotFound, match="`a` is not loaded"):
            rig.engine.unload_adapter("a")


def test_steps_go_on_while_an_adapter_is_read(folder: Path, kit: Kit, adapters: dict[str, Path]) -> None:
    with rig_of(folder, kit.registry) as rig:
        runtime = kit.built["SCALE"]
        runtime.hold.clear()
        thread = threading.Thread(target=rig.engine.load_adapter, args=("a", adapters["a"]))
        thread.start()
        request_id = ask(rig, PROMPT, None)
        assert rig.drain()[request_id, 0].last.finish_reason == "length"
        assert states(rig) == {"a": "loading"}
        runtime.hold.set()
        thread.join()
        assert states(rig) == {"a": "ready"}


def test_what_is_no_adapter_is_refused_and_changes_nothing(
    folder: Path, kit: Kit, adapters: dict[str, Path], tmp_path: Path
) -> None:
    def config(text: str) -> Path:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        path.mkdir()
        (path / "adapter_config.json").write_text(text)
        return path

    unknown = config('{"peft_type": "SCALE"}')
    save_file({"model.layers.9.self_attn.q_proj": torch.ones(64)}, unknown / "vectors.safetensors")
    wrong = [
        (tmp_path / "nowhere", "folder cannot be read"),
        (config("{"), "is not valid JSON"),
        (config("[]"), "must be a JSON object"),
        (config("{}"), "`peft_type`"),
        (config('{"peft_type": "LORA"}'), "type 'LORA'; types that can be run: SCALE, SHIFT"),
        (unknown, "no blocks.9.attn.q"),
    ]
    with rig_of(folder, kit.registry) as rig:
        rig.engine.load_adapter("a", adapters["a"])
        for path, said in wrong:
            with pytest.raises(BadRequest, match=said):
                rig.engine.load_adapter("a", path)
        assert states(rig) == {"a": "ready"}
        with pytest.raises(NotFound, match="`z` is not loaded"):
            ask(rig, PROMPT, "z")
    with rig_of(folder) as plain, pytest.raises(BadRequest, match="types that can be run: none"):
        plain.engine.load_adapter("a", adapters["a"])


def test_a_request_that_is_refused_uses_no_adapter(folder: Path, kit: Kit, adapters: dict[str, Path]) -> None:
    with rig_of(folder, kit.registry, max_num_queued_reqs=2) as rig:
        load_all(rig, adapters)
        twin = ask(rig, PROMPT, "a")
        with pytest.raises(BadRequest, match="unique"):
            rig.add(PROMPT, adapters=(WeightedAdapter(AdapterRef(name="a")),), id=twin)
        rig.engine.unload_adapter("a")
        assert "release a" not in kit.built["SCALE"].asked
        rig.drain()
        kit.built["SCALE"].wait_for("release a")
