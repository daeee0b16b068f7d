"""A short run of `adapter_stress.py`: eight clients, 200 random operations, every answer checked."""

import pytest
from adapter_stress import FLAGS, SLOTS, make_folders, stress
from serving import serving

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("engines", [1, 2])
async def test_random_operations_of_many_clients_give_right_answers_and_leave_nothing(tmp_path, engines):
    base, folders, bad = make_folders(tmp_path, ballast_rank=8)
    with serving(f"base={base}", *FLAGS, *SLOTS, "-dp", engines) as server:
        done = await stress(server.url, folders, bad, 8, 200)
        assert "Traceback" not in server.output()
    assert sum(done.values()) == 200
    assert min(done["asked an adapter"], done["loaded"], done["replaced"], done["unloaded"], done["was refused"]) > 0
