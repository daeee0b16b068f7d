"""`bench profile`: whose seconds they are, what the roof is made of, and the command itself."""

import json
from contextlib import contextmanager
from itertools import count

import pytest
import torch
from engine_rig import greedy, rig_of

from quire.cli import main
from quire.commands.bench.machine import Machine
from quire.commands.bench.offline import submit
from quire.commands.bench.ops import OpTime, times_of_model, times_of_torch
from quire.commands.bench.profile_tables import phases, sizes
from quire.commands.bench.roof import Cost, Experts, Geometry, Heads, Span, ideal_steps
from quire.commands.bench.steps import PHASES, Step, StepWatch, WatchedRun, watch_jobs
from quire.commands.bench.workload import Job
from quire.errors import QuireError
from quire.testing.tiny import SIZES, tiny_llama, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def rig(folder):
    with rig_of(folder) as rig:
        yield rig


# --- phases ------------------------------------------------------------------------------------------


def ticking(engine):
    """A watch whose clock goes on by one whenever it is read."""
    ticks = count()
    return StepWatch(engine, lambda: next(ticks))


def test_every_second_of_a_step_belongs_to_the_phase_it_passed_in(rig):
    watch = ticking(rig.engine)
    rig.add([1, 2, 3], greedy(1))
    with watch.on():
        step, deltas = watch.step()
    assert step.seconds == {"plan": 2, "layout": 1, "forward": 1, "logits": 1, "sample": 1, "commit": 1}
    assert step.spans == (Span(0, 3, True),)
    assert step.elapsed_s == 7
    assert len(deltas) == 1


def test_a_step_that_calls_the_model_for_each_token_lays_out_between_the_calls(folder):
    with rig_of(folder, batch_invariant=True) as rig:
        watch = ticking(rig.engine)
        rig.add([1, 2, 3], greedy(1))
        with watch.on():
            step, _ = watch.step()
    assert step.seconds == {"plan": 2, "layout": 3, "forward": 3, "logits": 1, "sample": 1, "commit": 1}


def test_a_step_that_samples_nothing_has_no_seconds_of_sampling(rig):
    watch = ticking(rig.engine)
    rig.add(range(20), greedy(1))  # steps are of 13 tokens
    with watch.on():
        step, _ = watch.step()
    assert step.spans == (Span(0, 13, False),)
    assert step.seconds["sample"] == 0


def test_watching_changes_no_answer_and_leaves_nothing_behind(rig):
    engine, prompts = rig.engine, [[1, 2, 3], list(range(20, 40)), [7]]
    expected = rig.tokens(prompts, greedy(5))
    engine.reset_prefix_cache()
    watch, got = StepWatch(engine), {}
    ids = [rig.add(prompt, greedy(5)) for prompt in prompts]
    with watch.on():
        while engine.has_work:
            for delta in watch.step()[1]:
                got.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert [got[request_id] for request_id in ids] == expected
    assert not {"plan", "commit"} & vars(engine._scheduler).keys()
    assert "run" not in vars(engine._runner)
    assert not {"sample", "take"} & vars(engine._runner._sampler).keys()
    assert not engine.loaded.module._forward_hooks
    assert not engine.loaded.module._forward_pre_hooks


def test_a_watched_workload_computes_every_token_once(rig):
    work = [Job((1, 2, 3, 4, 5), 4), Job(tuple(range(30)), 2)]
    run = watch_jobs(rig.engine, lambda: submit(rig.engine, work, "x"))
    spans = [span for step in run.steps for span in step.spans]
    assert sum(span.length for span in spans) == (5 + 3) + (30 + 1)  # the last token is never computed
    assert sum(span.samples for span in spans) == 4 + 2
    assert all(step.seconds["forward"] > 0 for step in run.computing)
    assert sum(step.elapsed_s for step in run.steps) <= run.elapsed_s


