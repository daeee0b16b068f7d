"""Train the demo embedder from nothing on the text of its own generator.

    python examples/demo_models/train_embedder.py

A question is drawn towards a passage that answers it, or a question that means the same, and away from all others of
its batch, which are about the same islands: by its first 32 numbers, by its first 64 and by all 128. The result has the
layout of Sentence Transformers and is written to the place from which it is shipped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from data.retrieval.search_tasks import Search, known_isles, new_isles
from data.retrieval.training_pairs import Pair, training_pairs
from evaluation.retrieval_scores import quality, ranking
from models.bert_tokenizer import PAD, train_tokenizer
from models.embedder import cut, embed
from torch.nn.functional import cross_entropy
from training.bert_training import PLUGINS, Optimizer, save
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SHIPPED = PLUGINS / "demo_embed"
CONTEXT = 256
DIMENSIONS = (32, 64, 128)
SCALE = 20.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=SHIPPED, help="folder of the finished model")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=192, help="in a batch")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--vocabulary", type=int, default=1280)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def new_model(tokenizer: PreTrainedTokenizerFast) -> BertModel:
    """A small BERT, without the layer over its first token, which embeddings do not need."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=DIMENSIONS[-1],
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        # The generator never repeats itself for long, so nothing can be learned by heart.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        matryoshka_dimensions=list(DIMENSIONS),
        # In bfloat16 on a CPU the gradient of the plain formulation is found much faster.
        attn_implementation="eager",
    )
    return BertModel(config, add_pooling_layer=False)


def contrast(pairs: Sequence[Pair], questions: torch.Tensor, partners: torch.Tensor) -> torch.Tensor:
    """How far questions are from their own partners, measured by those of others: a scalar.

    Both are embeddings, [pairs, width]. What answers a question without being its partner counts neither way.
    """
    suits = torch.tensor([[pair.suits(other.question) for pair in pairs] for other in pairs])
    others = suits.logical_and(~torch.eye(len(pairs), dtype=torch.bool))
    own = torch.arange(len(pairs))
    losses = []
    for size in DIMENSIONS:
        near = SCALE * cut(questions, size) @ cut(partners, size).T
        near = near.masked_fill(others, float("-inf"))
        losses += [cross_entropy(near, own), cross_entropy(near.T, own)]
    return torch.stack(losses).mean()


def training_loss(model: BertModel, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[Pair]) -> torch.Tensor:
    """The loss of a batch. Texts begin anywhere, so that all positions are learned from short ones."""
    texts = [pair.question.text for pair in pairs] + [pair.partner.text for pair in pairs]
    shift = int(torch.randint(CONTEXT - 80, ()).item()) if torch.rand(()) < 0.3 else 0
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = embed(model, tokenizer, texts, shift)
    return contrast(pairs, *embeddings.chunk(2))


@torch.inference_mode()
def evaluate(model: BertModel, tokenizer: PreTrainedTokenizerFast, searches: dict[str, Search]) -> None:
    """Print how well each search goes."""
    for name, search in searches.items():
        questions = embed(model, tokenizer, [question.text for question in search.questions])
        passages = embed(model, tokenizer, [passage.text for passage in search.passages])
        for size in DIMENSIONS:
            found = quality(search, ranking(cut(questions, size), cut(passages, size)))
            print(f"  {name:<10} {size:>4} numbers   {found}", flush=True)


def describe(folder: Path) -> None:
    """What Sentence Transformers reads beside the model: which modules follow one another."""
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
    rows = [
        {"idx": i, "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (name, path, kind) in enumerate(modules)
    ]
    pooling = {"word_embedding_dimension": DIMENSIONS[-1], "pooling_mode_cls_token": False}
    pooling |= {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    files: dict[str, object] = {
        "modules.json": rows,
        "1_Pooling/config.json": pooling,
        "2_Normalize/config.json": {},
        "sentence_bert_config.json": {"max_seq_length": CONTEXT, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}, "similarity_fn_name": "cosine"},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = train_tokenizer(options.vocabulary, 300, CONTEXT)
    # Before it is used, for it would be saved with how it was used last.
    tokenizer.save_pretrained(options.output)
    model = new_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    optimizer = Optimizer(model, options.learning_rate, options.steps)
    searches = {"known": known_isles(300, "while training"), "new": new_isles(300, "while training")}
    begin = time.perf_counter()
    for step in range(1, options.steps + 1):
        loss = training_loss(model, tokenizer, training_pairs(f"{options.seed}:{step}", options.pairs))
        optimizer.step(loss)
        if step % 50 == 0:
            minutes = (time.perf_counter() - begin) / 60
            print(f"step {step}  {minutes:.1f} min  loss {loss.item():.4f}", flush=True)
        if step % 300 == 0:
            evaluate(model, tokenizer, searches)
    save(model, options.output)
    describe(options.output)


if __name__ == "__main__":
    main()
