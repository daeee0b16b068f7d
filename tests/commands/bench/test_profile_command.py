"""The command `bench profile`."""

import json

import pytest

from quire.cli import main
from quire_bench.profiling.device_roofline import DeviceRoofline
from quire_bench.profiling.op_times import OpTime
from quire_bench.profiling.step_profiler import PHASES

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
    rows = written["model_ops"] or []  # none where there is no compiler: then each operation is a call of its own
    assert all(row["calls"] > 0 and row["seconds"] > 0 for row in rows)
    assert not rows or {"attention", "rms_norm"} <= {row["name"] for row in rows}
    assert all(row["bytes"] > 0 for row in rows), "all of them are products, attention or go over rows"
    assert all(row["flops"] > 0 for row in rows if row["name"].startswith(("product", "attention")))
    assert any(op["name"].startswith("aten::") and op["calls"] > 0 for op in written["torch_ops"])


def test_profile_measures_the_machine_before_and_after_and_takes_the_better(folder, tmp_path, capsys, monkeypatch):
    found = [DeviceRoofline(10e9, 900e9), DeviceRoofline(20e9, 700e9)]
    monkeypatch.setattr(DeviceRoofline, "measure", lambda *_: found.pop(0))
    file = tmp_path / "figures.json"
    assert profile(capsys, *SMALL, "--output-json", file, folder)[0] == 0
    roof = json.loads(file.read_text())["roof"]
    assert (roof["read_gb_s"], roof["peak_gflop_s"], found) == (20, 900, [])


def test_profile_shows_what_a_model_tells_of_its_operations(folder, capsys, monkeypatch):
    rows = [("linear", 4, 2.0, 8e9, 4e9), ("norm", 2, 0.5)]
    monkeypatch.setattr("quire_bench.profiling.profile.times_of_model", lambda *_: [OpTime(*row) for row in rows])
    _, out = profile(capsys, *SMALL, "--read-gb-s", 50, "--peak-gflop-s", 400, folder)
    table = out.split("operations, as the model tells")[1].split("torch operations")[0]
    lines = [line.split() for line in table.splitlines() if "linear" in line or "norm" in line]
    assert [cell for cell in lines[0] if cell != "│"] == [
        "linear",
        "4",
        "2.00",
        "80.0",
        "500,000",
        "4.00",
        "2.00",
        "8.00",
    ]
    assert [cell for cell in lines[1] if cell != "│"] == ["norm", "2", "0.500", "20.0", "250,000"]


@pytest.mark.parametrize("words", [("--read-gb-s", 0), ("--peak-gflop-s", "fast"), ("--repeats", 0)])
def test_profile_refuses_numbers_that_cannot_be(words, capsys):
    with pytest.raises(SystemExit):
        profile(capsys, *words)
    assert words[0] in capsys.readouterr().err
