"""Train the draft model of the demo chat model: a tenth of its size, for speculative decoding.

    python examples/demo_models/train_draft.py --minutes 20
    python examples/demo_models/train_draft.py --minutes 30 --resume   # go on

It learns the answers from the same text as the chat model, whose tokenizer it uses, so that it chooses the same tokens
as often as it can. What counts is how often it does on held-out questions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from data.chat.conversations import held_out_questions
from evaluation.draft_agreement import agreement
from models.chat_tokenizer import Encoder
from train_chat import HERE, SHIPPED, answer_loss, new_model, save_model, training_batch
from training.training_loop import Plan, Training, new_optimizers
from transformers import AutoModelForCausalLM, AutoTokenizer

SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=SHIPPED / "draft", help="folder of the finished model")
    parser.add_argument("--target", type=Path, default=SHIPPED, help="folder of the chat model")
    parser.add_argument("--work-dir", type=Path, default=HERE / "build", help="folder of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--minutes", type=float, default=20.0, help="training time, resumed parts included")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after so many steps")
    parser.add_argument("--save-every", type=float, default=3.0, help="minutes between checkpoints")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


class DraftTrainer:
    """A draft model in training, and the chat model that it drafts for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.checkpoint = options.work_dir / "draft_checkpoint.pt"
        options.work_dir.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        self.tokenizer = AutoTokenizer.from_pretrained(options.target)
        self.model = new_model(self.tokenizer, **SIZES)
        plan = Plan(learning_rate=options.learning_rate, warm_up=100, minutes=options.minutes, steps=options.steps)
        self.training = Training(self.model, new_optimizers(self.model, options.learning_rate), plan)
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
        batch = training_batch(self.encoder, f"draft:{self.options.seed}", step, self.model.config.pad_token_id)
        loss = answer_loss(self.model, self.model.model, batch)
        self.training.update(loss)
        return {"loss": loss.item()}

    def run(self) -> None:
        """Train until the time or the steps are used up, then print how often it agrees with the chat model."""
        print(f"{self.model.num_parameters():,} parameters", flush=True)
        self.training.run(self.step, save=self.save, save_every=self.options.save_every)
        target = AutoModelForCausalLM.from_pretrained(self.options.target, dtype=torch.float32)
        questions = held_out_questions(400, seed="draft")
        share = agreement(self.model.eval(), target, self.encoder, questions)
        print(f"of the chat model's tokens in answers to held-out questions it chooses {100 * share:.1f} %")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    DraftTrainer(options).run()


if __name__ == "__main__":
    main()
