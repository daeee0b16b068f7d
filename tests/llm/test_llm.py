"""The `LLM` class: what it asks of an engine, and one conversation with the real one."""

from pathlib import Path
from typing import Any

import pytest
from parrot_engine import engine_of, texts

from quire import LLM, BeamSearchParams, SamplingParams
from quire.errors import BadRequest, ConfigError, Overloaded, PluginFailed
from quire.llm.arguments import model_config
from quire.settings.model_config import ModelConfig
from quire.types import LoRARequest

# --- generate --------------------------------------------------------------------------------------


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["a much longer prompt", "short", "the fox"]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=None), use_tqdm=False)
    assert texts(outputs) == prompts
    assert [output.prompt for output in outputs] == prompts
    assert [output.request_id for output in outputs] == ["0", "1", "2"]
    assert all(output.finished and output.num_cached_tokens == 0 for output in outputs)
    assert llm.requests.runner.ids == [] == list(llm.requests.runner._collectors)


def test_every_form_of_prompts_is_taken(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("fox")
    params = SamplingParams(max_tokens=None)
    for prompts in ("fox", ["fox"], {"prompt": "fox"}, [{"prompt_token_ids": ids}], ids, [ids], tuple(ids)):
        assert texts(llm.generate(prompts, params, use_tqdm=False)) == ["fox"]  # type: ignore[arg-type]
    for old in (ids, [ids]):
        assert texts(llm.generate(prompt_token_ids=old, sampling_params=params, use_tqdm=False)) == ["fox"]
    assert llm.generate([], use_tqdm=False) == []


def test_each_prompt_may_have_its_own_parameters_and_priority(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2, bad_words=["fox"])]
    outputs = llm.generate(["ab ab", "ab ab"], params, priority=[3, 1], use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2]
    sent = engine_of(llm).requests
    assert [request.priority for request in sent] == [3, 1]
    assert isinstance(sent[1].params, SamplingParams)
    assert len(sent[1].params.bad_word_ids) == 2


def test_a_prediction_reaches_the_engine_as_tokens_that_fit_into_the_context(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("the fox")
    params = [SamplingParams(prediction=text, max_tokens=1) for text in ("the fox", "the fox" * 1000)]
    llm.generate(["ab", "ab"], params, use_tqdm=False)
    short, long = (request.params for request in engine_of(llm).requests)
    assert (short.prediction, list(short.prediction_ids)) == (None, ids)
    assert len(long.prediction_ids) == 64
    assert list(long.prediction_ids[: len(ids)]) == ids


def test_without_parameters_the_models_own_are_used(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5)
    llm.generate("fox", use_tqdm=False)
    assert engine_of(llm).requests[0].params == SamplingParams(temperature=0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.generate(None), "must be a prompt"),
        (lambda llm: llm.generate(5), "must be a prompt"),
        (lambda llm: llm.generate("a", prompt_token_ids=[1]), "not both"),
        (lambda llm: llm.generate(["a", "b"], [SamplingParams()]), "1 entries for 2 prompts"),
        (lambda llm: llm.generate("a", {"n": 1}), "SamplingParams or BeamSearchParams"),
        (lambda llm: llm.generate("a", priority=["high"]), "`priority` must be int"),
        (lambda llm: llm.generate(["a", [10**6]]), "vocabulary ends"),
        (lambda llm: llm.generate(["a", "b " * 200]), "maximum context length"),
        (lambda llm: llm.generate(["a", ""]), "empty"),
        (lambda llm: llm.generate("a", SamplingParams(prompt_logprobs=-1)), "--max-logprobs"),
        (lambda llm: llm.generate("a", SamplingParams(logprobs=21)), "--max-logprobs"),
        (lambda llm: llm.generate("a", lora_request=LoRARequest("x", 1, "adapters/x")), "enable_lora"),
        (lambda llm: llm.chat("hi"), "non-empty list"),
        (lambda llm: llm.chat([{"role": "user"}, 5]), "must be an object"),
    ],
)
def test_a_wrong_call_leaves_nothing_in_the_engine(call: Any, message: str, llm: LLM) -> None:
    with pytest.raises(BadRequest, match=message):
        call(llm)
    assert engine_of(llm).requests == []
    assert llm.requests.runner.ids == []


def test_when_the_engine_refuses_one_prompt_none_stays(llm: LLM) -> None:
    engine = engine_of(llm)
    engine.most_requests = 2
    with pytest.raises(Overloaded):
        llm.generate(["a", "b", "c"], use_tqdm=False)
    assert not engine.waiting
    assert llm.requests.runner.ids == []
    assert texts(llm.generate(["a"], use_tqdm=False)) == ["a"]


def test_an_interrupt_ends_what_runs(llm: LLM) -> None:
    engine = engine_of(llm)
    engine.interrupt_at = 2
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["the fox", "the dog"], use_tqdm=False)
    assert not engine.waiting
    assert texts(llm.generate("fox", use_tqdm=False)) == ["fox"]


def test_a_failed_request_raises_and_ends_its_batch(llm: LLM) -> None:
    engine = engine_of(llm)
    engine.fail_at = 2
    with pytest.raises(PluginFailed, match="it broke"):
        llm.generate(["the fox", "the dog"], use_tqdm=False)
    assert not engine.waiting


