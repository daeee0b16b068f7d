"""How usage is stored: sums of what is too old or too much, and files that cannot be used."""

import sqlite3
import threading
import time
from dataclasses import replace

import pytest

from quire.errors import ConfigError
from quire.server.accounting import retention, writer as writing
from quire.server.accounting.opening import check_files
from quire.server.accounting.query import read_query
from quire.server.accounting.retention import RetentionLimits
from quire.server.accounting.store import UsageStore
from quire.server.accounting.sums import DAY_S, OTHER, BoundedSums
from quire.server.accounting.usage_metrics import MAX_SERIES, UsageMetrics
from quire.server.accounting.writer import WriterThread
from quire.types import UsageRecord

LIMITS = RetentionLimits(days=3, rows=1000)
ONE = UsageRecord(
    id="a",
    ended=1e9,
    tenant="t",
    model="m",
    adapter="",
    endpoint="/e",
    outcome="finished",
    output_tokens=2,
    device_s=0.5,
)


def records(count, **changes):
    return [replace(ONE, id=f"{changes.get('tenant', '')}{number}", **changes) for number in range(count)]


def rows(path, columns="count(*), sum(num_requests), sum(output_tokens)"):
    connection = sqlite3.connect(path)
    found = connection.execute(f"SELECT {columns} FROM usage").fetchall()
    connection.close()
    return found


@pytest.fixture
def path(tmp_path):
    return tmp_path / "usage.sqlite"


def tidied(store):
    """Portions until nothing is too old or too much."""
    for _ in range(30):
        store._retention._next_s = 0.0
        store.tidy(is_idle=True)
    store.close()


def test_a_record_that_arrives_twice_counts_once(path):
    store = UsageStore(path, LIMITS)
    store.write([ONE, *records(3)])
    store.write([ONE])
    store.close()
    assert rows(path) == [(4, 4, 8)]


def test_old_requests_become_sums_of_days_and_keep_their_totals(path, monkeypatch):
    monkeypatch.setattr(retention, "PORTION", 7)
    now = time.time()
    store = UsageStore(path, LIMITS)
    store.write(records(20, ended=now - 5 * DAY_S))
    store.write(records(5, ended=now - 5 * DAY_S, tenant="u"))
    store.write(records(6, ended=now, tenant="now"))
    tidied(store)
    assert rows(path) == [(8, 31, 62)]
    assert sorted(rows(path, "tenant, num_requests, device_s"))[-2:] == [("t", 20, 10.0), ("u", 5, 2.5)]


def test_more_requests_than_may_be_stored_are_summed_and_tenants_of_a_day_are_bounded(path, monkeypatch):
    monkeypatch.setattr(retention, "PORTION", 10)
    monkeypatch.setattr(retention, "MAX_SUMS_PER_DAY", 4)
    store = UsageStore(path, RetentionLimits(days=3, rows=12))
    for number in range(30):
        store.write(records(2, ended=time.time() - 100 + number, tenant=f"t{number}"))
    tidied(store)
    ((count, requests, tokens),) = rows(path)
    assert (requests, tokens) == (60, 120)
    assert count <= 12 + 5
    assert OTHER in {tenant for (tenant,) in rows(path, "tenant")}


def test_days_that_are_too_old_are_deleted(path):
    store = UsageStore(path, LIMITS)
    store.write(records(3, ended=1e9))
    tidied(store)
    assert rows(path)[0][0] == 0


def test_what_waits_for_the_database_is_bounded_and_summed_not_lost(path, monkeypatch):
    monkeypatch.setattr(writing, "MAX_WAITING", 10)
    monkeypatch.setattr(writing, "RETRY_S", 0.01)
    monkeypatch.setattr("quire.server.accounting.opening.BUSY_S", 0.01)
    store, written = UsageStore(path, LIMITS), []
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    thread = WriterThread(store, None, written.extend)
    for number in range(300):
        thread.put([replace(ONE, id=str(number))])
    assert len(thread._records) <= 10
    lock.execute("ROLLBACK")
    lock.close()
    thread.close(30)
    ((count, requests, tokens),) = rows(path)
    assert (requests, tokens) == (300, 600)
    assert count < 300
    assert sum(record.num_requests for record in written) == 300


def test_a_full_disk_is_waited_for(path, monkeypatch, caplog):
    monkeypatch.setattr(writing, "RETRY_S", 0.01)
    store = UsageStore(path, LIMITS)
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    failed = threading.Event()
    report = WriterThread._report
    monkeypatch.setattr(WriterThread, "_report", lambda self, error: (report(self, error), failed.set()))
    thread = WriterThread(store, None, lambda records: None)
    thread.put(records(2000))
    assert failed.wait(30)
    assert "full" in caplog.text
    store._connection.execute("PRAGMA max_page_count = 100000")
    thread.close(30)
    assert rows(path)[0][1] == 2000


def test_sums_are_bounded():
    sums = BoundedSums(3)
    for number in range(10):
        sums.add(replace(ONE, tenant=f"t{number}"))
        sums.add(replace(ONE, tenant=f"t{number}", ended=2e9))
    assert len(sums) <= 4
    taken = sums.take()
    assert sum(record.num_requests for record in taken) == 20
    assert len({record.id for record in taken}) == len(taken)
    assert not len(sums)


def test_series_of_metrics_are_bounded():
    metrics = UsageMetrics("quire:", 5)
    for number in range(2 * MAX_SERIES):
        metrics.add(replace(ONE, adapter=f"a{number}"))
    samples = [sample for family in metrics.collect() for sample in family.samples]
    assert len(samples) <= 3 * (MAX_SERIES + 1)
    assert sum(sample.value for sample in samples if sample.name == "quire:usage_requests_total") == 2 * MAX_SERIES
    metrics.remove_model("m")
    assert not [sample for family in metrics.collect() for sample in family.samples]


def test_a_file_that_cannot_be_used_stops_the_start_with_a_sentence(tmp_path):
    corrupt = tmp_path / "corrupt.sqlite"
    corrupt.write_bytes(b"this is no database" * 100)
    newer = tmp_path / "newer.sqlite"
    check_files(str(newer), None)
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    for database, why in (
        (corrupt, "not a database"),
        (newer, "newer version"),
        (tmp_path, "directory"),
        (tmp_path / "missing" / "usage.sqlite", "No such file"),
        ("/proc/usage.sqlite", ""),
    ):
        with pytest.raises(ConfigError, match=rf"^--usage-db: .* cannot be used: .*{why}"):
            check_files(str(database), None)
    with pytest.raises(ConfigError, match=r"^--audit-log: .* cannot be written"):
        check_files(None, str(tmp_path))


def test_a_new_file_is_for_its_owner_only(path, tmp_path):
    check_files(str(path), str(tmp_path / "audit"))
    assert [file.stat().st_mode & 0o077 for file in (path, tmp_path / "audit")] == [0, 0]


def test_times_are_unix_seconds_or_iso_and_names_of_lists_may_have_brackets():
    given = [
        ("from", "2026-01-01"),
        ("end_time", "1767229200"),
        ("group_by[]", "model"),
        ("model", "a"),
        ("model", "b"),
    ]
    query, format = read_query(given)
    assert (query.start, query.end, query.group_by, format) == (1767225600.0, 1767229200.0, ("model",), "json")
    assert query.filters == {"model": ["a", "b"]}
