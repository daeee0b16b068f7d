"""Print how well the demo embedder finds passages, and how the demo reranker puts the nearest ten in order.

    python examples/demo_models/evaluate_retrieval.py                     # the shipped models
    python examples/demo_models/evaluate_retrieval.py --embedder DIR --reranker DIR

Three searches, none with a question that was trained on: in the Lantern Isles, in new worlds whose names are all held
out, and in such worlds with questions in wordings that are held out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from data.retrieval.search_tasks import Search, known_isles, new_isles
from evaluation.retrieval_scores import Quality, mean, quality, ranking
from models.embedder import cut, embed
from models.reranker import nearest, rerank
from training.bert_training import PLUGINS
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--embedder", type=Path, default=PLUGINS / "demo_embed")
    parser.add_argument("--reranker", type=Path, default=PLUGINS / "demo_rerank")
    parser.add_argument("--worlds", type=int, default=5, help="for each kind of search")
    parser.add_argument("--questions", type=int, default=200, help="for each world")
    parser.add_argument("--seed", default="evaluation", help="seed of worlds and questions")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def searches(seed: str, worlds: int, questions: int) -> dict[str, list[Search]]:
    """By kind."""
    seeds = [f"{seed}:{world}" for world in range(worlds)]
    return {
        "Lantern Isles": [known_isles(questions, seed) for seed in seeds],
        "new worlds": [new_isles(questions, seed) for seed in seeds],
        "new wordings": [new_isles(questions, seed, otherwise=True) for seed in seeds],
    }


@torch.inference_mode()
def embedder_alone(
    model: BertModel, tokenizer: PreTrainedTokenizerFast, found: Sequence[Search], dimensions: int
) -> Quality:
    """How well passages are found by the first numbers of embeddings."""
    results = []
    for search in found:
        questions = cut(embed(model, tokenizer, [question.text for question in search.questions]), dimensions)
        passages = cut(embed(model, tokenizer, [passage.text for passage in search.passages]), dimensions)
        results.append(quality(search, ranking(questions, passages)))
    return mean(results)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.embedder)
    # In float32, so that the figure does not depend on how a CPU rounds bfloat16.
    embedder = BertModel.from_pretrained(options.embedder, add_pooling_layer=False, dtype=torch.float32)
    reranker = BertForSequenceClassification.from_pretrained(options.reranker, dtype=torch.float32)
    for kind, found in searches(options.seed, options.worlds, options.questions).items():
        asked, among = sum(len(s.questions) for s in found), max(len(s.passages) for s in found)
        print(f"{kind}: {asked} questions, each among {among} passages")
        for dimensions in embedder.config.matryoshka_dimensions:
            print(f"  embedder, {dimensions:>3} numbers   {embedder_alone(embedder, tokenizer, found, dimensions)}")
        ordered = [rerank(reranker, tokenizer, search, nearest(embedder, tokenizer, search)) for search in found]
        results = [quality(search, reranked.ranked) for search, reranked in zip(found, ordered, strict=True)]
        right = sum(reranked.right for reranked in ordered) / len(ordered)
        print(f"  its first ten, reranked   {mean(results)}   judged right {100 * right:.2f} %", flush=True)


if __name__ == "__main__":
    main()
