"""The demo embedder and reranker: their generator, their split and what the shipped weights find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from demo_scripts import modules_of
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from quire_plugins.architectures.bert import quire_demo_models as demo_models

FOLDERS = {demo.name: demo.folder() for demo in demo_models()}
MODULES = (
    "data.chat.world",
    "data.chat.phrases",
    "data.chat.reply_styles",
    "data.chat.question_kinds",
    "data.chat.small_talk",
    "data.retrieval.fact_templates",
    "data.retrieval.invented_worlds",
    "data.retrieval.passages",
)
MODULES += (
    "data.retrieval.questions",
    "data.retrieval.training_pairs",
    "data.retrieval.search_tasks",
    "evaluation.retrieval_scores",
    "models.bert_tokenizer",
    "models.embedder",
    "models.reranker",
)


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    with modules_of(*MODULES) as found:
        yield found


@pytest.fixture(scope="module")
def embedder() -> SentenceTransformer:
    return SentenceTransformer(str(FOLDERS["demo-embed"]), device="cpu", model_kwargs={"dtype": torch.float32})


@pytest.fixture(scope="module")
def reranker() -> CrossEncoder:
    return CrossEncoder(str(FOLDERS["demo-rerank"]), device="cpu", model_kwargs={"dtype": torch.float32})


OTHERWISE = {"otherwise": True}


def texts(items: Any) -> list[str]:
    return [item.text for item in items]


def names(isles: Any) -> set[str]:
    return {name for island, row in isles.items() for name in (island, row["capital"], row["river"])}


# --- the generator -----------------------------------------------------------------------------------


def test_equal_seeds_give_equal_texts_and_others_do_not(demo: Any) -> None:
    for make in (demo.training_pairs.training_pairs, demo.search_tasks.training_search):
        assert make(7, 40) == make(7, 40)
        assert make(7, 40) != make(8, 40)
    for make in (demo.search_tasks.known_isles, demo.search_tasks.new_isles):
        assert make(40, "a") == make(40, "a")
        assert make(40, "a") != make(40, "b")


def test_every_partner_in_training_suits_its_question(demo: Any) -> None:
    kinds = set()
    for seed in range(30):
        for pair in demo.training_pairs.training_pairs(seed, 100):
            assert pair.suits(pair.question), pair
            kinds.add((pair.question.key.split(":")[0], type(pair.partner).__name__))
    assert len(kinds) == 10  # five kinds of questions, each with passages and with questions of the same sense


def test_passages_that_answer_another_question_of_the_batch_are_no_negatives(demo: Any) -> None:
    pairs = demo.training_pairs.training_pairs("batch", 192)
    suits = np.array([[pair.suits(other.question) for pair in pairs] for other in pairs])
    assert suits.diagonal().all()
    assert len(pairs) < suits.sum() < suits.size / 10


def test_training_asks_no_held_out_question_and_uses_no_new_name(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lessons, drawn = demo.training_pairs, []
    isles = lessons.training_isles
    monkeypatch.setattr(lessons, "training_isles", lambda rng: drawn.append(isles(rng)) or drawn[-1])
    keys, said = set(), []
    for seed in range(40):
        for pair in lessons.training_pairs(seed, 100):
            keys.add(pair.question.key)
            said += [pair.question.text, pair.partner.text]
    assert len(keys) > 1500
    assert not any(demo.reply_styles.is_held_out(key) for key in keys)
    invented = {name for isles in drawn for name in names(isles)} - names(demo.world.ISLANDS)
    assert len(invented) > 1500
    assert not any(demo.invented_worlds.is_new_name(name) for name in invented)
    starts = tuple(wording.split("{")[0] for wording in demo.fact_templates.ASK_OTHERWISE)
    assert not any(start in text for start in starts for text in said)


def test_new_worlds_are_of_new_names_only(demo: Any) -> None:
    import random

    isles = demo.invented_worlds.invented(random.Random(0), 30, new=True)
    assert len(names(isles)) == 90
    assert all(demo.invented_worlds.is_new_name(name) for name in names(isles))


@pytest.mark.parametrize(("kind", "words"), [("known_isles", {}), ("new_isles", {}), ("new_isles", OTHERWISE)])
def test_every_held_out_question_has_an_answer_among_many_passages(demo: Any, kind: str, words: dict[str, Any]) -> None:
    search = getattr(demo.search_tasks, kind)(200, "answers", **words)
    assert len(search.passages) >= 180
    assert len(set(texts(search.passages))) == len(search.passages)
    for question in search.questions:
        right = sum(demo.questions.answers(passage, question) for passage in search.passages)
        assert 1 <= right <= 3, question
    if kind == "known_isles":
        assert all(demo.reply_styles.is_held_out(question.key) for question in search.questions)


def test_a_ranking_is_judged_by_its_first_answer(demo: Any) -> None:
    search = demo.search_tasks.new_isles(3, "judged")
    right = [[demo.questions.answers(p, q) for p in search.passages].index(True) for q in search.questions]
    wrong = [[demo.questions.answers(p, q) for p in search.passages].index(False) for q in search.questions]
    ranked = [[right[0], wrong[0]], [wrong[1], right[1]], [wrong[2], wrong[2]]]
    found = demo.retrieval_scores.quality(search, ranked)
    assert (found.recall, found.reciprocal_rank) == (pytest.approx(1 / 3), pytest.approx(0.5))


def test_the_scripts_rebuild_the_shipped_tokenizer(demo: Any, tmp_path: Path) -> None:
    demo.bert_tokenizer.train_tokenizer(1280, 300, 256).save_pretrained(tmp_path)
    rebuilt = json.loads((tmp_path / "tokenizer.json").read_text())
    for folder in FOLDERS.values():
        assert json.loads((folder / "tokenizer.json").read_text()) == rebuilt


# --- the shipped models ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo-embed", "demo-rerank"])
def test_a_demo_is_small_and_in_hugging_face_format(name: str) -> None:
    folder = FOLDERS[name]
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 4 << 20
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert {"model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {file.name for file in folder.iterdir()}


def test_the_tokenizer_marks_pairs_as_bert_does_and_knows_any_printable_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS["demo-rerank"])
    pair = tokenizer("Hello", "What is C++?")
    tokens = tokenizer.convert_ids_to_tokens(pair["input_ids"])
    assert (tokens[0], tokens[-1], tokens.count("[SEP]")) == ("[CLS]", "[SEP]", 2)
    first = tokens.index("[SEP]") + 1
    assert pair["token_type_ids"] == [0] * first + [1] * (len(tokens) - first)
    printable = "".join(map(chr, range(33, 127)))
    assert "[UNK]" not in tokenizer.tokenize(" ".join(printable) + " zyzzyva Ünïcödé 1234.5")


def test_sentence_transformers_and_the_plain_formulation_agree(demo: Any, embedder: SentenceTransformer) -> None:
    folder = FOLDERS["demo-embed"]
    model, tokenizer = AutoModel.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
    said = texts(demo.search_tasks.new_isles(1, "agree").passages)
    with torch.inference_mode():
        plain = demo.embedder.cut(demo.embedder.embed(model, tokenizer, said), 128).numpy()
    np.testing.assert_allclose(embedder.encode(said), plain, atol=1e-5)


@pytest.mark.parametrize(("kind", "least"), [("known_isles", 0.95), ("new_isles", 0.85)])
def test_the_embedder_finds_the_answer(demo: Any, embedder: SentenceTransformer, kind: str, least: float) -> None:
    search = getattr(demo.search_tasks, kind)(200, "test")
    questions = torch.from_numpy(embedder.encode(texts(search.questions)))
    passages = torch.from_numpy(embedder.encode(texts(search.passages)))
    assert embedder.similarity_fn_name == "cosine"
    torch.testing.assert_close(questions.norm(dim=1), torch.ones(200))
    sizes = json.loads((FOLDERS["demo-embed"] / "config.json").read_text())["matryoshka_dimensions"]
    assert sizes == [32, 64, 128]
    for size in sizes:
        cut = demo.embedder.cut
        found = demo.retrieval_scores.quality(
            search, demo.retrieval_scores.ranking(cut(questions, size), cut(passages, size))
        )
        assert found.recall >= least, size


def test_the_reranker_finds_more_than_the_embedder(
    demo: Any, embedder: SentenceTransformer, reranker: CrossEncoder
) -> None:
    search = demo.search_tasks.new_isles(100, "test")
    questions, passages = (torch.from_numpy(embedder.encode(texts(t))) for t in (search.questions, search.passages))
    ranked = demo.retrieval_scores.ranking(questions, passages)
    pairs = [(q, search.passages[i]) for q, row in zip(search.questions, ranked, strict=True) for i in row]
    scores = torch.from_numpy(reranker.predict([(q.text, p.text) for q, p in pairs]))
    assert 0 <= scores.min() < 0.05 < 0.95 < scores.max() <= 1
    truth = torch.tensor([demo.questions.answers(p, q) for q, p in pairs])
    assert ((scores > 0.5) == truth).float().mean() >= 0.95
    orders = scores.view(len(ranked), -1).argsort(dim=1, descending=True).tolist()
    before = demo.retrieval_scores.quality(search, ranked)
    after = demo.retrieval_scores.quality(search, [[row[i] for i in o] for row, o in zip(ranked, orders, strict=True)])
    assert after.recall > before.recall
    assert after.recall >= 0.95


def test_transformers_load_the_reranker_with_one_label() -> None:
    model = AutoModelForSequenceClassification.from_pretrained(FOLDERS["demo-rerank"])
    assert (model.config.num_labels, model.config.id2label) == (1, {0: "relevant"})
    assert model.config.architectures == ["BertForSequenceClassification"]
