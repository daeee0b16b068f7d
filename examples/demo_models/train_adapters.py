"""Train the adapters of the demo chat model: one LoRA for each of its voices.

    python examples/demo_models/train_adapters.py                  # all of them
    python examples/demo_models/train_adapters.py pirate --steps 500
    python examples/demo_models/train_adapters.py dutch --resume   # go on after an interruption

The results are written in PEFT format, by default to the place beside the model's weights from which they are
shipped. Equal arguments give equal batches; what the threads of a machine add up in another order may still differ.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from answering import generate, report, score
from chat_tokens import Encoder, pack
from conversations import held_out_questions, training_conversations
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file
from train_chat import HERE, SHIPPED, training_step
from transformers import AutoModelForCausalLM, AutoTokenizer
from voices import VOICES

BASE = "demo-chat"
"""What the adapters' configuration calls the model; it is no path, for theirs lies elsewhere on every machine."""
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Recipe:
    """How much one voice takes: steps of 4096 tokens, and the rank that can hold it."""

    steps: int
    rank: int


RECIPES = {"pirate": Recipe(400, 8), "dutch": Recipe(700, 12), "json": Recipe(200, 8)}
"""Dutch takes most: some two hundred words that the model has never seen."""

BATCH_SHAPES = (*[(32, 128)] * 7, (8, 512))
"""Rows and length of the batches in turn: now and then long ones, in which long chats fit."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("voices", nargs="*", metavar="VOICE", help=f"any of {', '.join(VOICES)} (default: all)")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="folder of the base model")
    parser.add_argument("--output", type=Path, default=SHIPPED / "adapters", help="folder of the adapters' folders")
    parser.add_argument("--work-dir", type=Path, default=HERE / "build", help="folder of the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--steps", type=int, help="of 4096 tokens each (default: as the voice needs)")
    parser.add_argument("--rank", type=int, help="of all matrices (default: as the voice needs)")
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    unknown = set(options.voices) - VOICES.keys()
    if unknown:
        parser.error(f"there is no voice {unknown.pop()!r}; there are {', '.join(VOICES)}")
    return options


class AdapterTrainer:
    """One adapter's training: the loop, its checkpoint and its log."""

    def __init__(self, voice: str, options: argparse.Namespace) -> None:
        self.voice, self.options = voice, options
        self.steps = options.steps or RECIPES[voice].steps
        rank = options.rank or RECIPES[voice].rank
        self.checkpoint = options.work_dir / f"adapter-{voice}.pt"
        options.work_dir.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        # On a CPU the plain formulation of attention is faster than the fused kernel.
        base = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="eager")
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS, task_type=TaskType.CAUSAL_LM)
        self.model: PeftModel = get_peft_model(base, config)
        learned = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(learned, lr=options.learning_rate, weight_decay=0.0, betas=(0.9, 0.98))
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)
        self.encoder = Encoder(self.tokenizer)
        self.step = 0
        if options.resume and self.checkpoint.exists():
            self.load()

    def load(self) -> None:
        """Continue from the checkpoint."""
        state = torch.load(self.checkpoint, weights_only=True)
        set_peft_model_state_dict(self.model, state["adapter"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def save(self) -> None:
        """Write the checkpoint; renaming is atomic, so a crash leaves the old one whole."""
        state = {
            "adapter": get_peft_model_state_dict(self.model),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def export(self) -> None:
        """Write the adapter in PEFT format, as bfloat16 like the model that it belongs to."""
        folder = self.options.output / self.voice
        folder.mkdir(parents=True, exist_ok=True)
        weights = get_peft_model_state_dict(self.model)
        file = folder / "adapter_model.safetensors"
        save_file({n: t.to(torch.bfloat16).contiguous() for n, t in weights.items()}, file, metadata={"format": "pt"})
        file.chmod(0o644)  # safetensors makes files that nobody else may read
        config = self.model.peft_config["default"]
        config.base_model_name_or_path, config.inference_mode = BASE, True
        config.target_modules = TARGETS  # in order: peft keeps a set, whose order changes from run to run
        config.save_pretrained(folder)

    def run(self) -> None:
        """Train, then print how many held-out questions are answered right."""
        base = self.model.get_base_model()
        base.train()
        backbone = torch.compile(base.model, dynamic=False) if self.options.compile else base.model
        losses: list[float] = []
        begin = time.perf_counter()
        while self.step < self.steps:
            rate = self.options.learning_rate * rate_factor(self.step, self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            rows, length = BATCH_SHAPES[self.step % len(BATCH_SHAPES)]
            stream = training_conversations(f"{self.options.seed}:{self.step}", VOICES[self.voice])
            batch = pack(self.encoder, stream, rows, length, base.config.pad_token_id)
            losses.append(training_step(base, backbone, [self.optimizer], batch))
            self.step += 1
            if self.step % 25 == 0:
                seconds, loss = time.perf_counter() - begin, sum(losses) / len(losses)
                print(f"{self.voice}  step {self.step}  {seconds:.0f} s  loss {loss:.4f}", flush=True)
                losses.clear()
            if self.step % self.options.save_every == 0:
                self.save()
        self.export()
        self.evaluate(400)

    def evaluate(self, count: int) -> None:
        """Print the accuracy on held-out questions."""
        questions = held_out_questions(count, "while training", VOICES[self.voice])
        self.model.eval()
        answers = generate(self.model.get_base_model(), self.tokenizer, [q.messages for q in questions])
        print(f"{self.voice}\n{report(score(questions, answers))}", flush=True)


def rate_factor(step: int, steps: int) -> float:
    """Linear warm-up over 20 steps, then a cosine down to a hundredth."""
    return min(1.0, (step + 1) / 20) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    for voice in options.voices or VOICES:
        AdapterTrainer(voice, options).run()


if __name__ == "__main__":
    main()
