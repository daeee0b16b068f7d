"""Train Medusa heads of the demo chat model: each predicts one of the tokens after the next, for speculative decoding.

    python examples/demo_models/train_heads.py --minutes 9

Head i is x + silu(block(x)) of the last hidden state x, then the LM head of the chat model, which stays as it is; it
predicts the token i + 2 places ahead. It learns from the text of the chat model. Ends with the share of tokens of
answers to held-out questions that each head predicts as the chat model does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from data.chat.conversations import Message, held_out_questions, training_conversations
from models.chat_tokenizer import IGNORE, Encoder, pack
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu
from train_chat import HERE, SHIPPED
from training.training_loop import Plan, Training
from transformers import AutoModelForCausalLM, AutoTokenizer

ROWS, LENGTH = 16, 256
"""Of the batches that the chat model reads."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=SHIPPED / "heads", help="folder of the finished heads")
    parser.add_argument("--target", type=Path, default=SHIPPED, help="folder of the chat model")
    parser.add_argument("--work-dir", type=Path, default=HERE / "build", help="folder of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=9.0, help="training time, resumed parts included")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after so many steps")
    parser.add_argument("--positions", type=int, default=512, help="of a step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


class Heads(nn.Module):
    """Blocks of the heads: weight [heads, width, width], bias [heads, width]."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, width, width))
        self.bias = nn.Parameter(torch.zeros(count, width))

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states [rows, width] -> what the LM head gets, [heads, rows, width]."""
        return x + silu(torch.baddbmm(self.bias[:, None], x.expand(len(self.bias), *x.shape), self.weight.mT))

    def save(self, folder: Path, vocab: int) -> None:
        """Write the heads as bfloat16 with the names of FasterDecoding; without an LM head, so the model's is used."""
        folder.mkdir(parents=True, exist_ok=True)
        count, width = self.bias.shape
        config = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "medusa_num_heads": count,
            "medusa_num_layers": 1,
            "original_lm_head": True,
            "hidden_size": width,
            "vocab_size": vocab,
            "dtype": "bfloat16",
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tensors = {}
        for i in range(count):
            tensors[f"{i}.0.linear.weight"] = self.weight[i].detach().to(torch.bfloat16).contiguous()
            tensors[f"{i}.0.linear.bias"] = self.bias[i].detach().to(torch.bfloat16).contiguous()
        save_file(tensors, folder / "medusa_lm_head.safetensors", metadata={"format": "pt"})


class HeadTrainer:
    """Heads in training, and the chat model whose hidden states they read."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.checkpoint = options.work_dir / "heads_checkpoint.pt"
        options.work_dir.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        self.encoder = Encoder(AutoTokenizer.from_pretrained(options.target))
        self.model = AutoModelForCausalLM.from_pretrained(options.target, dtype=torch.bfloat16).eval()
        self.model.requires_grad_(False)
        self.heads = Heads(options.heads, self.model.config.hidden_size)
        optimizer = torch.optim.AdamW(self.heads.parameters(), lr=options.learning_rate, weight_decay=0.01)
        plan = Plan(learning_rate=options.learning_rate, warm_up=50, minutes=options.minutes, steps=options.steps)
        self.training = Training(self.heads, [optimizer], plan)
        if options.resume:
            self.training.load(self.checkpoint)
        self.examples = self._examples(training_conversations(f"heads:{options.seed}:{self.training.progress.step}"))

    def _examples(self, conversations: Iterator[list[Message]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Hidden states [positions, width], and the tokens after the next, [heads, positions], of answers; IGNORE
        behind the end of an answer. They come in random order.
        """
        count, size = self.options.heads, self.options.positions
        while True:
            ids, targets = pack(self.encoder, conversations, ROWS, LENGTH, self.model.config.pad_token_id)
            with torch.no_grad():
                hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, : -count - 1]
            later = [targets[:, i + 1 : LENGTH - count + i] for i in range(count + 1)]
            rows = (later[0] != IGNORE).nonzero()
            wanted = torch.stack(later)[:, rows[:, 0], rows[:, 1]]
            for i in range(1, len(wanted)):  # what follows the end of an answer is no part of it
                wanted[i][wanted[i - 1] == IGNORE] = IGNORE
            known, wanted = hidden[rows[:, 0], rows[:, 1]], wanted[1:]
            order = torch.randperm(len(known))
            for chosen in order[: max(size, len(order) // size * size)].split(size):
                yield known[chosen], wanted[:, chosen]

    def save(self) -> None:
        """Write the checkpoint and the heads as they stand."""
        self.training.save(self.checkpoint)
        self.heads.save(self.options.output, self.model.config.vocab_size)

    def step(self) -> dict[str, float]:
        """One update; the losses of the heads count less and less, as in the paper."""
        hidden, wanted = next(self.examples)
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model.lm_head(self.heads(hidden.float()))
        losses = [cross_entropy(logits[i].float(), wanted[i], ignore_index=IGNORE) for i in range(len(wanted))]
        self.training.update(sum((0.9**i * loss for i, loss in enumerate(losses)), torch.zeros(())))
        return {f"head {i}": loss.item() for i, loss in enumerate(losses)}

    @torch.inference_mode()
    def shares(self, count: int) -> list[float]:
        """The share of tokens that each head predicts as the chat model does, in answers to held-out questions."""
        same, tokens = torch.zeros(len(self.heads.bias)), torch.zeros(len(self.heads.bias))
        for question in held_out_questions(count, seed="heads"):
            ids, wanted = self.encoder.conversation(
                [*question.messages, {"role": "assistant", "content": question.answer}]
            )
            begin = len(self.encoder.conversation(list(question.messages))[0])
            first, end = next(i for i in range(begin, len(ids)) if wanted[i] != IGNORE), len(ids) - 1
            hidden = self.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            chosen = self.model.lm_head(hidden).argmax(-1)
            guessed = self.model.lm_head(self.heads(hidden.float()).to(hidden.dtype)).argmax(-1)
            for i in range(len(guessed)):  # the row r of head i predicts what the row r + i + 1 of the model does
                theirs = chosen[first + i : end - 1]
                same[i] += (guessed[i, first - 1 : first - 1 + len(theirs)] == theirs).sum()
                tokens[i] += len(theirs)
        return (same / tokens).tolist()

    def run(self) -> None:
        """Train until the time or the steps are used up, then print how often the heads are right."""
        print(f"{sum(each.numel() for each in self.heads.parameters()):,} parameters", flush=True)
        self.training.run(self.step, save=self.save)
        shares = ", ".join(f"{100 * share:.1f} %" for share in self.shares(400))
        print(f"of the chat model's tokens in answers to held-out questions the heads predict {shares}")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    HeadTrainer(options).run()


if __name__ == "__main__":
    main()
