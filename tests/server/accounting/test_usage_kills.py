"""A short run of `usage_totals.py`: a server is killed under load, and its accounts are right."""

import pytest
from usage_totals import check, run

pytestmark = pytest.mark.slow


async def test_a_server_that_was_killed_has_what_clients_saw_in_its_accounts_once(tmp_path):
    seen, rows = await run(tmp_path, 100, 8, kill_server_at=99, restarts=False)
    found = check(seen, rows)
    assert found["clients saw the end"] >= 50
    assert found["row finished"] >= found["clients saw the end"]
    assert seen.closed
