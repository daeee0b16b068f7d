"""The prefix cache: an adapter's pages are its own."""

from __future__ import annotations

from pathlib import Path

from adapted_rig import PROMPT, PROMPTS, ask, load_all, rig_of, same, states
from engine_rig import Answer, Rig
from random_adapters import Kit


def cached(rig: Rig, name: str | None) -> int | None:
    request_id = ask(rig, PROMPT, name)
    return rig.drain()[request_id, 0].deltas[0].num_cached_tokens


def test_pages_are_shared_under_one_adapter_and_never_between_two(
    folder: Path, kit: Kit, adapters: dict[str, Path]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        assert [cached(rig, name) for name in ("base", "a", "b")] == [0, 0, 0]
        assert [cached(rig, name) for name in ("b", "base", "a")] == [16, 16, 16]


def test_a_name_that_is_loaded_again_is_a_new_revision_with_pages_of_its_own(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        assert rig.engine.load_adapter("x", adapters["a"]).revision == 1
        first = ask(rig, PROMPTS[0], "x")
        assert same(rig.drain()[first, 0], expected_answers["a", 0])
        assert rig.engine.load_adapter("x", adapters["b"]).revision == 2
        second = ask(rig, PROMPTS[0], "x")
        answer = rig.drain()[second, 0]
        assert same(answer, expected_answers["b", 0])
        assert answer.deltas[0].num_cached_tokens == 0
        rig.engine.unload_adapter("x")
        assert rig.engine.load_adapter("x", adapters["a"]).revision == 3
        assert states(rig) == {"x": "ready"}
        kit.built["SCALE"].wait_for("release x", 2)
