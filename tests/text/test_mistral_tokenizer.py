"""`--tokenizer-mode mistral` against mistral-common itself, on the tokenizers that its package brings."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.errors import BadRequest, CheckpointError, ConfigError
from quire.hooks import registry
from quire.text.chat.chat_choice import choose_chat
from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import ChatTemplate
from quire.text.parsing.tool_calls import choose_parser
from quire.text.tokenizer.decode import make_decoder
from quire.text.tokenizer.pair_truncation import PairTruncation
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing.tiny import tiny_model

mistral_common = pytest.importorskip("mistral_common")
DATA = Path(mistral_common.__file__).parent / "data"
FILES = {"tekken": ("tekken_240911.json", "tekken.json"), "spm": ("mistral_instruct_tokenizer_240323.model.v3",) * 2}
TEXTS = ["Hello, world", " leading", "größer 你好 🐈", "[INST] is text </s>", "a\n\n\tb", ""]

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is 2 + 2? [/INST]"}]},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "tool_call_id": "call_that_is_long", "content": "4"},
]
MESSAGES[2]["tool_calls"] = [
    {"id": "call_that_is_long", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": True}}]


NUM_TOKENS = 5000


def few_tokens(folder: Path) -> None:
    """The published tokenizer with the beginning of its vocabulary, which is read sooner."""
    tekken = json.loads((DATA / FILES["tekken"][0]).read_text())
    tekken["vocab"] = tekken["vocab"][:NUM_TOKENS]
    tekken["config"]["default_vocab_size"] = NUM_TOKENS
    (folder / "tekken.json").write_text(json.dumps(tekken))


@pytest.fixture(scope="module", params=list(FILES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """Ours and theirs."""
    if request.param == "spm":
        pytest.importorskip("sentencepiece")
    source, name = FILES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "tekken":
        few_tokens(folder)
    else:
        (folder / name).symlink_to(DATA / source)
    ours = Tokenizer.load(folder, "mistral")
    library: Any = ours.chat_backend
    return ours, library._chat_tokenizer


@pytest.fixture
def chat(made: tuple[Tokenizer, Any]) -> Iterator[ChatTemplate]:
    renderer = TemplatePool()
    yield choose_chat(made[0], renderer)
    renderer.close()


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_texts_are_those_of_the_library(made: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = made[0], made[1].instruct_tokenizer.tokenizer
    ids = theirs.encode(text, bos=True, eos=False)
    assert ours.encode(text) == ids
    policy = importlib.import_module("mistral_common.tokens.tokenizers.base").SpecialTokenPolicy.IGNORE
    expected = theirs.decode(ids, special_token_policy=policy)
    assert ours.decode(ids) == expected
    assert ours.decode(ids, skip_special_tokens=False).startswith("<s>")
    decoder = make_decoder(ours)
    assert "".join(decoder.push([i]) for i in ids) + decoder.flush() == expected


def test_names_of_special_tokens_are_known(made: tuple[Tokenizer, Any]) -> None:
    ours = made[0]
    assert (ours.bos_id, ours.eos_ids) == (1, (2,))
    assert ours.token_string(3) == "[INST]"
    assert 3 in ours.special_ids
    assert ours.vocab_size == made[1].instruct_tokenizer.tokenizer.n_words


def test_pairs_are_cut_to_the_room_there_is(made: tuple[Tokenizer, Any]) -> None:
    ((ids, types),) = made[0].encode_truncated([("one two three four five", "six")], PairTruncation(whole=5))
    assert (ids[0], len(ids), types) == (1, 5, [0] * 5)


def test_chats_become_the_ids_of_the_library(made: tuple[Tokenizer, Any], chat: ChatTemplate) -> None:
    from mistral_common.protocol.instruct.request import ChatCompletionRequest

    text = chat.render(chat.conversation(MESSAGES), tools=TOOLS)
    ids = made[0].encode(text, add_special_tokens=False)
    plain = [dict(message) for message in MESSAGES]
    plain[2] = {**plain[2], "content": "", "tool_calls": [{**MESSAGES[2]["tool_calls"][0], "id": "a" * 9}]}
    plain[3] = {**plain[3], "tool_call_id": "a" * 9}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    theirs = made[1].encode_chat_completion(ChatCompletionRequest.from_openai(messages=plain, tools=tools)).tokens
    assert [i for i in ids if i in made[0].special_ids] == [i for i in theirs if i in made[0].special_ids]
    assert made[0].encode_batch([text], add_special_tokens=False) == [ids]
    assert ids.count(made[0].vocab["[/INST]"]) == 1, "what users write is no control token"


def test_a_chat_without_calls_is_the_librarys_to_the_last_id(made: tuple[Tokenizer, Any], chat: ChatTemplate) -> None:
    from mistral_common.protocol.instruct.request import ChatCompletionRequest

    messages = [{"role": "user", "content": "Hi </s>"}, {"role": "assistant", "content": "It is"}]
    request = ChatCompletionRequest.from_openai(messages=messages, continue_final_message=True)
    text = chat.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert made[0].encode(text, add_special_tokens=False) == made[1].encode_chat_completion(request).tokens


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        ([{"role": "assistant", "content": "x"}], {}, "must start with a user message"),
        ([{"role": "user", "content": "x"}], {"kwargs": {"a": 1}}, "is for chat templates"),
        ([{"role": "user", "content": "x"}], {"template": "{{ 1 }}"}, "is for chat templates"),
        ([{"role": "user", "content": "x"}], {"tools": [{"type": "x"}]}, "`tools` must be functions"),
    ],
)
def test_what_such_models_do_not_take_is_refused(
    chat: ChatTemplate, messages: list[dict[str, Any]], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        chat.render(messages, **options)


def test_the_parser_of_its_tool_calls_is_found_and_no_template_may_be_given(
    made: tuple[Tokenizer, Any], chat: ChatTemplate
) -> None:
    parser = choose_parser(registry.load(["tools"]), None, chat.tool_template)
    assert parser is not None
    assert parser.name == "mistral"
    with pytest.raises(ConfigError, match="--chat-template cannot be combined with --tokenizer-mode mistral"):
        choose_chat(made[0], chat.renderer, "{{ messages }}")


def test_a_model_chats_with_it(tmp_path: Path) -> None:
    tiny_model(tmp_path, "MistralForCausalLM", vocab_size=NUM_TOKENS, bos_token_id=1, eos_token_id=2)
    few_tokens(tmp_path)
    few = SamplingParams(max_tokens=3, ignore_eos=True)
    with LLM(str(tmp_path), tokenizer_mode="mistral", plugins=["mistral"], num_pages=16) as llm:
        (output,) = llm.chat([{"role": "user", "content": "Hi [INST]"}], few, use_tqdm=False)
    begin, end = output.prompt_token_ids[:2], output.prompt_token_ids[-1:]
    assert (begin, end, output.prompt_token_ids.count(3)) == ([1, 3], [4], 1)
    assert len(output.outputs[0].token_ids) == 3


def test_a_folder_without_such_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer for --tokenizer-mode mistral: expected tekken\.json"):
        Tokenizer.load(tmp_path, "mistral")
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read as a tokenizer"):
        Tokenizer.load(tmp_path, "mistral")


def test_the_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tekken.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "mistral_common.tokens.tokenizers.mistral", None)
    with pytest.raises(ConfigError, match=r"needs the mistral-common package: pip install 'mistral-common"):
        Tokenizer.load(tmp_path, "mistral")
