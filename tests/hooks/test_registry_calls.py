"""Options, questions and events: how the registry calls its plugins and counts the calls."""

import threading
from pathlib import Path

import pytest
from hook_rig import PROCESSOR
from plugin_site import PluginSite

from quire.errors import BadRequest, ConfigError, PluginError, PluginFailed
from quire.hooks.call_stats import PluginCallStats
from quire.hooks.registry import listing, load, with_options
from quire.records import AdapterSource, Registry


def test_two_registries_share_nothing(site: PluginSite) -> None:
    site.add("counted", "@hookimpl\ndef quire_request_finished(summary): pass")
    one, two = load(["counted"]), load(["counted"])
    one.request_finished(None)
    assert snapshot(one)["counted"]["calls"] == 1
    assert snapshot(two) == {}


# --- options ---------------------------------------------------------------------------------------

OPTIONS = """
@hookimpl
def quire_options():
    yield Option("path", str, "/var/spool", "where to write")
    yield Option("period", float, 1.0, "seconds between writes")
    yield Option("loud", bool, False, "say so each time")
"""


def test_options_are_filled_from_defaults_and_text(site: PluginSite) -> None:
    site.add("spool", OPTIONS)
    registry = load(["spool"], {"spool": {"period": "2.5", "loud": "yes"}})
    assert registry.options["spool"] == {"path": "/var/spool", "period": 2.5, "loud": True}
    assert with_options(registry, {}).options["spool"] == {"path": "/var/spool", "period": 1.0, "loud": False}


