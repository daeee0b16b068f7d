"""Which plugins are loaded, and which are refused."""

import sys
from importlib import metadata
from pathlib import Path

import pytest
from hook_rig import PROCESSOR
from plugin_site import PluginSite

from quire import records
from quire.errors import PluginError
from quire.hooks.discovery import DISTRIBUTION, choose
from quire.hooks.registry import installed, load

FAKE_SITE = Path(__file__).parents[1] / "data" / "plugin_site"


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
    added = {"ia3", "lora", "lora-folder", "lora-hub", "prompt-tuning"}
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
def test_a_third_party_plugin_cannot_declare_itself_essential(site: PluginSite, group: str) -> None:
    module = site.add("pushy", "raise RuntimeError('must not be imported')")
    points = next(site.folder.glob("quire_pushy*.dist-info")) / "entry_points.txt"
    points.write_text(f"[quire]\npushy = {module}\n[quire.{group}]\npushy = {module}\n")
    assert "pushy" not in {p.name for p in choose([], enable_lora=True)}


def test_with_no_plugins_there_are_no_models_and_no_error() -> None:
    registry = load([])
    assert not registry.by_hook("quire_architectures")
    assert not registry.by_hook("quire_demo_models")


def test_an_unknown_name_lists_the_installed_ones_and_offers_the_closest(site: PluginSite) -> None:
    site.add("mamba", "raise RuntimeError('must not be imported')")
    with pytest.raises(PluginError, match=r"no plugin 'mmaba'. Did you mean 'mamba'\? Installed plugins: .*mamba"):
        load(["mmaba"])


def test_a_name_claimed_by_two_distributions_is_refused(site: PluginSite) -> None:
    site.add("twin", "", distribution="quire-one")
    site.add("twin", "", distribution="quire-two")
    with pytest.raises(PluginError, match="'twin' is provided by two distributions, quire-one and quire-two"):
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
    "@hookimpl\ndef quire_options(): yield Option('', int, 0, '')": "yielded a record without a name",
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
    with pytest.raises(PluginError, match="Plugins 'first' and 'second' both provide LogitsProcessor 'dry'"):
        load(["first", "second"])


ARCHITECTURE = """
@hookimpl
def quire_architectures():
    yield Architecture('LlamaForCausalLM', None, '{name}', replaces={replaces!r})
"""


@pytest.mark.parametrize("order", [["llama", "mine"], ["mine", "llama"]])
def test_an_architecture_may_replace_that_of_the_plugin_it_names(site: PluginSite, order: list[str]) -> None:
    site.add("mine", ARCHITECTURE.format(name="mine", replaces="llama"))
    found = load(order)
    assert found.by_hook("quire_architectures")["LlamaForCausalLM"].names == "mine"
    assert found.plugin_of("quire_architectures", "LlamaForCausalLM") == "mine"
    assert found.plugin_of("quire_architectures", "LlamaModel") == "llama"
    assert set(found.by_hook("quire_demo_models")) == {"demo-chat", "demo-tools"}


def test_an_architecture_of_two_plugins_that_names_no_replacement_is_refused(site: PluginSite) -> None:
    site.add("mine", ARCHITECTURE.format(name="mine", replaces=None))
    site.add("other", ARCHITECTURE.format(name="other", replaces="llama"))
    site.add("third", ARCHITECTURE.format(name="third", replaces="llama"))
    with pytest.raises(PluginError, match=r"both provide Architecture 'LlamaForCausalLM'.* one `replaces` in its rec"):
        load(["llama", "mine"])
    with pytest.raises(PluginError, match="'other' and 'third' both provide Architecture"):
        load(["llama", "other", "third"])


def test_one_name_twice_from_one_plugin_is_an_error(site: PluginSite) -> None:
    site.add("echo", PROCESSOR + '    yield LogitsProcessor("dry", {}, build=lambda context: None)\n')
    with pytest.raises(PluginError, match="Plugin 'echo' provides LogitsProcessor 'dry' twice"):
        load(["echo"])


def test_two_transcribers_of_one_architecture_are_an_error(site: PluginSite) -> None:
    source = "@hookimpl\ndef quire_transcribers(): yield Transcriber('{0}', 'Arch', build=None)"
    site.add("left", source.format("one"))
    site.add("right", source.format("two"))
    with pytest.raises(PluginError, match="'left' and 'right' both provide Transcriber for Arch"):
        load(["left", "right"])


def test_two_mappers_of_one_modality_of_one_architecture_are_an_error(site: PluginSite) -> None:
    source = "@hookimpl\ndef quire_input_mappers(): yield InputMapper('{0}', 'Arch', 'image', build=None)"
    site.add("left", source.format("left/image"))
    site.add("right", source.format("right/image"))
    with pytest.raises(PluginError, match="'left' and 'right' both provide InputMapper for image of Arch"):
        load(["left", "right"])