def test_a_stop_string_ends_the_seq_in_the_engine(llm: LLM) -> None:
    (output,) = llm.generate("the fox jumps", SamplingParams(stop=" fox", max_tokens=None), use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("the", " fox")
    assert engine_of(llm).aborted == [("0", 0)]


def test_enqueued_requests_wait_until_they_are_asked_for(llm: LLM) -> None:
    ids = llm.enqueue(["the fox", "the dog"], SamplingParams(max_tokens=None))
    assert (ids, engine_of(llm).steps) == (["0", "1"], 0)
    assert texts(llm.generate("fox", use_tqdm=False)) == ["fox"]
    assert texts(llm.wait_for_completion(use_tqdm=False)) == ["the fox", "the dog"]
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_the_bar_shows_both_speeds(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["the fox", "the dog"])
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "prefill: " in shown
    assert "decode: " in shown
    llm.generate("the fox", use_tqdm=False)
    assert capsys.readouterr().err == ""


# --- chat, beams, the rest -------------------------------------------------------------------------


def test_chat_renders_one_conversation_or_many(llm: LLM) -> None:
    fox, dog = ([{"role": "user", "content": word}] for word in ("fox", "dog"))
    params = SamplingParams(max_tokens=None, skip_special_tokens=False)
    rendered = "<s><|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    assert texts(llm.chat(fox, params, use_tqdm=False)) == [rendered.format("fox")]
    assert texts(llm.chat([fox, dog], params, use_tqdm=False)) == [rendered.format("fox"), rendered.format("dog")]
    assert texts(llm.chat(fox, params, use_tqdm=False, chat_template="{{ messages[0].content }}")) == ["fox"]
    tool = {"type": "function", "function": {"name": "hunt"}}
    shows = "{{ tools[0].function.name }}"
    assert texts(llm.chat(fox, params, use_tqdm=False, chat_template=shows, tools=[tool])) == ["hunt"]
    open_end = [*fox, {"role": "assistant", "content": "It is"}]
    (output,) = llm.chat(open_end, params, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt is not None
    assert output.prompt.endswith("It is")


def test_beam_search_gives_whole_sequences(llm: LLM) -> None:
    (output,) = llm.beam_search("the fox", BeamSearchParams(beam_width=2, max_tokens=9))
    assert [beam.text for beam in output.sequences] == ["the foxthe fox"] * 2
    assert [beam.cum_logprob for beam in output.sequences] == [-1.0, -2.0]
    assert output.sequences[0].tokens == 2 * llm.get_tokenizer().encode("the fox")


def test_it_tells_its_figures_and_closes_once(llm: LLM) -> None:
    engine = engine_of(llm)
    assert llm.get_metrics()["model"] == "parrot"
    assert llm.reset_prefix_cache() is True
    assert engine.resets == 1
    llm.close()
    llm.close()
    assert engine.closes == 1


def test_more_tokens_than_fit_are_cut_to_what_fits(llm: LLM) -> None:
    llm.generate(["abc", [1] * 63], SamplingParams(max_tokens=2048, min_tokens=100), use_tqdm=False)
    llm.generate("abc", BeamSearchParams(beam_width=2, max_tokens=2048), use_tqdm=False)
    first, second, beams = (request.params for request in engine_of(llm).requests)
    room = 64 - len(engine_of(llm).requests[0].prompt.token_ids)
    assert isinstance(first, SamplingParams)
    assert (first.max_tokens, first.min_tokens, second.max_tokens, beams.max_tokens) == (room, room, 1, room)


# --- arguments -------------------------------------------------------------------------------------


def test_an_unknown_argument_leads_to_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="Did you mean 'max_model_len'"):
        LLM("m", max_model_length=5)


def test_arguments_of_the_same_meaning_elsewhere_are_taken_or_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-server-count"):
        LLM("m", api_server_count=2)
    with pytest.raises(ConfigError, match="no folder"):
        LLM(str(tmp_path / "missing"), tensor_parallel_size=1, enforce_eager=True, plugins="")


def test_more_sequences_run_at_once_than_in_a_server() -> None:
    assert model_config("m", {}).max_num_seqs == 256 > ModelConfig(model="m").max_num_seqs
    assert model_config("m", {"max_num_seqs": 3}).max_num_seqs == 3


def test_the_demo_model_answers() -> None:
    with LLM("demo-chat", max_model_len=128, kv_cache_memory_bytes=16 << 20, max_num_seqs=4) as llm:
        params = SamplingParams(temperature=0, max_tokens=12)
        conversation = [{"role": "user", "content": "Sort 3, 1, 2."}]
        alone = llm.chat(conversation, params, use_tqdm=False)[0]
        among = llm.chat([conversation] * 6, [params, *[SamplingParams(seed=i) for i in range(5)]], use_tqdm=False)
        assert among[0].outputs[0].token_ids == alone.outputs[0].token_ids
        assert alone.outputs[0].text
        said = alone.outputs[0].text
        stopped = llm.chat(conversation, SamplingParams(temperature=0, stop=said[3:5]), use_tqdm=False)
        assert stopped[0].outputs[0].text == said[: said.index(said[3:5])]
        assert llm.get_metrics()["num_running"] == 0
