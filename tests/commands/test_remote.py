import pytest
from greeting_server import greeting_server

from quire.commands.chat.command import run_chat, run_complete
from quire.commands.remote import OpenAIServer, RemoteError
from quire_bench.report import percentile, spread
from quire_bench.servers.load import arrivals
from quire_bench.workload import Range, jobs


def options(url, **changes):
    class Args:
        api_key = None
        model_name = None
        quick = "hi"
        max_tokens = None
        temperature = None
        stats = False
        system_prompt = None
        image = ()

    args = Args()
    args.url = url
    vars(args).update(changes)
    return args


def test_chat_prints_a_streamed_answer_and_its_cost(capsys):
    with greeting_server() as (server, url):
        assert run_chat(options(url, stats=True, system_prompt="be brief", api_key="k")) == 0
    out = capsys.readouterr().out
    assert out.startswith("hello world\n")
    assert "[3 + 2 tokens" in out
    path, body, key = server.bodies[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer k")
    assert [m["role"] for m in body["messages"]] == ["system", "user"]


def test_complete_sends_the_prompt_as_it_is(capsys):
    with greeting_server() as (server, url):
        assert run_complete(options(url, max_tokens=7)) == 0
    assert capsys.readouterr().out == "hello world\n"
    assert server.bodies[0][1]["prompt"] == "hi"
    assert server.bodies[0][1]["max_tokens"] == 7


def test_an_error_of_the_server_is_printed_unchanged():
    with greeting_server() as (_, url), pytest.raises(RemoteError, match="404: no such model"):
        run_chat(options(url, model_name="other"))


def test_an_error_inside_a_stream_is_printed():
    with greeting_server() as (_, url), pytest.raises(RemoteError, match="the host died"):
        run_chat(options(url, temperature=2))


def test_a_server_that_is_not_there_is_said_so():
    with pytest.raises(RemoteError, match="No server responds"):
        OpenAIServer("http://127.0.0.1:9/v1").first_model()


def test_lengths_stay_in_their_range_and_depend_on_the_seed_alone():
    class Args:
        input_len = Range.parse("3:9")
        output_len = Range.parse("4")
        num_prompts = 50
        prefix_len = 2
        workload_seed = 1

    first, again = jobs(Args, 100, salt=0), jobs(Args, 100, salt=1)
    assert [len(j.prompt) for j in first] == [len(j.prompt) for j in again]
    assert first != again
    assert {len(j.prompt) - 2 for j in first} == set(range(3, 10))
    assert {j.output_len for j in first} == {4}
    assert len({j.prompt[:2] for j in first}) == 1


def test_arrivals_have_the_rate_asked_for():
    times = arrivals(2000, rate=4.0, burstiness=1.0, seed=0)
    assert times == sorted(times)
    assert 2000 / times[-1] == pytest.approx(4.0, rel=0.1)
    assert arrivals(3, float("inf"), 1.0, 0) == [0.0] * 3


def test_percentiles_interpolate():
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert spread("x", [1.0, 3.0], "s")["x_mean_s"] == 2.0
