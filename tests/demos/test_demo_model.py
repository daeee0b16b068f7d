"""The demo chat model: its generator, its split and what the shipped weights know."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from demo_scripts import modules_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples" / "demo_models"
SHIPPED = ROOT / "plugins" / "quire_demos" / "demo_chat"


@pytest.fixture(scope="module")
def demo():
    names = (
        "data.chat.world",
        "data.chat.phrases",
        "data.chat.reply_styles",
        "data.chat.question_kinds",
        "data.chat.small_talk",
        "data.chat.follow_up_questions",
        "data.chat.conversations",
    )
    names += ("models.chat_tokenizer", "evaluation.chat_answers")
    with modules_of(*names) as found:
        yield vars(found)


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(SHIPPED)


def first(stream, count):
    return list(itertools.islice(stream, count))


def test_equal_seeds_give_equal_conversations(demo):
    stream = demo["conversations"].training_conversations
    assert first(stream(7), 50) == first(stream(7), 50)
    assert first(stream(7), 50) != first(stream(8), 50)


def test_held_out_questions_are_the_same_every_time(demo):
    ask = demo["conversations"].held_out_questions
    assert ask(40, seed=1) == ask(40, seed=1)


def test_messages_alternate_and_end_with_an_answer(demo):
    for messages in first(demo["conversations"].training_conversations(0), 200):
        roles = [m["role"] for m in messages if m["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(m["content"] for m in messages)


def test_every_family_is_held_out_in_equal_share(demo):
    conversations = demo["conversations"]
    questions = conversations.held_out_questions(80)
    for family in conversations.FAMILIES:
        assert sum(q.family == family for q in questions) == 10


def test_training_draws_no_held_out_key(demo, monkeypatch):
    conversations, is_held_out = demo["conversations"], demo["reply_styles"].is_held_out
    drawn = []
    style = conversations._with_style
    monkeypatch.setattr(
        conversations, "_with_style", lambda rng, turn, state: drawn.append(turn.key) or style(rng, turn, state)
    )
    first(conversations.training_conversations("split"), 5000)
    assert len(drawn) > 5000
    assert not any(is_held_out(key) for key in drawn)
    held_out = {q.key for q in conversations.held_out_questions(400)}
    assert all(is_held_out(key) for key in held_out)


def test_training_never_shows_a_held_out_sum(demo):
    conversations = demo["conversations"]
    questions = [q for q in conversations.held_out_questions(800) if q.key.startswith(("+", "-"))]
    sums = {q.answer for q in questions if " = " in q.answer}
    assert len(sums) > 50
    shown = set()
    for messages in first(conversations.training_conversations("sums"), 20000):
        shown.update(m["content"] for m in messages)
    assert sums.isdisjoint(shown)


def test_tokenizer_restores_any_text(tokenizer):
    for text in ("What is 27 + 45?", '{"capital": "Belcast"}', "Ünïcödé 東京 🙂\n- a\n- b", "  two  spaces "):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_every_digit_is_a_token(tokenizer):
    tokens = tokenizer.tokenize("1234 and 56")
    assert [t for t in tokens if t.isdigit()] == list("123456")


def test_encoder_agrees_with_the_chat_template(demo, tokenizer):
    encoder = demo["chat_tokenizer"].Encoder(tokenizer)
    for messages in first(demo["conversations"].training_conversations("template"), 100):
        ids, targets = encoder.conversation(messages)
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        assert ids == tokenizer.encode(text, add_special_tokens=False)
        learned = tokenizer.decode([t for t in targets if t != demo["chat_tokenizer"].IGNORE])
        answers = [m["content"] + demo["chat_tokenizer"].END for m in messages if m["role"] == "assistant"]
        assert learned == "".join(answers)


def test_shipped_model_answers_held_out_questions(demo, tokenizer):
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    questions = demo["conversations"].held_out_questions(80, seed="test")
    answers = demo["chat_answers"].generate(model, tokenizer, [q.messages for q in questions])
    shares = demo["chat_answers"].score(questions, answers)
    assert shares["overall"] >= 0.95, shares
