"""Train the demo Whisper from nothing on digits that a synthesiser says.

    python examples/demo_models/train_whisper.py --minutes 15

Beside writing down what was said, a linear layer tells of each row of the encoder which digit is being said; it is not
part of the result. The weights are those at the end of the time, the learning rate goes down with the clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from data.speech.speech_batches import Lesson, Teacher
from evaluation.reports import report
from evaluation.transcripts import held_out, score, write_down
from models.whisper_model import new_model, save_model
from models.whisper_tokenizer import new_processor
from torch.nn.functional import cross_entropy
from training.training_loop import Plan, Training, new_optimizers

SHIPPED = Path(__file__).resolve().parents[2] / "plugins" / "quire_demos" / "demo_whisper"
MANY = 1_000_000
"""More steps than there is time for."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=SHIPPED, help="folder of the finished model")
    parser.add_argument("--minutes", type=float, default=15.0, help="training time")
    parser.add_argument("--rows", type=int, default=32, help="utterances in a batch")
    parser.add_argument("--evaluate-every", type=int, default=200, help="steps between accuracy figures")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes that make utterances")
    return parser.parse_args()


class Trainer:
    """A model in training, the layer beside it, and what they learn from."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.options, self.processor = options, new_processor()
        self.model = new_model(self.processor)
        self.tells = torch.nn.Linear(self.model.config.d_model, 11)
        trained = torch.nn.ModuleList([self.model.model.encoder, self.model.model.decoder, self.tells])
        trained.requires_grad_()  # the encoder's positions too: sines are where they begin
        plan = Plan(learning_rate=options.learning_rate, warm_up=50, minutes=options.minutes)
        self.training = Training(trained, new_optimizers(trained, options.learning_rate), plan)
        teacher = Teacher(self.processor, options.seed, options.rows, MANY)
        lessons = torch.utils.data.DataLoader(teacher, batch_size=None, num_workers=options.workers, prefetch_factor=4)
        self.lessons: Iterator[Lesson] = iter(lessons)

    def step(self) -> dict[str, float]:
        """One update; the losses of the text and of the digits that the encoder predicts."""
        lesson = next(self.lessons)
        with torch.autocast("cpu", torch.bfloat16):
            made = self.model(input_features=lesson.features, decoder_input_ids=lesson.tokens)
            predicted = self.tells(made.encoder_last_hidden_state)
        written = cross_entropy(made.logits.flatten(0, 1).float(), lesson.wanted.flatten())
        heard = cross_entropy(predicted.flatten(0, 1).float(), lesson.said.flatten())
        self.training.update(written + 0.5 * heard)
        return {"written": written.item(), "encoder": heard.item()}

    def evaluate(self, count: int) -> None:
        """Print how many held-out utterances are written down right."""
        examples = held_out(count, "while training")
        self.model.eval()
        texts = write_down(self.model, self.processor, examples)
        self.model.train()
        print(report(score(examples, texts)), flush=True)

    def run(self) -> None:
        """Train until the time is used up, and write the model."""
        print(f"{self.model.num_parameters():,} parameters, {len(self.processor.tokenizer)} tokens", flush=True)
        self.training.run(
            self.step,
            save=lambda: save_model(self.model, self.processor, self.options.output),
            evaluate=lambda: self.evaluate(100),
            evaluate_every=self.options.evaluate_every,
        )
        self.evaluate(400)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    Trainer(options).run()


if __name__ == "__main__":
    main()
