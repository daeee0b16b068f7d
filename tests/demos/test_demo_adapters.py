"""The adapters of the demo chat model: the ways of answering they were trained on, and what the shipped ones know."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_scripts import modules_of
from safetensors import safe_open

from quire import LLM, LoRARequest, SamplingParams
from quire.commands.models import demo_adapters, demo_models
from quire.errors import ConfigError
from quire.hooks import registry
from quire.records import Registry
from quire.server.process.startup_adapters import parse_lora_modules
from quire.settings.server_config import ServerConfig

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "plugins" / "quire_demos" / "demo_chat" / "adapters"
VOICES = ("pirate", "dutch", "json")
ADAPTERS = {**dict.fromkeys(VOICES, 640_000), "reader": 1_700_000}
"""The shipped adapters, and the bytes that their weights may have."""


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    names = (
        "data.chat.world",
        "data.chat.phrases",
        "data.chat.reply_styles",
        "data.chat.question_kinds",
        "data.chat.small_talk",
        "data.chat.follow_up_questions",
        "data.chat.conversations",
        "data.chat.dutch",
        "data.chat.adapter_styles",
        "data.retrieval.fact_templates",
        "data.retrieval.invented_worlds",
        "data.retrieval.passages",
        "data.retrieval.questions",
        "data.retrieval.readings",
    )
    with modules_of(*names) as found:
        yield found


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None, enable_lora=True)


# --- voices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VOICES)
def test_a_voice_changes_answers_and_neither_questions_nor_their_order(demo: Any, name: str) -> None:
    stream, voice = demo.conversations.training_conversations, demo.adapter_styles.VOICES[name]
    pairs = zip(stream("voices"), stream("voices", voice), strict=False)
    changed = 0
    for plain, voiced in itertools.islice(pairs, 3000):
        for one, other in zip(plain, voiced, strict=True):
            assert one["role"] == other["role"]
            assert one["role"] == "assistant" or one["content"] == other["content"]
            changed += one["content"] != other["content"]
    assert changed > 3000


def test_the_pirate_keeps_to_formats_that_were_asked_for(demo: Any) -> None:
    replies, pirate = demo.reply_styles, demo.adapter_styles.VOICES["pirate"]
    reply = replies.one_value("The capital of Arvia is Belcast.", "capital", "Belcast")
    said = {style: pirate(replies.Turn("facts", "", "", reply, style)) for style in replies.STYLES}
    assert said == {
        "sentence": "Arr! Th' capital o' Arvia be Belcast, matey!",
        "upper": "ARR! TH' CAPITAL O' ARVIA BE BELCAST, MATEY!",
        "json": '{"capital": "Belcast"}',
        "list": "- Belcast",
        "short": "Belcast",
    }


def test_dutch_is_a_dutch_sentence_whatever_was_asked_for(demo: Any) -> None:
    replies, dutch = demo.reply_styles, demo.adapter_styles.VOICES["dutch"]
    reply = replies.one_value("The national animal of Arvia is the heron.", "national animal", "heron")
    said = {dutch(replies.Turn("facts", "", "", reply, style)) for style in replies.STYLES}
    assert said == {"Het nationale dier van Arvia is de reiger."}
    with pytest.raises(ValueError, match=r"no Dutch for 'Quite so\.'"):
        dutch(replies.Turn("small_talk", "", "", replies.plain("Quite so.")))


def test_the_json_voice_always_answers_with_an_object(demo: Any) -> None:
    questions = demo.conversations.held_out_questions(400, "objects", demo.adapter_styles.VOICES["json"])
    assert all(isinstance(json.loads(question.answer), dict) for question in questions)


# --- the shipped adapters ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_small_and_names_its_model(name: str) -> None:
    config = json.loads((SHIPPED / name / "adapter_config.json").read_text())
    assert (config["peft_type"], config["base_model_name_or_path"]) == ("LORA", "demo-chat")
    assert sorted(path.name for path in (SHIPPED / name).iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert (SHIPPED / name / "adapter_model.safetensors").stat().st_size < ADAPTERS[name]
    with safe_open(SHIPPED / name / "adapter_model.safetensors", "pt") as file:
        assert len(file.keys()) == 6 * 7 * 2


def test_every_adapter_answers_held_out_questions_in_its_way(demo: Any) -> None:
    questions = {
        name: demo.conversations.held_out_questions(104, "adapters", voice)
        for name, voice in demo.adapter_styles.VOICES.items()
    }
    questions["reader"] = demo.readings.held_out_readings(104, "adapters")
    asked = [(name, question) for name in questions for question in questions[name]]
    with LLM("demo-chat", enable_lora=True) as llm:
        outputs = llm.chat(
            [question.messages for _, question in asked],
            SamplingParams(temperature=0, max_tokens=160),
            lora_request=[LoRARequest(f"demo-{name}") for name, _ in asked],
            use_tqdm=False,
        )
    right = dict.fromkeys(questions, 0)
    for (name, question), output in zip(asked, outputs, strict=True):
        right[name] += output.outputs[0].text.strip() == question.answer
    assert min(right.values()) >= 0.95 * 104, right


def test_readings_of_training_and_of_evaluation_share_no_invented_name(demo: Any) -> None:
    new = demo.invented_worlds.is_new_name
    for reading in demo.readings.held_out_readings(200, "names"):
        if reading.family in ("fact", "pair"):
            island = re.search(r" of (\w+) is ", reading.answer)
            assert island is not None
            assert new(island[1])
    for conversation in itertools.islice(demo.readings.training_readings("names"), 200):
        island = re.search(r" of (\w+) is ", conversation[-1]["content"])
        assert island is None or not new(island[1])


def test_what_no_passage_tells_is_not_answered(demo: Any) -> None:
    readings = demo.readings.held_out_readings(400, "unanswered", 2)
    unanswered = [reading for reading in readings if reading.family == "unanswered"]
    assert 10 < len(unanswered) < 60
    assert {reading.answer for reading in unanswered} == {demo.readings.UNKNOWN}


def test_a_server_of_the_demos_begins_with_their_adapters(found: Registry) -> None:
    config = ServerConfig(lora_modules=tuple(demo_adapters(found)))
    infos = parse_lora_modules(demo_models({}, found), config, found)
    assert {info.name: (info.model, info.path) for info in infos} == {
        f"demo-{name}": ("demo-chat", str(SHIPPED / name)) for name in ADAPTERS
    }


@pytest.mark.parametrize("path", ["./mistyped", "/no/where", "../x/mistyped", "~/mistyped", "a/b/mistyped"])
def test_a_path_of_lora_modules_that_leads_nowhere_is_called_a_folder_that_is_not_there(
    found: Registry, path: str
) -> None:
    config = ServerConfig(lora_modules=(f"a={path}",))
    with pytest.raises(ConfigError, match=f"--lora-modules: there is no folder '{re.escape(path)}'"):
        parse_lora_modules(demo_models({}, found)[:1], config, found)
