"""Train the demo chat model from nothing on the text of its own generator.

    python examples/demo_models/train_chat.py --minutes 45
    python examples/demo_models/train_chat.py --minutes 60 --resume   # go on

The result is written in plain Hugging Face format, by default to the place in
the llama plugin from which it is shipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from data.chat.conversations import held_out_questions, training_conversations
from evaluation.chat_answers import generate, score
from evaluation.reports import report
from models.chat_tokenizer import END, PAD, Encoder, pack, train_tokenizer
from torch.nn.functional import cross_entropy
from training.training_loop import Plan, Training, new_optimizers
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
SHIPPED = HERE.parents[1] / "plugins" / "quire_demos" / "demo_chat"
CONTEXT = 1024
# Rows and length of the batches in turn: mostly short rows, which are quick, and
# now and then long ones, so that the whole context length is practised.
BATCH_SHAPES = (*[(32, 128)] * 9, (8, 512), (8, 512), (4, CONTEXT))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=SHIPPED, help="folder of the finished model")
    parser.add_argument("--work-dir", type=Path, default=HERE / "build", help="folder of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--minutes", type=float, default=50.0, help="training time, resumed parts included")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after so many steps")
    parser.add_argument("--save-every", type=float, default=5.0, help="minutes between checkpoints")
    parser.add_argument("--evaluate-every", type=int, default=500, help="steps between accuracy figures")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--vocabulary", type=int, default=1280)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6}


def new_model(tokenizer: PreTrainedTokenizerFast, **sizes: int) -> LlamaForCausalLM:
    """A small llama with grouped-query attention and tied embeddings; `sizes` replace those of `SIZES`."""
    sizes = SIZES | sizes
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **sizes,
        num_attention_heads=sizes["hidden_size"] // 64,
        num_key_value_heads=sizes["hidden_size"] // 128,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        # On a CPU the plain formulation, compiled, is faster than the fused kernel.
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


def answer_loss(
    model: LlamaForCausalLM, backbone: Callable[..., Any], batch: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """How far the model is from the answers; logits are only computed where an answer token is predicted."""
    ids, targets = batch
    wanted = targets[:, 1:]
    keep = wanted != -100
    with torch.autocast("cpu", torch.bfloat16):
        hidden = backbone(input_ids=ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][keep])
    return cross_entropy(logits.float(), wanted[keep])


def training_batch(encoder: Encoder, seed: str, step: int, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and targets of one update, which depend on nothing but seed and step."""
    rows, length = BATCH_SHAPES[step % len(BATCH_SHAPES)]
    return pack(encoder, training_conversations(f"{seed}:{step}"), rows, length, pad_id)


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model as bfloat16 in Hugging Face format."""
    folder.mkdir(parents=True, exist_ok=True)
    shipped = LlamaForCausalLM(model.config)
    shipped.load_state_dict(model.state_dict())
    shipped.to(torch.bfloat16)
    shipped.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id
    )
    shipped.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Trainer:
    """A model in training, and what it learns from."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.checkpoint = options.work_dir / "checkpoint.pt"
        options.work_dir.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        tokenizer_folder = options.work_dir / "tokenizer"
        if options.resume:
            self.tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
        else:
            self.tokenizer = train_tokenizer(options.vocabulary, 40_000, CONTEXT)
            self.tokenizer.save_pretrained(tokenizer_folder)
        self.model = new_model(self.tokenizer)
        self.backbone = torch.compile(self.model.model, dynamic=False) if options.compile else self.model.model
        rate, minutes, steps = options.learning_rate, options.minutes, options.steps
        plan = Plan(learning_rate=rate, warm_up=200, minutes=minutes, steps=steps)
        self.training = Training(self.model, new_optimizers(self.model, rate), plan)
        if options.resume:
            self.training.load(self.checkpoint)
        self.encoder = Encoder(self.tokenizer)

    def save(self) -> None:
        """Write the checkpoint and the model as it stands."""
        self.training.save(self.checkpoint)
        save_model(self.model, self.tokenizer, self.options.output)

    def step(self) -> dict[str, float]:
        """One update, with a batch that depends on nothing but seed and step."""
        step = self.training.progress.step
        batch = training_batch(self.encoder, f"{self.options.seed}", step, self.model.config.pad_token_id)
        loss = answer_loss(self.model, self.backbone, batch)
        self.training.update(loss)
        return {"loss": loss.item()}

    def evaluate(self, count: int) -> None:
        """Print the accuracy on held-out questions."""
        questions = held_out_questions(count, seed="while training")
        self.model.eval()
        answers = generate(self.model, self.tokenizer, [q.messages for q in questions])
        self.model.train()
        print(report(score(questions, answers)), flush=True)

    def run(self) -> None:
        """Train until the time or the steps are used up."""
        print(f"{self.model.num_parameters():,} parameters, {len(self.tokenizer)} tokens", flush=True)
        self.training.run(
            self.step,
            save=self.save,
            save_every=self.options.save_every,
            evaluate=lambda: self.evaluate(160),
            evaluate_every=self.options.evaluate_every,
        )
        self.evaluate(800)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    Trainer(options).run()


if __name__ == "__main__":
    main()
