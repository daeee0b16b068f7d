"""Train the demo that calls tools from nothing on the dialogues of its own generator.

    python examples/demo_models/train_tools.py --minutes 25
    python examples/demo_models/train_tools.py --minutes 40 --resume   # go on

The result is written in plain Hugging Face format, by default to the place in the llama
plugin from which it is shipped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from data.tools.tool_dialogues import held_out_questions
from evaluation.reports import report
from evaluation.tool_answers import answer, score
from models.tools_tokenizer import END, IGNORE, PAD, Encoder, train_tokenizer
from torch.nn.functional import cross_entropy
from train_chat import save_model
from training.training_loop import Plan, Training, new_optimizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
SHIPPED = HERE.parents[1] / "plugins" / "quire_demos" / "demo_tools"
CONTEXT = 1024
# Rows and length of the first batches, from which copying is learned soonest; and those of the others in turn: most
# dialogues fit into shorter rows, which are quicker.
SHORT_SHAPE = (12, 192)
BATCH_SHAPES = (*[(8, 320)] * 5, (4, 640))
HIDDEN = -1e30
"""Added to the attention scores of what must not be seen."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=SHIPPED, help="folder of the finished model")
    parser.add_argument("--work-dir", type=Path, default=HERE / "build" / "tools", help="folder of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--minutes", type=float, default=25.0, help="training time, resumed parts included")
    parser.add_argument("--short", type=float, default=0.4, help="share of the training that has short dialogues")
    parser.add_argument("--save-every", type=float, default=4.0, help="minutes between checkpoints")
    parser.add_argument("--evaluate-every", type=int, default=500, help="steps between accuracy figures")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A small llama. Few wide heads: on a CPU most of the time goes into the attention weights of each head."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=6,
        num_attention_heads=3,
        num_key_value_heads=3,
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


class Trainer:
    """A model in training, and what it learns from."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.checkpoint = options.work_dir / "checkpoint.pt"
        options.work_dir.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        folder = options.work_dir / "tokenizer"
        if not options.resume:
            train_tokenizer(options.vocabulary, 20_000, CONTEXT).save_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.encoder = Encoder(self.tokenizer)
        self.model = new_model(self.tokenizer)
        self.backbone = torch.compile(self.model.model, dynamic=False) if options.compile else self.model.model
        plan = Plan(learning_rate=options.learning_rate, warm_up=200, minutes=options.minutes)
        self.training = Training(self.model, new_optimizers(self.model, options.learning_rate), plan)
        if options.resume:
            self.training.load(self.checkpoint)

    def save(self) -> None:
        """Write the checkpoint and the model as it stands."""
        self.training.save(self.checkpoint)
        save_model(self.model, self.tokenizer, self.options.output)

    def step(self) -> dict[str, float]:
        """One update, with a batch that depends on nothing but seed and step; dialogues are short at first."""
        step = self.training.progress.step
        short = self.training.done() < self.options.short
        shape = SHORT_SHAPE if short else BATCH_SHAPES[step % len(BATCH_SHAPES)]
        batch = self.encoder.batch(f"{self.options.seed}:{step}", *shape, short=short)
        wanted = batch.targets[:, 1:]
        learned = wanted != IGNORE
        mask = torch.zeros(batch.visible.shape).masked_fill(~batch.visible, HIDDEN)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.backbone(input_ids=batch.ids, attention_mask=mask, use_cache=False).last_hidden_state
            logits = self.model.lm_head(hidden[:, :-1][learned])
        loss = cross_entropy(logits.float(), wanted[learned])
        self.training.update(loss)
        return {"loss": loss.item()}

    def evaluate(self, count: int) -> None:
        """Print the accuracy on held-out questions."""
        questions = held_out_questions(count, "while training")
        self.model.eval()
        answers = answer(self.model, self.tokenizer, questions)
        self.model.train()
        print(report(score(questions, answers)), flush=True)

    def run(self) -> None:
        """Train until the time is used up."""
        print(f"{self.model.num_parameters():,} parameters, {len(self.tokenizer)} tokens", flush=True)
        self.training.run(
            self.step,
            save=self.save,
            save_every=self.options.save_every,
            evaluate=lambda: self.evaluate(96),
            evaluate_every=self.options.evaluate_every,
        )
        self.evaluate(600)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    Trainer(options).run()


if __name__ == "__main__":
    main()
