"""Train the demo reranker, which begins as the demo embedder, on the text of the same generator.

    python examples/demo_models/train_reranker.py

It reads a question and a passage together and tells whether the one answers the other. What it learns to tell from
answers is what the embedder takes for them: the nearest wrong passages of the same islands. The result is written to
the place from which it is shipped.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path

import torch
from data.retrieval.questions import answers
from data.retrieval.search_tasks import Search, known_isles, new_isles, training_search
from evaluation.retrieval_scores import quality
from models.reranker import nearest, rerank, score
from torch.nn.functional import binary_cross_entropy_with_logits
from training.bert_training import PLUGINS, Optimizer, save
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

EMBEDDER = PLUGINS / "demo_embed"
SHIPPED = PLUGINS / "demo_rerank"
WRONG = 4


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=SHIPPED, help="folder of the finished model")
    parser.add_argument("--embedder", type=Path, default=EMBEDDER, help="folder of the embedder to begin from")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument(
        "--questions", type=int, default=32, help="in a batch, each with one answer and four wrong ones"
    )
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def new_model(embedder: BertModel) -> BertForSequenceClassification:
    """The embedder with one score over its first token."""
    known = embedder.config.to_diff_dict()
    for name in ("architectures", "matryoshka_dimensions", "dtype"):
        known.pop(name, None)
    config = BertConfig(
        **known,
        id2label={0: "relevant"},
        label2id={"relevant": 0},
        # What turns the score into a probability, where Sentence Transformers and others look for it.
        sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid"},
        attn_implementation="eager",
    )
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(embedder.state_dict(), strict=False)
    # With equal matrices for queries and keys a token attends to its like from the start, in the other text as well.
    # Found by chance, that would take most of the training.
    for layer in model.bert.encoder.layer:
        attention = layer.attention.self
        torch.nn.init.normal_(attention.query.weight, std=config.hidden_size**-0.5)
        attention.key.load_state_dict(attention.query.state_dict())
    return model


class Teacher:
    """Pairs of a question and a passage to judge, drawn with the help of the embedder."""

    def __init__(self, embedder: BertModel, tokenizer: PreTrainedTokenizerFast, seed: int, questions: int) -> None:
        self._embedder, self._tokenizer, self._seed, self._questions = embedder, tokenizer, seed, questions

    def pairs(self, step: int) -> tuple[list[str], list[str], torch.Tensor]:
        """Questions, passages, and 1.0 where the one answers the other, 0.0 elsewhere: [pairs]."""
        rng = random.Random(f"pairs:{self._seed}:{step}")
        search = training_search(f"{self._seed}:{step}", self._questions)
        rows = []
        for question, places in zip(search.questions, nearest(self._embedder, self._tokenizer, search), strict=True):
            right = [passage for passage in search.passages if answers(passage, question)]
            near = [search.passages[i] for i in places]
            wrong = [passage for passage in [*near, *rng.sample(search.passages, WRONG)] if passage not in right]
            drawn = [*(rng.sample(right, 1) if right else []), *wrong[: WRONG - 1], wrong[-1]]
            rows += [(question.text, passage.text, float(passage in right)) for passage in drawn]
        questions, passages, labels = zip(*rows, strict=True)
        return list(questions), list(passages), torch.tensor(labels)


def evaluate(
    model: BertForSequenceClassification,
    embedder: BertModel,
    tokenizer: PreTrainedTokenizerFast,
    searches: dict[str, Search],
) -> None:
    """Print how well each search goes, before and after the nearest passages are put in order."""
    for name, search in searches.items():
        ranked = nearest(embedder, tokenizer, search)
        found = rerank(model, tokenizer, search, ranked)
        print(f"  {name:<10} embedder   {quality(search, ranked)}")
        print(f"  {name:<10} reranker   {quality(search, found.ranked)}   right {100 * found.right:6.2f} %", flush=True)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.embedder)
    embedder = BertModel.from_pretrained(options.embedder, add_pooling_layer=False, dtype=torch.float32).eval()
    model = new_model(embedder)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    optimizer = Optimizer(model, options.learning_rate, options.steps)
    teacher = Teacher(embedder, tokenizer, options.seed, options.questions)
    searches = {"known": known_isles(200, "while training"), "new": new_isles(200, "while training")}
    begin = time.perf_counter()
    for step in range(1, options.steps + 1):
        questions, passages, labels = teacher.pairs(step)
        with torch.autocast("cpu", torch.bfloat16):
            scores = score(model, tokenizer, questions, passages)
        loss = binary_cross_entropy_with_logits(scores, labels)
        optimizer.step(loss)
        if step % 50 == 0:
            minutes = (time.perf_counter() - begin) / 60
            print(f"step {step}  {minutes:.1f} min  loss {loss.item():.4f}", flush=True)
        if step % 200 == 0:
            evaluate(model, embedder, tokenizer, searches)
    save(model, options.output)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(options.embedder / name, options.output / name)


if __name__ == "__main__":
    main()
