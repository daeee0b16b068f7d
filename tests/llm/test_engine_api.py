"""`EngineArgs`, `LLMEngine`, `AsyncLLMEngine`: what scripts written for vLLM do with them, on a tiny model."""

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    LLMEngine,
    PoolingParams,
    RequestOutput,
    SamplingParams,
)
from quire.errors import BadRequest, ConfigError, EngineDied, QuireError
from quire_testing.tiny import tiny_llama

SETTINGS: dict[str, Any] = {"dtype": "float32", "num_pages": 64, "max_num_seqs": 4}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **SETTINGS) as made:
        yield made


@pytest.fixture
def engine(llm: LLM) -> LLMEngine:
    return llm.llm_engine


def answer(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> list[int]:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids


# --- arguments -------------------------------------------------------------------------------------


def test_arguments_are_those_of_the_class_and_make_a_model(folder: Path) -> None:
    args = EngineArgs(model=str(folder), tensor_parallel_size=1, enforce_eager=True, **SETTINGS)
    assert (args.model, args.num_pages, args.enable_lora) == (str(folder), 64, False)
    assert asdict(args)["max_num_seqs"] == 4
    with LLMEngine.from_engine_args(args) as engine:
        assert engine.model_config.num_pages == 64


def test_wrong_arguments_are_refused_when_the_record_is_made() -> None:
    with pytest.raises(TypeError, match=r"EngineArgs\(\) has no argument 'block_size'\. Did you mean 'page_size'"):
        EngineArgs(model="m", block_size=16)
    with pytest.raises(ConfigError, match="--api-server-count can only be 1"):
        AsyncEngineArgs(model="m", api_server_count=4)


def test_a_script_gets_its_arguments_from_its_command_line() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    given = parser.parse_args(["--model", "m", "--max-model-len", "4k", "--enable-lora", "--enforce-eager"])
    args = AsyncEngineArgs.from_cli_args(given)
    assert isinstance(args, AsyncEngineArgs)
    assert args.to_llm_arguments() == {"model": "m", "max_model_len": 4000, "enable_lora": True, "enforce_eager": True}


# --- steps -----------------------------------------------------------------------------------------


def test_steps_give_all_there_is_so_far_until_it_is_finished(llm: LLM, engine: LLMEngine) -> None:
    wanted = {name: answer(llm, name) for name in ("first", "second one")}
    for name in wanted:
        engine.add_request(name, name, GREEDY)
    seen: dict[str, list[RequestOutput]] = {name: [] for name in wanted}
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen[output.request_id].append(output)
    for name, outputs in seen.items():
        assert [output.outputs[0].token_ids for output in outputs] == [wanted[name][: i + 1] for i in range(6)]
        assert [output.finished for output in outputs] == [False] * 5 + [True]
        assert outputs[-1].prompt == name


def test_an_aborted_request_has_no_more_outputs(engine: LLMEngine) -> None:
    engine.add_request("gone", "a", GREEDY)
    engine.step()
    engine.abort_request(["gone", "never there"])
    assert not engine.has_unfinished_requests()
    assert engine.step() == []


def test_an_id_is_taken_once_at_a_time(engine: LLMEngine) -> None:
    engine.add_request("same", "a", GREEDY)
    with pytest.raises(BadRequest, match="`request_id` must be a text that no request in flight has, got 'same'"):
        engine.add_request("same", "b", GREEDY)
    engine.abort_request("same")
    engine.add_request("same", "b", GREEDY)
    engine.abort_request("same")


def test_requests_of_both_kinds_run_beside_each_other_without_mixing_ids(llm: LLM, engine: LLMEngine) -> None:
    wanted = answer(llm, "x")
    for name in map(str, range(40)):  # such ids as the class gives
        engine.add_request(name, "x", SamplingParams(temperature=0, max_tokens=1))
    assert answer(llm, "x") == wanted
    left = 0
    while engine.has_unfinished_requests():
        left += sum(output.finished for output in engine.step())
    assert left == 40


def test_a_request_that_fails_says_so_and_others_go_on(engine: LLMEngine) -> None:
    def breaks(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        raise ValueError("broken")

    engine.add_request("bad", "a", SamplingParams(max_tokens=3, logits_processors=[breaks]))
    engine.add_request("good", "b", GREEDY)
    ended = {}
    while engine.has_unfinished_requests():
        ended |= {output.request_id: output for output in engine.step() if output.finished}
    (bad,) = ended["bad"].outputs
    assert (bad.finish_reason, bad.stop_reason) == (
        "error",
        "A function of `logits_processors` failed: ValueError: broken",
    )
    assert len(ended["good"].outputs[0].token_ids) == 6


def test_prompts_are_pooled_in_steps_too(llm: LLM, engine: LLMEngine) -> None:
    (wanted,) = llm.encode("text", use_tqdm=False)
    engine.add_request("vector", "text", PoolingParams(task="embed"))
    (output,) = engine.step()
    assert (output.request_id, output.finished) == ("vector", True)
    torch.testing.assert_close(torch.from_numpy(output.outputs.numbers().copy()), wanted.outputs.data)


# --- functions that change logits ------------------------------------------------------------------


def test_functions_change_the_logits_of_their_request_alone(llm: LLM) -> None:
    seen: list[tuple[int, int]] = []

    def only(prompt_ids: list[int], ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append((len(prompt_ids), len(ids)))
        logits[torch.arange(len(logits)) != 65 + len(ids)] = -torch.inf
        return logits

    changed = SamplingParams(temperature=0, max_tokens=3, logits_processors=[lambda ids, logits: logits * 2, only])
    forced, plain = llm.generate(["abc", "abc"], [changed, GREEDY], use_tqdm=False)
    assert forced.outputs[0].token_ids == [65, 66, 67]
    assert seen == [(3, 0), (3, 1), (3, 2)]
    assert plain.outputs[0].token_ids == answer(llm, "abc")


def test_a_function_that_changes_the_shape_ends_its_request_alone(llm: LLM) -> None:
    wrong = SamplingParams(max_tokens=2, logits_processors=[lambda ids, logits: logits[:5]])
    with pytest.raises(QuireError, match=r"must return a tensor of shape \[\d+\]"):
        llm.generate("a", wrong, use_tqdm=False)


# --- asyncio ---------------------------------------------------------------------------------------


@pytest.fixture
def served(folder: Path) -> Iterator[AsyncLLMEngine]:
    made = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(folder), **SETTINGS))
    yield made
    made.shutdown()


async def last(outputs: Any) -> Any:
    found = None
    async for found in outputs:  # noqa: B007
        pass
    return found


def test_tasks_are_answered_together_and_as_alone(llm: LLM, served: AsyncLLMEngine) -> None:
    prompts = ["one", "another", "a third one", "x", "y"]

    async def ask() -> list[RequestOutput]:
        return await asyncio.gather(*(last(served.generate(p, GREEDY, p)) for p in prompts))

    outputs = asyncio.run(ask())
    assert [output.outputs[0].token_ids for output in outputs] == [answer(llm, p) for p in prompts]
    assert all(output.finished for output in outputs)


def test_leaving_the_loop_aborts_the_request(served: AsyncLLMEngine) -> None:
    async def leave() -> None:
        outputs = served.generate("a", SamplingParams(max_tokens=50, ignore_eos=True), "left")
        async for output in outputs:
            assert not output.finished
            break
        await outputs.aclose()
        assert (await last(served.generate("b", GREEDY, "after"))).finished

    asyncio.run(leave())
    assert not served.engine.has_unfinished_requests()


def test_a_cancelled_task_aborts_its_request(served: AsyncLLMEngine) -> None:
    async def cancel() -> None:
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in served.generate("a", SamplingParams(max_tokens=60, ignore_eos=True), "cancelled"):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await last(served.generate("b", GREEDY, "after"))

    asyncio.run(cancel())
    assert not served.engine.has_unfinished_requests()


def test_an_abort_ends_the_loop_with_an_error(served: AsyncLLMEngine) -> None:
    async def abort() -> None:
        async for _ in served.generate("a", SamplingParams(max_tokens=60, ignore_eos=True), "stopped"):
            await served.abort("stopped")

    with pytest.raises(QuireError, match="The request 'stopped' was aborted"):
        asyncio.run(abort())


def test_a_wrong_request_raises_and_leaves_nothing(served: AsyncLLMEngine) -> None:
    with pytest.raises(BadRequest, match="token id"):
        asyncio.run(last(served.generate([1 << 20], GREEDY, "wrong")))
    assert asyncio.run(last(served.generate("fine", GREEDY, "wrong"))).finished


def test_prompts_are_pooled_beside_others(llm: LLM, served: AsyncLLMEngine) -> None:
    output = asyncio.run(last(served.encode("text", PoolingParams(task="embed"), "vector")))
    (wanted,) = llm.embed("text", use_tqdm=False)
    assert output.outputs.numbers().tolist() == pytest.approx(wanted.outputs.embedding, abs=1e-6)


def test_after_the_end_there_are_no_answers(folder: Path) -> None:
    served = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(folder), **SETTINGS))
    served.shutdown()
    served.shutdown()
    with pytest.raises(EngineDied, match="shut down"):
        asyncio.run(last(served.generate("a", GREEDY, "late")))
