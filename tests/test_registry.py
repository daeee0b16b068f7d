import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest
from plugin_site import PluginSite, site

from quire import records
from quire.counting import CallCounter
from quire.discovery import DISTRIBUTION, choose
from quire.errors import BadRequest, ConfigError, PluginError, PluginFailed
from quire.records import AdapterSource, Registry
from quire.registry import installed, listing, load, with_options

__all__ = ["site"]

PROCESSOR = """
@hookimpl
def quire_logits_processors():
    yield LogitsProcessor("dry", {"dry_multiplier": float}, build=lambda context: None)
"""
FAKE_SITE = Path(__file__).parent / "data" / "plugin_site"


def bundled_entry_points() -> list[metadata.EntryPoint]:
    return [p for p in metadata.entry_points(group="quire") if p.dist and p.dist.name == DISTRIBUTION]


# --- choosing --------------------------------------------------------------------------------------


def test_plugins_are_listed_from_a_dist_info_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE_SITE))
    fake = [p for p in installed() if p.distribution == "quire-fake"]
    assert fake == [
        ("fake", "quire-fake", "3.1", "quire_fake"),
        ("fake-broken", "quire-fake", "3.1", "quire_fake_broken"),
    ]
    assert not {"quire_fake", "quire_fake_broken"} & set(sys.modules)


def test_a_plugin_from_a_dist_info_loads_with_its_provenance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE_SITE))
    registry = load(["fake"])
    info = registry.plugins[-1]
    assert (info.name, info.module, info.distribution, info.version) == ("fake", "quire_fake", "quire-fake", "3.1")
    assert info.hooks == ("quire_commands",)
    assert info.records == {"quire_commands": ("fake-command",)}
    assert registry.plugin_of("quire_commands", "fake-command") == "fake"


def test_third_party_code_loads_only_when_named(site: PluginSite) -> None:
    module = site.add("stranger", "raise RuntimeError('must not be imported')")
    assert "stranger" in {p.name for p in installed()}
    assert "stranger" not in {p.name for p in choose(None)}
    load([])
    assert module not in sys.modules


def test_the_bundled_set_leaves_what_adapters_need_to_enable_lora() -> None:
    everything = {p.name for p in bundled_entry_points()}
    added = {"ia3", "lora", "lora-folder", "lora-hub"}
    assert {p.name for p in choose(None)} == everything - added
    assert {p.name for p in choose(None, enable_lora=True)} == everything
    assert {p.name for p in choose(["llama"], enable_lora=True)} >= {"llama", *added}
    assert "lora" not in {p.name for p in choose(["llama", "ia3"])}


def test_an_allow_list_adds_only_what_is_essential(site: PluginSite) -> None:
    site.add("mine", "")
    essential = {p.name for p in metadata.entry_points(group="quire.essential")}
    assert {p.name for p in choose([" mine ", "", "mine"])} == essential | {"mine"}
    assert {p.name for p in choose([])} == essential


@pytest.mark.parametrize("group", ["essential", "adapters"])
def test_nobody_else_can_declare_itself_essential(site: PluginSite, group: str) -> None:
    module = site.add("pushy", "raise RuntimeError('must not be imported')")
    points = next(site.folder.glob("quire_pushy*.dist-info")) / "entry_points.txt"
    points.write_text(f"[quire]\npushy = {module}\n[quire.{group}]\npushy = {module}\n")
    assert "pushy" not in {p.name for p in choose([], enable_lora=True)}


def test_with_no_plugins_there_are_no_models_and_no_error() -> None:
    registry = load([])
    assert not registry.of("quire_architectures")
    assert not registry.of("quire_demo_models")


def test_an_unknown_name_lists_the_installed_ones_and_offers_the_closest(site: PluginSite) -> None:
    site.add("mamba", "raise RuntimeError('must not be imported')")
    with pytest.raises(PluginError, match=r"no plugin 'mmaba'. Did you mean 'mamba'\? Installed plugins: .*mamba"):
        load(["mmaba"])


def test_a_name_claimed_by_two_distributions_is_refused(site: PluginSite) -> None:
    site.add("twin", "", distribution="quire-one")
    site.add("twin", "", distribution="quire-two")
    with pytest.raises(PluginError, match="'twin' is claimed by two distributions, quire-one and quire-two"):
        load(["twin"])


# --- broken plugins --------------------------------------------------------------------------------

