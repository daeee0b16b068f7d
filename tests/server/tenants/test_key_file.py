"""The key file: what it may say, mistakes in it, and `platform keys`, which edits it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from quire.commands.command_line import run
from quire.errors import ConfigError
from quire.server.tenants.buckets import TokenBucket
from quire.server.tenants.edit import create_key, hash_of, read_file
from quire.server.tenants.key_file import parse
from quire.server.tenants.meter import duration
from quire.server.tenants.spent import SpentFile
from quire.server.tenants.tenant import Caller

HASH = "sha256:" + "a" * 64


def test_fields_of_tenants_and_keys_are_read():
    file = parse(
        f"""
        tenants:
          acme: {{weight: 2.5, share_cache: true, monthly_tokens: 50m, tokens_per_minute: 200k, models: ["small-*"]}}
          plain:
        keys:
          - {{id: ci, tenant: acme, hash: "{HASH}", expires: 2027-01-31, scopes: [generate], max_media_bytes: 2M}}
        """,
        "keys.yaml",
    )
    key = file.keys["a" * 64]
    assert (key.tenant.weight, key.tenant.share_cache, key.tenant.monthly_tokens) == (2.5, True, 50_000_000)
    assert key.expires == datetime(2027, 1, 31, tzinfo=UTC)
    caller = Caller(key.tenant, key)
    assert caller.scopes == {"generate"}
    assert caller.may_use_model("small-1")
    assert not caller.may_use_model("large")
    assert caller.max_media_bytes == 2 << 20
    assert key.tenant.limits.tokens_per_minute == 200_000
    assert file.tenants["plain"].weight == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tenants: [", "keys.yaml, line 1: invalid YAML"),
        ("[1]", "keys.yaml: it must map names to values"),
        ("tenant: {}", "no field `tenant`; did you mean `tenants`?"),
        ("tenants: {a: {wieght: 2}}", "tenants.a: there is no field `wieght`; did you mean `weight`?"),
        ("tenants: {a: {weight: 0}}", "tenants.a: `weight` must be a number from 0.001 to 1000"),
        ("tenants: {a: {weight: true}}", "`weight` must be a number"),
        ("tenants: {a: {tokens_per_minute: -1}}", "`tokens_per_minute` must be above 0"),
        ("tenants: {a: {tokens_per_minute: many}}", "is not a whole number"),
        ("tenants: {a: {scopes: [generat]}}", "`scopes` has no `generat`"),
        ("tenants: {a: {models: small}}", "`models` must be a list of texts"),
        ("tenants: {a: {queued_requests: 3}}", "needs `concurrent_requests`"),
        ("tenants: {'key:a': {}}", "a name has up to 64 letters"),
        ("tenants: {a: {share_cache: 1}}", "must be true or false"),
        ("keys: {a: 1}", "keys: it must be a list"),
        ("keys: [{id: k, tenant: b}]", "`tenant` must name a tenant of this file; got 'b'"),
        ("tenants: {a: }\nkeys: [{id: k, tenant: a}]", "keys[0]: `hash` is missing"),
        ("tenants: {a: }\nkeys: [{id: k, tenant: a, hash: secret}]", "must be sha256: and 64 hexadecimal digits"),
        (f"tenants: {{a: }}\nkeys: [{{id: '', tenant: a, hash: '{HASH}'}}]", "`id` must have"),
        (f"tenants: {{a: }}\nkeys: [{{id: k, tenant: a, hash: '{HASH}', expires: soon}}]", "`expires`"),
        (f"tenants: {{a: }}\nkeys: {[{'id': k, 'tenant': 'a', 'hash': HASH} for k in 'kl']}", "is that of another key"),
    ],
)
def test_a_mistake_is_named_with_its_place(text, problem):
    with pytest.raises(ConfigError) as error:
        parse(text, "keys.yaml")
    assert problem in error.value.message


def test_a_key_instead_of_its_hash_is_not_repeated():
    for text in ("tenants: {a: }\nkeys: [{id: k, tenant: a, hash: sk-quire-secret}]", "sk-quire-secret: ["):
        with pytest.raises(ConfigError) as error:
            parse(text, "keys.yaml")
        assert "secret" not in error.value.message


def test_the_command_makes_lists_and_revokes_keys(tmp_path, capsys):
    path = tmp_path / "keys.yaml"
    path.write_text("# Keys of our tenants.\n\ntenants: {acme: {weight: 2}}\n")
    file = ["--key-file", str(path)]
    assert (
        run(["keys", "create", *file, "acme", "--id", "ci", "--expires", "30d", "--set", "requests-per-minute=60"]) == 0
    )
    secret = capsys.readouterr().out.strip()
    assert secret.startswith("sk-quire-")
    assert len(secret) >= len("sk-quire-") + 43  # 256 bits
    key = read_file(path).keys[hash_of(secret)]
    assert (key.id, key.tenant.weight, key.limits.requests_per_minute) == ("ci", 2, 60)
    assert key.expires is not None
    assert path.read_text().startswith("# Keys of our tenants.\n\n")
    assert secret not in path.read_text()
    assert run(["keys", "create", *file, "new", "--scopes", "generate,read", "--models", "a*,b"]) == 0
    assert run(["keys", "list", *file]) == 0
    listed = capsys.readouterr().out
    assert "ci  acme  " in listed
    assert "new  never expires  generate,read" in listed
    assert secret not in listed
    assert run(["keys", "revoke", *file, "ci"]) == 0
    assert hash_of(secret) not in read_file(path).keys
    before = path.read_bytes()
    for words in (["revoke", *file, "ci"], ["create", *file, "acme", "--scopes", "generat"], ["create", *file, "a b"]):
        with pytest.raises(ConfigError):
            run(["keys", *words])
    with pytest.raises(ConfigError, match="--set takes NAME=VALUE"):
        run(["keys", "create", *file, "acme", "--set", "hash=1"])
    assert path.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"keys.yaml", ".keys.yaml.lock"}


def test_keys_that_are_made_at_once_are_all_in_the_file_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "keys.yaml"
    threads = [threading.Thread(target=create_key, args=(path, "acme", {})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_file(path).keys) == 8
    assert path.stat().st_mode & 0o777 == 0o600


def test_spent_tokens_of_two_servers_are_added_up(tmp_path):
    path = tmp_path / "spent.sqlite"
    first, second = SpentFile(path), SpentFile(path)
    first.flush()
    assert not path.exists()
    for file, tokens in ((first, 5), (second, 7), (first, 1)):
        file.add("t", "2026-11", tokens)
    first.add("t", "2026-12", 2)
    first.flush()
    second.flush()
    first.flush()
    again = SpentFile(path)
    assert (again.spent("t", "2026-11"), again.spent("t", "2026-12"), again.spent("u", "2026-11")) == (13, 2, 0)


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 50))))
def test_a_bucket_gives_no_more_than_its_limit_whatever_the_clock_does(events):
    """Taken as far as it is there, the total never exceeds one bucket and what passing time adds."""
    now, passed, taken = 0.0, 0.0, 0.0
    bucket = TokenBucket(60, lambda: now)
    for seconds, amount in events:
        now += seconds
        passed += max(0.0, seconds)
        assert bucket.level <= 60
        if bucket.level >= amount:
            bucket.take(amount)
            taken += amount
        assert bucket.wait_s(bucket.level) == 0
    assert taken <= 60 + passed + 1e-6


def test_a_limit_that_changes_keeps_what_was_used():
    now = 0.0
    bucket = TokenBucket(100, lambda: now)
    bucket.take(90)
    bucket.resize(50)
    assert bucket.level == -40
    assert bucket.wait_s(1) == pytest.approx(41 * 60 / 50)
    now = 60.0
    assert bucket.level == 10


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (361, "6m1s")]
)
def test_durations_are_written_as_openai_does(seconds, text):
    assert duration(seconds) == text
