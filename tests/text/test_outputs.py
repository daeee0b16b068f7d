"""The collector: deltas of tokens become outputs with text."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from quire.errors import BadRequest, Overloaded, QuireError
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.text.inputs.inputs import to_engine_request
from quire.text.outputs.outputs import Collector, TextDelta
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt, Request, SeqDelta, TokenLogprobs

# --- collecting ------------------------------------------------------------------------------------


def request(params: SamplingParams | BeamSearchParams | None = None, prompt: Sequence[int] = (10, 11)) -> Request:
    return Request(id="r", prompt=Prompt(token_ids=tuple(prompt), text="p"), params=params or SamplingParams())


def deltas_of(ids: Sequence[int], finish: str | None = "length", per_step: int = 1, **last: Any) -> list[SeqDelta]:
    """`ids` as an engine gives them, some per step."""
    groups = [tuple(ids[i : i + per_step]) for i in range(0, len(ids), per_step)]
    made = [SeqDelta(request_id="r", token_ids=group) for group in groups[:-1]]
    return [*made, SeqDelta(request_id="r", token_ids=groups[-1], finish_reason=finish, **last)]  # type: ignore[arg-type]


def push_all(collector: Collector, deltas: Sequence[SeqDelta]) -> list[TextDelta]:
    return [piece for delta in deltas for piece in collector.push(delta)]


@pytest.mark.parametrize("per_step", [1, 3])
def test_pieces_add_up_to_the_output(per_step: int, tokenizer: Tokenizer) -> None:
    text = "The fox 🙂 naïve 字!"
    ids = tokenizer.encode(text)
    collector = Collector(request(), tokenizer)
    pieces = push_all(collector, deltas_of(ids, per_step=per_step))
    (output,) = collector.result().outputs
    assert "".join(piece.text for piece in pieces) == output.text == text
    assert [i for piece in pieces for i in piece.token_ids] == output.token_ids == ids
    assert (output.finish_reason, output.stop_reason, output.finished) == ("length", None, True)
    assert collector.done
    assert collector.take_aborts() == []
    assert collector.num_output_tokens == len(ids)
    assert not any("\ufffd" in piece.text for piece in pieces)


def test_the_result_tells_of_the_prompt(tokenizer: Tokenizer) -> None:
    collector = Collector(request(SamplingParams(prompt_logprobs=1)), tokenizer)
    known = (None, TokenLogprobs(11, -1.5, 2, ((12, -0.5),)))
    collector.push(SeqDelta(request_id="r", token_ids=(20,), num_cached_tokens=1, prompt_logprobs=known))
    result = collector.result()
    assert (result.prompt, result.prompt_token_ids, result.num_cached_tokens) == ("p", [10, 11], 1)
    assert not result.finished
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None
    own, top = result.prompt_logprobs[1].values()  # type: ignore[union-attr]
    assert (own.logprob, own.rank, own.decoded_token) == (-1.5, 2, tokenizer.token_text(11))
    assert (top.logprob, top.rank, top.token_bytes) == (-0.5, 1, tokenizer.token_bytes(12))


@pytest.mark.parametrize("per_step", [1, 4])
@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_string_cuts_the_text_and_aborts_the_seq(per_step: int, keep: bool, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two STOP three four")
    params = SamplingParams(stop=["STOP", "never"], include_stop_str_in_output=keep)
    collector = Collector(request(params), tokenizer)
    pieces = push_all(collector, deltas_of(ids, finish=None, per_step=per_step))
    (output,) = collector.result().outputs
    assert output.text == "".join(piece.text for piece in pieces) == ("one two STOP" if keep else "one two ")
    assert (output.finish_reason, output.stop_reason) == ("stop", "STOP")
    assert tokenizer.decode(output.token_ids) == "one two STOP"
    assert collector.take_aborts() == [("r", 0)]
    assert collector.take_aborts() == []
    assert collector.done
    assert collector.push(SeqDelta(request_id="r", token_ids=(5,))) == []


def test_a_stop_string_in_the_last_token_needs_no_abort(tokenizer: Tokenizer) -> None:
    collector = Collector(request(SamplingParams(stop="fox")), tokenizer)
    push_all(collector, deltas_of(tokenizer.encode("the fox")))
    assert collector.take_aborts() == []
    assert collector.result().outputs[0].stop_reason == "fox"


def test_stop_strings_that_are_complete_within_min_tokens_do_not_count(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("x y x y")
    first = next(n for n in range(len(ids)) if "y" in tokenizer.decode(ids[: n + 1])) + 1
    collector = Collector(request(SamplingParams(stop="y", min_tokens=first, max_tokens=99)), tokenizer)
    push_all(collector, deltas_of(ids, finish=None))
    assert collector.result().outputs[0].text == "x y x "


def test_text_held_back_for_a_stop_string_comes_at_the_end(tokenizer: Tokenizer) -> None:
    collector = Collector(request(SamplingParams(stop="END")), tokenizer)
    pieces = push_all(collector, deltas_of(tokenizer.encode("the EN")))
    assert "".join(piece.text for piece in pieces) == "the EN"
    assert pieces[-1].finish_reason == "length"


def test_the_token_that_ended_the_text_is_counted_but_not_shown(tokenizer: Tokenizer) -> None:
    end, stop = tokenizer.vocab["<|im_end|>"], tokenizer.vocab["!"]
    ids = tokenizer.encode("hi")
    for last, reason, keep, skip, text in [
        (end, None, False, True, "hi"),
        (end, None, False, False, "hi"),
        (end, None, True, False, "hi<|im_end|>"),
        (stop, stop, False, True, "hi"),
        (stop, stop, True, True, "hi!"),
        (stop, None, False, True, "hi!"),  # a grammar was complete: the token belongs to the text
    ]:
        params = SamplingParams(include_stop_str_in_output=keep, skip_special_tokens=skip)
        collector = Collector(request(params), tokenizer)
        push_all(collector, deltas_of([*ids, last], finish="stop", stop_reason=reason))
        (output,) = collector.result().outputs
        assert (output.text, output.token_ids[-1], output.stop_reason) == (text, last, reason)
    named = Collector(request(), tokenizer, eos_ids=(stop,))
    push_all(named, deltas_of([*ids, stop], finish="stop"))
    assert named.result().outputs[0].text == "hi"


def test_without_detokenizing_there_are_only_ids(tokenizer: Tokenizer) -> None:
    collector = Collector(request(SamplingParams(detokenize=False, logprobs=0)), tokenizer)
    logprobs = (TokenLogprobs(20, -1.0, 1), TokenLogprobs(21, -2.0, 1))
    collector.push(SeqDelta(request_id="r", token_ids=(20, 21), logprobs=logprobs, finish_reason="length"))
    (output,) = collector.result().outputs
    assert (output.text, output.token_ids, output.cumulative_logprob) == ("", [20, 21], -3.0)


def test_logprobs_go_with_their_tokens_and_know_where_the_text_stood(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab 🙂 END zz")
    collector = Collector(request(SamplingParams(logprobs=1, stop="END")), tokenizer)
    pieces = push_all(
        collector,
        [SeqDelta(request_id="r", token_ids=(i,), logprobs=(TokenLogprobs(i, -1.0, 2, ((3, -0.5),)),)) for i in ids],
    )
    (output,) = collector.result().outputs
    assert output.logprobs is not None
    assert output.text_offsets is not None
    assert len(output.logprobs) == len(output.text_offsets) == len(output.token_ids) < len(ids)
    assert all(list(entry) == [i, 3] for i, entry in zip(output.token_ids, output.logprobs, strict=True))
    assert (
        b"".join(entry[i].token_bytes or b"" for i, entry in zip(ids, output.logprobs, strict=False))
        == "ab 🙂 END".encode()
    )
    assert output.text_offsets == [
        len(tokenizer.decode(ids[:n]).rstrip("\ufffd")) for n in range(len(output.token_ids))
    ]
    assert all(len(piece.logprobs or ()) == len(piece.token_ids) == len(piece.text_offsets or ()) for piece in pieces)


def test_several_completions_end_by_themselves(tokenizer: Tokenizer) -> None:
    collector = Collector(request(SamplingParams(n=2, stop="!")), tokenizer)
    first, second = tokenizer.encode("a!"), tokenizer.encode("b")
    collector.push(SeqDelta(request_id="r", index=0, token_ids=tuple(first)))
    assert not collector.done
    assert collector.take_aborts() == [("r", 0)]
    collector.push(SeqDelta(request_id="r", index=1, token_ids=tuple(second), finish_reason="length"))
    assert collector.done
    assert [(output.index, output.text) for output in collector.result().outputs] == [(0, "a"), (1, "b")]


def test_best_of_gives_the_likeliest_and_nothing_before(tokenizer: Tokenizer) -> None:
    asked = request(SamplingParams(n=2, best_of=3))
    sent = to_engine_request(asked)
    assert isinstance(sent.params, SamplingParams)
    assert sent.params.logprobs == 0
    assert to_engine_request(request()) == request()
    collector = Collector(asked, tokenizer)
    pieces = []
    for index, logprob in enumerate([-2.0, -0.5, -1.0]):
        ids = tuple(tokenizer.encode("xyz"[index]))
        logprobs = (TokenLogprobs(ids[0], logprob, 1),)
        pieces = collector.push(
            SeqDelta(request_id="r", index=index, token_ids=ids, logprobs=logprobs, finish_reason="stop")
        )
        assert bool(pieces) == (index == 2)
    assert [(piece.index, piece.text, piece.logprobs) for piece in pieces] == [(0, "y", None), (1, "z", None)]
    outputs = collector.result().outputs
    assert [(output.index, output.text, output.logprobs) for output in outputs] == [(0, "y", None), (1, "z", None)]


def test_beams_come_together_in_their_order(tokenizer: Tokenizer) -> None:
    collector = Collector(request(BeamSearchParams(beam_width=2, max_tokens=4)), tokenizer)
    for index, text in enumerate(["a b", "a c"]):
        ids = (*tokenizer.encode(text), tokenizer.vocab["<|im_end|>"])
        pieces = collector.push(
            SeqDelta(request_id="r", index=index, token_ids=ids, finish_reason="stop", cumulative_logprob=-index - 1.0)
        )
    assert [piece.text for piece in pieces] == ["a b", "a c"]
    assert [output.cumulative_logprob for output in collector.result().outputs] == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("name", "kind"), [("BadRequest", BadRequest), ("Overloaded", Overloaded), ("Strange", QuireError)]
)
def test_an_error_delta_raises_its_error(name: str, kind: type[QuireError], tokenizer: Tokenizer) -> None:
    with pytest.raises(kind, match="because"):
        Collector(request(), tokenizer).push(SeqDelta(request_id="r", error=(name, "because"), finish_reason="error"))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_however_tokens_come_the_output_is_the_same(
    data: st.DataObject, tokenizer: Tokenizer, spaced: Tokenizer
) -> None:
    used = data.draw(st.sampled_from([tokenizer, spaced]))
    ids = data.draw(st.lists(st.integers(0, used.vocab_size - 1), min_size=1, max_size=30))
    params = SamplingParams(stop=data.draw(st.lists(st.text("abox ", min_size=1, max_size=3), max_size=2)))
    cuts = random.Random(data.draw(st.integers(0, 99)))
    whole, pieced = Collector(request(params), used), Collector(request(params), used)
    whole.push(SeqDelta(request_id="r", token_ids=tuple(ids), finish_reason="length"))
    left = list(ids)
    while left:
        count = cuts.randint(1, 4)
        taken, left = left[:count], left[count:]
        pieced.push(SeqDelta(request_id="r", token_ids=tuple(taken), finish_reason=None if left else "length"))
    one, two = whole.result().outputs[0], pieced.result().outputs[0]
    assert (one.text, one.token_ids, one.stop_reason) == (two.text, two.token_ids, two.stop_reason)
    assert not any(stop in one.text for stop in params.stop or ())


def test_the_first_token_after_a_prompt_keeps_its_space(spaced: Tokenizer) -> None:
    prompt = spaced.encode("the")
    ids = spaced.encode("the fox")[len(prompt) :]
    collector = Collector(request(prompt=prompt), spaced)
    push_all(collector, deltas_of(ids))
    assert collector.result().outputs[0].text == " fox"
