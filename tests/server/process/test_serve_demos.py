"""What `platform serve` starts where no model is named: the demos, with adapters and tools by default."""

import logging

import pytest

from quire.cli import main


@pytest.fixture
def started(monkeypatch):
    """(models, config, plugins, adapter runtimes) of the server that a command line would start."""

    def start(*words):
        seen = []

        def run(models, config, registry, *, plugins, enable_lora, on_ready, spawned, defaults, settings_file):
            assert enable_lora == bool(registry.by_hook("quire_adapter_runtimes"))
            seen.append(([model.name for model in models], config, plugins, enable_lora))
            return 0

        monkeypatch.setattr("quire.server.process.start.run_server", run)
        assert main(["serve", *words]) == 0
        return seen[0]

    return start


def test_the_demos_come_with_adapters_and_tools(started):
    models, config, _, lora = started()
    assert {"demo-chat", "demo-tools"} <= set(models)
    assert lora
    assert sorted(name.split('"')[3] for name in config.lora_modules) == [
        *("demo-dutch", "demo-json", "demo-pirate", "demo-reader")
    ]
    assert config.enable_auto_tool_choice


def test_flags_leave_them_out(started):
    _, config, _, lora = started("--no-enable-lora", "--no-enable-auto-tool-choice")
    assert (lora, config.lora_modules, config.enable_auto_tool_choice) == (False, (), False)


def test_a_named_model_gets_neither_without_a_flag(started):
    models, config, _, lora = started("demo-chat")
    assert (models, lora, config.lora_modules, config.enable_auto_tool_choice) == (["demo-chat"], False, (), False)
    _, config, _, lora = started("demo-chat", "--enable-lora", "--enable-auto-tool-choice")
    assert (lora, config.lora_modules, config.enable_auto_tool_choice) == (True, (), True)


def test_an_allow_list_of_plugins_is_kept_and_the_log_names_the_demos_it_leaves_out(started, caplog):
    caplog.set_level(logging.INFO)
    models, _, plugins, lora = started("--plugins", "llama,llava")
    assert (models, plugins, lora) == (["demo-chat", "demo-llava", "demo-tools"], ["llama", "llava"], False)
    assert any("not served" in message and "demo-embed (plugin bert)" in message for message in caplog.messages)
    marker = "installed plugins that are not enabled: "
    (listed,) = (message.split(marker)[1] for message in caplog.messages if marker in message)
    assert {"anthropic", "batches", "bert", "qwen"} <= set(listed.split(" (")[0].split(", "))


def test_a_start_that_fails_is_an_object_of_the_log_where_that_is_the_format(capsys, caplog):
    words = ("serve", "/no/such/model", "--port", "0", "--metrics-require-key")
    assert main([*words]) == 2
    said, reason = capsys.readouterr().err, "--metrics-require-key needs --api-key or --key-file."
    assert said == f"platform: error: {reason}\n"
    assert main([*words, "--log-format", "json"]) == 2
    assert "platform: error" not in capsys.readouterr().err
    assert (caplog.records[-1].levelname, caplog.messages[-1]) == (
        "CRITICAL",
        "--metrics-require-key needs --api-key or --key-file.",
    )


def test_models_may_be_one_name_in_yaml(started, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("models: demo-chat\nplugins: [llama, policies]\n")
    models, _, plugins, _ = started("--config", str(file))
    assert (models, plugins) == (["demo-chat"], ["llama", "policies"])
