"""Ranks as processes: they answer as one does, end with their leader, and a lost one ends the group."""

import os
import signal
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engine_rig import Rig, greedy, random_ids, rig_of
from rank_rig import TWO_RANKS, TWO_STAGES

from quire import LLM, SamplingParams
from quire.engine.parallel.followers import SILENCE_S, Launched
from quire.errors import CheckpointError, ConfigError
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_testing.tiny import byte_tokenizer, reference_model, save

pytestmark = pytest.mark.process

PROMPTS = [random_ids(Random(i), 20) for i in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save(reference_model("LlamaForCausalLM"), path)
    return byte_tokenizer(path)


def processes(rig: Rig) -> list[int]:
    """The process of each follower."""
    followers = rig.engine._ranks._followers
    return [followers[rank].process.pid for rank in followers]


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.parametrize("ranks", [TWO_RANKS, {**TWO_RANKS, **TWO_STAGES}], ids=["two ranks", "stages of two ranks"])
def test_processes_answer_as_one_and_end_with_the_engine(folder: Path, ranks: dict[str, int]) -> None:
    found = registry.load(None, enable_lora=True)
    with rig_of(folder, found) as rig:
        wanted = rig.tokens(PROMPTS, greedy(8, ignore_eos=True))
    with rig_of(folder, found, **ranks) as rig:
        pids = processes(rig)
        assert rig.tokens(PROMPTS, greedy(8, ignore_eos=True)) == wanted
        assert not any(map(is_gone, pids))
    assert all(map(is_gone, pids))


@pytest.mark.parametrize(
    ("number", "ranks"),
    [(signal.SIGKILL, TWO_RANKS), (signal.SIGSTOP, TWO_RANKS), (signal.SIGKILL, TWO_STAGES)],
    ids=["killed", "stopped", "killed stage"],
)
def test_a_lost_rank_ends_requests_with_an_error_and_the_engine_asks_to_be_restarted(
    folder: Path, number: signal.Signals, ranks: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with rig_of(folder, **ranks) as rig:
        rig.tokens(PROMPTS, greedy(2, ignore_eos=True))
        ranks, (pid,) = rig.engine._ranks, processes(rig)
        rig.add(PROMPTS[0], greedy(400, ignore_eos=True))
        rig.engine.step()
        os.kill(pid, number)
        with ranks._changed:
            assert ranks._changed.wait_for(lambda: ranks.has_failed, 20 * SILENCE_S)
        assert ranks._failure == "rank 1 has ended"  # a stopped one is killed before it counts as silent
        (delta,) = rig.engine.step()
        assert delta.finish_reason == "error"
        assert delta.error is not None
        assert delta.error[0] == "EngineDied", "status 503, as if this process had ended"
        assert rig.engine.has_work, "so that the step loop sees more failed steps, and ends the process"
        for _ in range(2):
            rig.engine.step()
        assert rig.engine.failed_steps == 3
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "The ranks of this model cannot go on: rank 1 has ended"
    ]
    assert is_gone(pid)


def test_the_python_class_takes_the_setting(folder: Path) -> None:
    with LLM(str(folder), tensor_parallel_size=2, num_pages=16, dtype="float32") as llm:
        (answer,) = llm.generate([{"prompt_token_ids": PROMPTS[0]}], SamplingParams(max_tokens=3, temperature=0))
    assert len(answer.outputs[0].token_ids) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size must be above 0"),
        ({"tensor_parallel_size": 65}, "may have at most 64 ranks; --tensor-parallel-size 65 gives it 65"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}, "uni has one rank"),
        (
            {"pipeline_parallel_size": 2, "distributed_executor_backend": "uni"},
            "but --pipeline-parallel-size 2; use mp",
        ),
        ({"pipeline_parallel_size": 0}, "--pipeline-parallel-size must be above 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ModelConfig(model="m", **settings)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ({"tensor_parallel_size": 64}, "size 64: the model has 4 attention heads, so it can be at most 4"),
        ({"pipeline_parallel_size": 3}, "size 3: the model has 2 blocks, so it can be at most 2"),
        ({"model_impl": "transformers", **TWO_RANKS}, "not made of Quire's parts"),
        ({"model_impl": "transformers", **TWO_STAGES}, "not made of Quire's parts"),
    ],
    ids=["heads", "blocks", "ranks of a fallback", "stages of a fallback"],
)
def test_a_model_that_cannot_be_divided_is_refused_before_a_rank_is_started(
    folder: Path, ranks: dict[str, Any], said: str
) -> None:
    def never(*_: Any) -> Launched:
        raise AssertionError("no rank is started")

    with pytest.raises(ConfigError, match=said), rig_of(folder, launch=never, **ranks):
        pass


def test_what_a_follower_cannot_load_is_the_error_of_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that a follower finds differs from the leader's."""
    from quire.engine.parallel import leader

    threads = threading.active_count()
    monkeypatch.setattr(leader, "model_digest", lambda loaded: "other files")
    with pytest.raises(CheckpointError, match="Rank 1 has other weights"), rig_of(folder, tensor_parallel_size=2):
        pass
    assert threading.active_count() <= threads + 1