def test_two_plugins_may_have_options_of_one_name(site: PluginSite) -> None:
    site.add("spool", OPTIONS)
    site.add("drain", OPTIONS)
    registry = load(["spool", "drain"], {"drain": {"path": "/tmp/x"}})
    assert registry.options["spool"]["path"] == "/var/spool"
    assert registry.options["drain"]["path"] == "/tmp/x"
    assert list(registry.by_hook("quire_options"))[:2] == ["spool.path", "spool.period"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"spoool": {}}, "No loaded plugin is called 'spoool'. Did you mean 'spool'"),
        ({"spool": {"pathh": "x"}}, "has no option 'pathh'. Did you mean 'path'.*It has: path, period, loud"),
        ({"spool": {"period": "soon"}}, "--spool.period must be of type float; got 'soon'"),
        ({"spool": {"loud": "perhaps"}}, "--spool.loud must be true or false"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_is_right(site: PluginSite, given: dict, sentence: str) -> None:
    site.add("spool", OPTIONS)
    with pytest.raises(ConfigError, match=sentence):
        load(["spool"], given)


# --- questions and events --------------------------------------------------------------------------

RESOLVER = """
from pathlib import Path

@hookimpl
def quire_resolve_adapter(name, cache_dir):
    return AdapterSource(cache_dir / name, "{0}") if name.startswith("{0}") else None
"""


def snapshot(registry: Registry) -> dict[str, dict]:
    assert isinstance(registry.counter, PluginCallStats)
    return {row["plugin"]: row for row in registry.counter.snapshot()}


def test_the_plugin_loaded_last_is_asked_first_and_the_first_answer_wins(site: PluginSite, tmp_path: Path) -> None:
    site.add("short", RESOLVER.format("a"))
    site.add("long", RESOLVER.format("ab"))
    registry = load(["short", "long"])
    assert registry.resolve_adapter("abc", "base", tmp_path) == AdapterSource(tmp_path / "abc", "ab")
    assert registry.resolve_adapter("axe", "base", tmp_path) == AdapterSource(tmp_path / "axe", "a")
    assert registry.resolve_adapter("other", "base", tmp_path) is None
    assert [snapshot(registry)[name]["calls"] for name in ("short", "long")] == [2, 3]


def test_a_question_that_raises_fails_with_the_name_of_the_plugin(site: PluginSite, tmp_path: Path) -> None:
    site.add("rude", "@hookimpl\ndef quire_resolve_adapter(name): raise KeyError(name)")
    registry = load(["rude"])
    with pytest.raises(PluginFailed, match="Plugin 'rude' failed: KeyError: 'x'"):
        registry.resolve_adapter("x", "base", tmp_path)
    assert snapshot(registry)["rude"]["errors"] == 1


def test_a_question_answered_with_the_wrong_type_fails(site: PluginSite, tmp_path: Path) -> None:
    site.add("vague", "@hookimpl\ndef quire_resolve_adapter(name): return '/some/path'")
    registry = load(["vague"])
    with pytest.raises(PluginFailed, match=r"'vague' failed: TypeError: .*must give an AdapterSource or None"):
        registry.resolve_adapter("x", "base", tmp_path)
    assert snapshot(registry)["vague"]["errors"] == 1


@pytest.mark.parametrize("event", ["engine_started", "engine_stopping", "request_finished"])
def test_an_event_reaches_every_plugin_even_if_one_raises(
    site: PluginSite, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    argument = "summary" if event == "request_finished" else "info"
    site.add("before", f"@hookimpl\ndef quire_{event}({argument}): {argument}.append('before')")
    site.add("rude", f"@hookimpl\ndef quire_{event}(): raise ValueError('no')")
    site.add("after", f"@hookimpl\ndef quire_{event}({argument}): {argument}.append('after')")
    registry = load(["before", "rude", "after"])
    seen: list[str] = []
    getattr(registry, event)(seen)
    assert sorted(seen) == ["after", "before"]
    assert f"plugin rude failed in quire_{event}" in caplog.text
    assert {name: row["errors"] for name, row in snapshot(registry).items()} == {"after": 0, "before": 0, "rude": 1}


def test_tracing_prints_every_hook_call(site: PluginSite, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("seen", PROCESSOR + "\n@hookimpl\ndef quire_request_finished(summary): raise ValueError('no')")
    load(["seen"], trace=True).request_finished("a summary")
    printed = capsys.readouterr().err
    assert "hook quire_logits_processors() -> seen" in printed
    assert "hook quire_request_finished(summary='a summary', options={}) -> seen" in printed
    assert "hook quire_request_finished raised ValueError('no')" in printed


# --- counting and listing --------------------------------------------------------------------------


def test_a_considered_refusal_is_not_counted_as_a_fault() -> None:
    counter = PluginCallStats()

    def refuse() -> None:
        raise BadRequest("The grammar is wrong.")

    with pytest.raises(BadRequest, match="grammar is wrong"):
        counter.call("grammar", refuse)
    (row,) = counter.snapshot()
    assert (row["plugin"], row["calls"], row["errors"]) == ("grammar", 1, 0)
    assert row["seconds"] >= 0


def test_counts_are_exact_under_many_threads() -> None:
    counter = PluginCallStats()

    def work() -> None:
        for i in range(200):
            counter.call(f"p{i % 2}", int)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row["calls"] for row in counter.snapshot()] == [800, 800]


def test_the_listing_shows_loaded_plugins_first_and_the_rest_as_disabled(site: PluginSite) -> None:
    site.add("used", PROCESSOR)
    module = site.add("unused", "raise RuntimeError('must not be imported')")
    infos = listing(load(["used"]))
    rows = {info.name: info for info in infos}
    assert rows["used"].enabled
    assert rows["used"].records == {"quire_logits_processors": ("dry",)}
    assert not rows["unused"].enabled
    assert rows["unused"].module == module
    enabled = [info.enabled for info in infos]
    assert enabled == sorted(enabled, reverse=True)


def test_questions_and_events_get_the_options_of_their_own_plugin(site: PluginSite, tmp_path: Path) -> None:
    site.add("spool", OPTIONS + "\n@hookimpl\ndef quire_request_finished(summary, options): summary.append(options)")
    resolver = "\n@hookimpl\ndef quire_resolve_adapter(options): return AdapterSource(options['path'], 'r')"
    site.add("drain", OPTIONS + resolver)
    registry = with_options(load(["spool", "drain"]), {"drain": {"path": "there"}, "spool": {"period": 9}})
    seen: list[dict] = []
    registry.request_finished(seen)
    assert seen == [{"path": "/var/spool", "period": 9.0, "loud": False}]
    assert registry.resolve_adapter("x", "base", tmp_path) == AdapterSource("there", "r")


def test_a_plugin_may_be_an_object_in_a_module(site: PluginSite) -> None:
    module = site.add("thing", "class Plugin:\n    quire_contract = (7, 0)\nplugin = Plugin()")
    points = next(site.folder.glob("quire_thing*.dist-info")) / "entry_points.txt"
    points.write_text(f"[quire]\nthing = {module}:plugin\n")
    with pytest.raises(PluginError, match=r"needs version 7.0"):
        load(["thing"])