def test_a_request_that_fails_ends_the_profile_with_its_error(rig):
    def refuse(*_):
        raise RuntimeError("no forward today")

    hook = rig.engine.loaded.module.register_forward_pre_hook(refuse)
    with pytest.raises(QuireError, match="no forward today"):
        watch_jobs(rig.engine, lambda: submit(rig.engine, [Job((1, 2), 2)], "x"))
    hook.remove()


# --- geometry and costs ------------------------------------------------------------------------------


def elements(folder):
    """(body, head, attention FLOPs per pair, KV values per position) by the config alone."""
    c = json.loads((folder / "config.json").read_text())
    width, heads, kv_heads, d = (
        SIZES[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    attention = width * (heads + 2 * kv_heads) * d + heads * d * width
    body = c["num_hidden_layers"] * (attention + 3 * width * c["intermediate_size"])
    blocks = c["num_hidden_layers"]
    return body, c["vocab_size"] * width, 4 * blocks * heads * d, 2 * blocks * kv_heads * d


@pytest.mark.parametrize("tied", [False, True])
def test_geometry_is_that_of_the_config(tmp_path, tied):
    folder = tiny_llama(tmp_path / "m", tie_word_embeddings=tied)
    with rig_of(folder) as rig:
        geometry = Geometry.of(rig.engine.loaded)
    body, head, pair_flops, kv_values = elements(folder)
    assert (geometry.body, geometry.head) == (body, head)
    assert geometry.kv_bytes_per_token == kv_values * 4
    cost = geometry.cost([Span(0, 6, False), Span(10, 1, True)])
    assert cost.flops == 2 * body * 7 + 2 * head + pair_flops * (6 * 7 / 2 + 11)
    assert cost.bytes == 4 * (body + head + kv_values * 10)


def test_the_head_is_read_only_in_steps_that_give_a_token(rig):
    geometry = Geometry.of(rig.engine.loaded)
    without, with_token = geometry.cost([Span(0, 4, False)]), geometry.cost([Span(0, 4, True)])
    assert with_token.bytes - without.bytes == 4 * geometry.head
    assert with_token.flops - without.flops == 2 * geometry.head


def test_a_mixture_reads_the_experts_that_tokens_reach_and_computes_those_chosen(tmp_path):
    folder = tiny_model(
        tmp_path / "m", "Qwen3MoeForCausalLM", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32
    )
    with rig_of(folder) as rig:
        geometry = Geometry.of(rig.engine.loaded)
    expert, layers = 3 * 32 * SIZES["hidden_size"], SIZES["num_hidden_layers"]
    assert geometry.experts == ((Experts(8, 2, expert), layers),)
    one, many = (geometry.cost([Span(0, n, False)]) for n in (1, 1000))
    assert one.bytes == pytest.approx(4 * (geometry.body + layers * 2 * expert))
    assert many.bytes == pytest.approx(4 * (geometry.body + layers * 8 * expert))
    pairs = 1000 * 1001 / 2 * 4 * layers * SIZES["num_attention_heads"] * SIZES["head_dim"]
    assert many.flops == 2 * 1000 * (geometry.body + layers * 2 * expert) + pairs


@pytest.mark.parametrize("window", [None, 1, 4, 9, 100])
@pytest.mark.parametrize("start", [0, 1, 3, 8, 20])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_attention_counts_the_pairs_that_see_each_other(window, start, length):
    heads, span = Heads(1, 1, 1, window), Span(start, length, True)
    seen = [{i for i in range(p + 1) if window is None or p - i < window} for p in range(start, start + length)]
    assert heads.seen(span) == sum(map(len, seen))
    assert heads.earlier(span) == len({i for positions in seen for i in positions if i < start})


def test_the_fewest_steps_are_one_for_all_prompts_and_then_a_token_for_each_request():
    steps = ideal_steps([Job((0,) * 5, 3), Job((0,) * 7, 1), Job((0,) * 6, 2)], shared=0)
    assert steps[0] == [Span(0, 5, True), Span(0, 7, True), Span(0, 6, True)]
    assert steps[1:] == [[Span(5, 1, True), Span(6, 1, True)], [Span(6, 1, True)]]
    shared = ideal_steps([Job((0,) * 5, 1), Job((0,) * 7, 1)], shared=4)
    assert shared == [[Span(0, 5, True), Span(4, 3, True)]]


# --- machine -----------------------------------------------------------------------------------------


def test_a_step_takes_as_long_as_the_slower_of_reading_and_computing():
    machine = Machine(read_bytes_per_s=10.0, flops_per_s=100.0)
    assert machine.least_s(Cost(flops=100.0, bytes=20.0)) == 2.0
    assert machine.least_s(Cost(flops=500.0, bytes=20.0)) == 5.0
    assert machine.reads_longer(Cost(flops=100.0, bytes=20.0))
    assert not machine.reads_longer(Cost(flops=500.0, bytes=20.0))
    assert machine.best(Machine(5.0, 200.0)) == Machine(10.0, 200.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_machine_can_be_measured(dtype):
    machine = Machine.measure(torch.device("cpu"), dtype, num_floats=2**16, width=32)
    assert 1e6 < machine.read_bytes_per_s < 1e14
    assert 1e6 < machine.flops_per_s < 1e17


# --- tables ------------------------------------------------------------------------------------------


def step(*spans, forward=1.0, plan=0.0):
    return Step(spans, {**dict.fromkeys(PHASES, 0.0), "forward": forward, "plan": plan})


def test_phases_are_of_the_steps_that_computed_and_add_up_to_the_run():
    run = WatchedRun([step(Span(0, 9, True), forward=5.0), step(Span(9, 1, True)), step(forward=0.0, plan=1.0)], 10.0)
    rows = {row.phase: row for row in phases(run)}
    assert (rows["forward"].mean_ms, rows["forward"].total_s, rows["forward"].share_percent) == (3000, 6.0, 60)
    assert (rows["plan"].mean_ms, rows["plan"].total_s) == (0, 1.0)
    assert (rows["step"].total_s, rows["between steps"].total_s) == (7.0, 3.0)
    assert sum(rows[name].share_percent for name in (*PHASES, "between steps")) == pytest.approx(100)


def test_steps_of_like_size_stand_beside_their_roof(rig):
    geometry, machine = Geometry.of(rig.engine.loaded), Machine(1e6, 1e12)
    steps = [step(Span(0, 200, True)), step(Span(200, 1, True), forward=2.0), step(Span(201, 1, True), forward=4.0)]
    one, many = sizes(WatchedRun(steps, 7.0), geometry, machine)
    assert (one.tokens, one.steps, one.mean_ms, one.bound_by_reading) == ("1", 2, 3000, 2)
    read = sum(geometry.cost(step.spans).bytes for step in steps[1:])
    assert one.roof_share_percent == pytest.approx(100 * read / 1e6 / 6.0)
    assert one.read_gb_s == pytest.approx(read / 6.0 / 1e9)
    assert (many.tokens, many.steps) == ("129 to 512", 1)


# --- operations --------------------------------------------------------------------------------------


class Telling(torch.nn.Module):
    """A model that times its own operations."""

    ran = False

    @contextmanager
    def profile(self):
        model = self

        class Profile:
            def rows(self):
                assert model.ran
                return [("norm", 2, 0.5), ("linear", 4, 2.0, 8e9, 4e9)]

        yield Profile()


def test_a_model_that_times_its_operations_is_asked():
    model = Telling()

    def run():
        model.ran = True

    assert times_of_model(model, run) == [OpTime("linear", 4, 2.0, 8e9, 4e9), OpTime("norm", 2, 0.5)]
    assert times_of_model(torch.nn.Identity(), run) is None


def test_torch_tells_its_operations_the_longest_first():
    x = torch.ones(300, 300)
    ops, elapsed_s = times_of_torch(torch.device("cpu"), lambda: [x @ x, x @ x, x + 1])
    assert {op.name: op.calls for op in ops}["aten::mm"] == 2
    assert [op.seconds for op in ops] == sorted((op.seconds for op in ops), reverse=True)
    assert sum(op.seconds for op in ops) <= elapsed_s


# --- the command -------------------------------------------------------------------------------------

SMALL = ("--num-prompts", 4, "--input-len", "5:20", "--output-len", "3:6", "--repeats", 2, "--num-pages", 200)


def profile(capsys, *words):
    status = main(["bench", "profile", *map(str, words)])
    return status, capsys.readouterr().out


def test_profile_prints_phases_operations_and_the_roof_and_writes_them(folder, tmp_path, capsys):
    file = tmp_path / "figures.json"
    speeds = ("--read-gb-s", 50, "--peak-gflop-s", 400, "--prefix-len", 3)
    status, out = profile(capsys, *SMALL, *speeds, "--output-json", file, folder)
    assert status == 0
    for word in ("scheduling", "tokens chosen", "torch operations", "aten::", "roof_of_planned_s"):
        assert word in out
    written = json.loads(file.read_text())
    total = {row["phase"]: row["total_s"] for row in written["phases"]}
    assert sum(total[phase] for phase in PHASES) == pytest.approx(total["step"])
    assert total["step"] + total["between steps"] == pytest.approx(written["elapsed_s"])
    assert sum(row["steps"] for row in written["steps_by_size"]) == written["steps"]
    roof = written["roof"]
    assert (roof["read_gb_s"], roof["peak_gflop_s"]) == (50, 400)
    assert 0 < roof["roof_of_workload_s"] <= roof["roof_of_planned_s"] < written["elapsed_s"]
    assert roof["roof_of_planned_reached_percent"] == pytest.approx(
        100 * roof["roof_of_planned_s"] / written["elapsed_s"]
    )
    told = written["model_ops"] or []  # none where there is no compiler: then each operation is a call of its own
    assert all(row["calls"] > 0 and row["seconds"] > 0 for row in told)
    assert not told or {"attention", "rms_norm"} <= {row["name"] for row in told}
    assert any(op["name"].startswith("aten::") and op["calls"] > 0 for op in written["torch_ops"])


def test_profile_measures_the_machine_before_and_after_and_takes_the_better(folder, tmp_path, capsys, monkeypatch):
    found = [Machine(10e9, 900e9), Machine(20e9, 700e9)]
    monkeypatch.setattr(Machine, "measure", lambda *_: found.pop(0))
    file = tmp_path / "figures.json"
    assert profile(capsys, *SMALL, "--output-json", file, folder)[0] == 0
    roof = json.loads(file.read_text())["roof"]
    assert (roof["read_gb_s"], roof["peak_gflop_s"], found) == (20, 900, [])


def test_profile_shows_what_a_model_tells_of_its_operations(folder, capsys, monkeypatch):
    rows = [("linear", 4, 2.0, 8e9, 4e9), ("norm", 2, 0.5)]
    monkeypatch.setattr("quire.commands.bench.profile.times_of_model", lambda *_: [OpTime(*row) for row in rows])
    _, out = profile(capsys, *SMALL, "--read-gb-s", 50, "--peak-gflop-s", 400, folder)
    table = out.split("operations, as the model tells")[1].split("torch operations")[0]
    lines = [line.split() for line in table.splitlines() if "linear" in line or "norm" in line]
    assert [cell for cell in lines[0] if cell != "│"] == ["linear", "4", "2.00", "80.0", "500,000", "4.00", "2.00"]
    assert [cell for cell in lines[1] if cell != "│"] == ["norm", "2", "0.500", "20.0", "250,000"]


@pytest.mark.parametrize("words", [("--read-gb-s", 0), ("--peak-gflop-s", "fast"), ("--repeats", 0)])
def test_profile_refuses_numbers_that_cannot_be(words, capsys):
    with pytest.raises(SystemExit):
        profile(capsys, *words)
    assert words[0] in capsys.readouterr().err
