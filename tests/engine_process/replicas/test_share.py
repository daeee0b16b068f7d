"""What each replica gets of a machine."""

import sys
from types import SimpleNamespace

import pytest

from quire.engine_process.replicas.share import ReplicaShare, divide


@pytest.mark.parametrize(
    ("count", "environment", "gpus", "devices", "sharing"),
    [
        (2, {}, 0, [None, None], [2, 2]),
        (2, {}, 4, ["0", "1"], [1, 1]),
        (3, {}, 2, ["0", "1", "0"], [2, 1, 2]),
        (2, {"CUDA_VISIBLE_DEVICES": "5,3"}, 8, ["5", "3"], [1, 1]),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, 8, [None, None], [2, 2]),
    ],
)
def test_memory_and_gpus_are_divided(tmp_path, count, environment, gpus, devices, sharing):
    for number in range(gpus):
        (tmp_path / str(number)).mkdir()
    shares = divide(count, 1200, environment, tmp_path)
    assert [share.device for share in shares] == devices
    assert [share.num_on_device for share in shares] == sharing
    assert [(share.index, share.count, share.memory_bytes) for share in shares] == [
        (number, count, 1200 // count) for number in range(count)
    ]


def test_a_machine_without_a_driver_has_no_gpus(tmp_path):
    assert [share.device for share in divide(2, 0, {}, tmp_path / "missing")] == [None, None]


@pytest.mark.parametrize(
    ("count", "given", "threads"), [(2, {}, 4), (3, {}, 2), (16, {}, 1), (2, {"OMP_NUM_THREADS": "8"}, None)]
)
def test_threads_are_divided_unless_the_user_set_their_number(monkeypatch, count, given, threads):
    chosen = []
    torch = SimpleNamespace(get_num_threads=lambda: 8, set_num_threads=chosen.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    environment = dict(given)
    ReplicaShare(0, count, 0, "7").apply(environment)
    assert chosen == ([] if threads is None else [threads])
    assert environment == {**given, "CUDA_VISIBLE_DEVICES": "7"}