BROKEN = {
    "import os.path.nowhere": "cannot be imported: ModuleNotFoundError",
    "def f(:": "cannot be imported: SyntaxError",
    "raise SystemExit(3)": "cannot be imported: SystemExit: 3",
    "quire_contract = (2, 0)": "needs version 2.0 of the plugin contract; this Quire offers 1.0",
    "quire_contract = (1, 99)": "needs version 1.99 of the plugin contract",
    "quire_contract = '1.0'": r"quire_contract must be a pair like \(1, 0\); got '1.0'",
    "@hookimpl\ndef quire_architecturs(): return []": "no hook. Did you mean 'quire_architectures'",
    "def quire_ops(): return []": "defines quire_ops without @hookimpl",
    "@hookimpl\ndef quire_ops(device): return []": "has a hook of the wrong form",
    "@hookimpl\nasync def quire_ops(): return []": "must be a plain function",
    "@hookimpl(wrapper=True)\ndef quire_ops(): return (yield)": "must be a plain function",
    "@hookimpl\ndef quire_ops(): yield 'triton'": "quire_ops must yield OpImpl records; got 'triton'",
    "@hookimpl\ndef quire_ops(): return 7": "failed in quire_ops: TypeError",
    "@hookimpl\ndef quire_options(): yield Option('', int, 0, '')": "gave a record without a name",
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_broken_plugin_stops_the_start_with_a_sentence_that_names_it(site: PluginSite, source: str) -> None:
    site.add("broken", source)
    with pytest.raises(PluginError, match=BROKEN[source]) as caught:
        load(["broken"])
    assert "Plugin 'broken'" in caught.value.message


def test_a_plugin_may_need_the_contract_we_offer_or_an_older_minor(site: PluginSite) -> None:
    site.add("fitting", f"quire_contract = {records.CONTRACT_VERSION}\n")
    assert load(["fitting"]).plugins[-1].name == "fitting"


def test_a_hook_marked_optional_may_be_one_we_do_not_have(site: PluginSite) -> None:
    site.add("ahead", "@hookimpl(optionalhook=True)\ndef quire_from_the_future(): return []")
    assert load(["ahead"]).plugins[-1].hooks == ()


def test_one_name_from_two_plugins_is_an_error_naming_both(site: PluginSite) -> None:
    site.add("first", PROCESSOR)
    site.add("second", PROCESSOR)
    with pytest.raises(PluginError, match="Plugins 'first' and 'second' both give LogitsProcessor 'dry'"):
        load(["first", "second"])


def test_one_name_twice_from_one_plugin_is_an_error(site: PluginSite) -> None:
    site.add("echo", PROCESSOR + '    yield LogitsProcessor("dry", {}, build=lambda context: None)\n')
    with pytest.raises(PluginError, match="Plugin 'echo' gives LogitsProcessor 'dry' twice"):
        load(["echo"])


def test_two_transcribers_of_one_architecture_are_an_error(site: PluginSite) -> None:
    source = "@hookimpl\ndef quire_transcribers(): yield Transcriber('{0}', 'Arch', build=None)"
    site.add("left", source.format("one"))
    site.add("right", source.format("two"))
    with pytest.raises(PluginError, match="'left' and 'right' both give Transcriber for Arch"):
        load(["left", "right"])


def test_two_mappers_of_one_modality_of_one_architecture_are_an_error(site: PluginSite) -> None:
    source = "@hookimpl\ndef quire_input_mappers(): yield InputMapper('{0}', 'Arch', 'image', build=None)"
    site.add("left", source.format("left/image"))
    site.add("right", source.format("right/image"))
    with pytest.raises(PluginError, match="'left' and 'right' both give InputMapper for image of Arch"):
        load(["left", "right"])


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
    assert list(registry.of("quire_options"))[:2] == ["spool.path", "spool.period"]


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
    assert isinstance(registry.counter, CallCounter)
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
    counter = CallCounter()

    def refuse() -> None:
        raise BadRequest("The grammar is wrong.")

    with pytest.raises(BadRequest, match="grammar is wrong"):
        counter.call("grammar", refuse)
    (row,) = counter.snapshot()
    assert (row["plugin"], row["calls"], row["errors"]) == ("grammar", 1, 0)
    assert row["seconds"] >= 0


def test_counts_are_exact_under_many_threads() -> None:
    counter = CallCounter()

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
