"""What is said of plugins that are installed but not enabled."""

import logging

import pytest
from plugin_site import PluginSite

from quire.cli import main
from quire.errors import BadRequest, PluginError, UnknownArchitecture
from quire.hooks.discovery import choose
from quire.hooks.plugins_off import demos_off, how_to_enable, plugins_off, with_advice
from quire.hooks.registry import load
from quire.server.schemas.requests import CompletionRequest
from quire.server.service.request_fields import RequestFields


def unknown(name):
    return UnknownArchitecture(f"No loaded plugin can build {name}.", name)


def test_a_plus_adds_to_the_bundled_set(site: PluginSite):
    site.add("mine", "")
    bundled = [p.name for p in choose(None)]
    assert [p.name for p in choose(["+mine"])] == [*bundled, "mine"]
    assert [p.name for p in choose(["+mine", "llama"])] == [*bundled, "mine"]
    assert "mine" in {p.name for p in load(["+mine"]).plugins}


def test_a_plus_before_a_later_name_is_refused_and_an_unknown_name_too():
    with pytest.raises(PluginError, match=r"begin the list with \+"):
        choose(["llama", "+qwen"])
    with pytest.raises(PluginError, match=r"There is no plugin 'lama'\. Did you mean 'llama'\?"):
        choose(["+lama"])


def test_a_bundled_plugin_that_has_the_architecture_is_named():
    error = with_advice(unknown("Qwen2ForCausalLM"), load(["llama"]))
    assert "The installed plugin 'qwen' does, but is not enabled: add it, as in --plugins" in error.message
    assert "llama,qwen" in error.message


def test_plugins_of_others_are_named_without_being_imported(site: PluginSite):
    site.add("stranger", "raise RuntimeError('must not be imported')")
    error = with_advice(unknown("Starcoder2ForCausalLM"), load())
    assert "installed, but not enabled: stranger. To enable one beside the bundled plugins: --plugins +stranger" in str(
        error
    )


def test_where_no_plugin_can_help_nothing_is_recommended_from_a_package_index():
    message = with_advice(unknown("Mystery"), load()).message
    assert "No installed plugin does" in message
    assert "pip install" not in message


def test_a_request_for_json_says_which_plugin_is_off():
    rules = RequestFields(load(["llama"]))
    with pytest.raises(BadRequest, match=r"available kinds: none\. The installed plugin '[\w-]+' does"):
        rules.structured(CompletionRequest(prompt="x", response_format={"type": "json_object"}))


def test_the_whole_bundled_set_leaves_nothing_off(caplog):
    caplog.set_level(logging.INFO)
    found = load()
    assert plugins_off(found) == []
    assert list(demos_off(found)) == []
    assert dict(demos_off(load(["llama", "llava"])))["demo-embed"] == "bert"
    assert "No installed plugin" in how_to_enable(found, "quire_grammar_backends", lambda _: False)


def test_the_list_of_plugins_fits_eighty_columns_and_says_how_to_enable_each(site: PluginSite, capsys, monkeypatch):
    site.add("stranger", "raise RuntimeError('must not be imported')")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plugins"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[lines.index("stranger  (quire-stranger 1.0, not enabled)") + 1] == (
        "    to enable it: --plugins +stranger"
    )
    assert "    to enable it: --enable-lora" in lines
    assert any(line.startswith("    architectures: BertModel") for line in lines)
