"""Train the adapters of the demo chat model: one LoRA for each of its voices, and one that reads passages.

    python examples/demo_models/train_adapters.py                  # all of them
    python examples/demo_models/train_adapters.py pirate --steps 500
    python examples/demo_models/train_adapters.py dutch --resume   # go on after an interruption

The results are written in PEFT format, by default to the place beside the model's weights from which they are
shipped. Equal arguments give equal batches; what the threads of a machine add up in another order may still differ.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from data.lessons import LESSONS
from evaluation.chat_answers import generate, score
from evaluation.reports import report
from models.chat_tokenizer import Encoder, pack
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from train_chat import HERE, SHIPPED, answer_loss
from training.training_loop import Plan, Training
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = "demo-chat"
"""What the adapters' configuration calls the model; it is no path, for theirs lies elsewhere on every machine."""
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


CHATS = (*[(32, 128)] * 7, (8, 512))
"""Rows and length of batches in turn: now and then long ones, in which long chats fit."""
READINGS = ((16, 256),)


@dataclass(frozen=True)
class Recipe:
    """How much one lesson takes: steps of 4096 tokens in batches of these shapes, and the rank that can hold it."""

    steps: int
    rank: int
    batch_shapes: tuple[tuple[int, int], ...] = CHATS


RECIPES = {
    "pirate": Recipe(400, 8),
    "dutch": Recipe(700, 12),
    "json": Recipe(200, 8),
    "reader": Recipe(2200, 32, READINGS),
}
"""Dutch has some two hundred words that the model has never seen. To read is a skill that it does not have."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help=f"any of {', '.join(LESSONS)} (default: all)")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="folder of the base model")
    parser.add_argument("--output", type=Path, default=SHIPPED / "adapters", help="folder of the adapters' folders")
    parser.add_argument("--work-dir", type=Path, default=HERE / "build", help="folder of the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--steps", type=int, help="of 4096 tokens each (default: as the lesson needs)")
    parser.add_argument("--rank", type=int, help="of all matrices (default: as the lesson needs)")
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--save-every", type=float, default=2.0, help="minutes between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    unknown = set(options.lessons) - LESSONS.keys()
    if unknown:
        parser.error(f"there is no lesson {unknown.pop()!r}; there are {', '.join(LESSONS)}")
    return options


class AdapterTrainer:
    """One adapter in training, and what it learns from."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.lesson, self.recipe, self.options = name, LESSONS[name], RECIPES[name], options
        rank = options.rank or self.recipe.rank
        self.checkpoint = options.work_dir / f"adapter-{name}.pt"
        options.work_dir.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        # On a CPU the plain formulation of attention is faster than the fused kernel.
        base = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="eager")
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS, task_type=TaskType.CAUSAL_LM)
        self.model: PeftModel = get_peft_model(base, config)
        self.base = self.model.get_base_model()
        self.base.train()
        self.backbone = torch.compile(self.base.model, dynamic=False) if options.compile else self.base.model
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)
        self.encoder = Encoder(self.tokenizer)
        learned = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learned, lr=options.learning_rate, weight_decay=0.0, betas=(0.9, 0.98))
        plan = Plan(learning_rate=options.learning_rate, warm_up=20, steps=options.steps or self.recipe.steps)
        self.training = Training(self.model, [optimizer], plan)
        if options.resume and self.checkpoint.exists():
            self.training.load(self.checkpoint)

    def export(self) -> None:
        """Write the adapter in PEFT format, as bfloat16 like the model that it belongs to."""
        folder = self.options.output / self.name
        folder.mkdir(parents=True, exist_ok=True)
        weights = get_peft_model_state_dict(self.model)
        file = folder / "adapter_model.safetensors"
        save_file({n: t.to(torch.bfloat16).contiguous() for n, t in weights.items()}, file, metadata={"format": "pt"})
        file.chmod(0o644)  # safetensors makes files that nobody else may read
        config = self.model.peft_config["default"]
        config.base_model_name_or_path, config.inference_mode = BASE, True
        config.target_modules = TARGETS  # in order: peft keeps a set, whose order changes from run to run
        config.save_pretrained(folder)

    def step(self) -> dict[str, float]:
        """One update, with a batch that depends on nothing but seed and step."""
        step = self.training.progress.step
        shapes = self.recipe.batch_shapes
        rows, length = shapes[step % len(shapes)]
        stream = self.lesson.conversations(f"{self.options.seed}:{step}")
        batch = pack(self.encoder, stream, rows, length, self.base.config.pad_token_id)
        loss = answer_loss(self.base, self.backbone, batch)
        self.training.update(loss)
        return {"loss": loss.item()}

    def run(self) -> None:
        """Train, then print how many held-out questions are answered right."""
        print(self.name, flush=True)
        self.training.run(
            self.step, save=lambda: self.training.save(self.checkpoint), save_every=self.options.save_every
        )
        self.export()
        self.evaluate(400)

    def evaluate(self, count: int) -> None:
        """Print the accuracy on held-out questions."""
        questions = self.lesson.questions(count, "while training")
        self.model.eval()
        answers = generate(self.base, self.tokenizer, [q.messages for q in questions])
        print(report(score(questions, answers)), flush=True)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    for name in options.lessons or LESSONS:
        AdapterTrainer(name, options).run()


if __name__ == "__main__":
    main()
