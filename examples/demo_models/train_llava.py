"""Train the demo LLaVA from nothing on pictures that its own generator draws.

    python examples/demo_models/train_llava.py --minutes 35
    python examples/demo_models/train_llava.py --minutes 60 --resume   # go on

First the vision tower alone learns what is where: from the outputs that the projector will read, two linear layers tell
form and colour in the place of every patch. Then all of it learns to answer, the tower still with that task beside. The
two layers are not part of the result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from data.images.picture_batches import Teacher
from data.images.picture_questions import KINDS
from evaluation.image_answers import answer, held_out, score
from evaluation.reports import report
from models.llava_model import CONTEXT, new_model, save_model
from models.llava_tokenizer import new_processor, train_tokenizer
from training.llava_learner import Learner
from training.training_loop import Plan, Training, new_optimizers
from transformers import AutoProcessor

HERE = Path(__file__).resolve().parent
SHIPPED = HERE.parents[1] / "plugins" / "quire_demos" / "demo_llava"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=SHIPPED, help="folder of the finished model")
    parser.add_argument("--work-dir", type=Path, default=HERE / "build" / "llava", help="folder of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--minutes", type=float, default=35.0, help="training time, resumed parts included")
    parser.add_argument("--tower-steps", type=int, default=400, help="the first steps, in which the tower learns alone")
    parser.add_argument("--rows", type=int, default=32, help="pictures in a batch")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row, 81 of them the picture")
    parser.add_argument("--save-every", type=float, default=4.0, help="minutes between checkpoints")
    parser.add_argument("--evaluate-every", type=int, default=300, help="steps between accuracy figures")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


class Trainer:
    """A model in training, and what it learns from."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.checkpoint = options.work_dir / "checkpoint.pt"
        options.work_dir.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        folder = options.work_dir / "processor"
        if not options.resume:
            new_processor(train_tokenizer(3000, CONTEXT)).save_pretrained(folder)
        self.processor = AutoProcessor.from_pretrained(folder)
        self.learner = Learner(new_model(self.processor.tokenizer), options.compile)
        self.teacher = Teacher(self.processor, options.length)
        plan = Plan(learning_rate=options.learning_rate, warm_up=50, minutes=options.minutes)
        self.training = Training(self.learner, new_optimizers(self.learner, options.learning_rate), plan)
        if options.resume:
            self.training.load(self.checkpoint)

    def save(self) -> None:
        """Write the checkpoint and the model as it stands."""
        self.training.save(self.checkpoint)
        save_model(self.learner.model, self.processor, self.options.output)

    def is_seeing(self) -> bool:
        """Whether the tower still learns alone."""
        return self.training.progress.step < self.options.tower_steps

    def step(self) -> dict[str, float]:
        """One update; the losses of the answers, once there are any, and of the tower."""
        seed = f"{self.options.seed}:{self.training.progress.step}"
        with torch.autocast("cpu", torch.bfloat16):
            if self.is_seeing():
                _, tower = self.learner.see(self.teacher.pictures(seed, 2 * self.options.rows))
                self.training.update(tower)
                return {"tower": tower.item()}
            answers, tower = self.learner.answer(self.teacher.lessons(seed, self.options.rows))
        self.training.update(answers + 0.2 * tower)
        return {"answers": answers.item(), "tower": tower.item()}

    def evaluate(self, count: int) -> None:
        """Print the accuracy on held-out pictures, once it answers."""
        if self.is_seeing():
            return
        examples = held_out(count, "while training")
        self.learner.eval()
        answers = answer(self.learner.model, self.processor, examples)
        self.learner.train()
        print(report(score(examples, answers)), flush=True)

    def run(self) -> None:
        """Train until the time is used up."""
        print(f"{self.learner.model.num_parameters():,} parameters, {len(self.processor.tokenizer)} tokens", flush=True)
        self.training.run(
            self.step,
            save=self.save,
            save_every=self.options.save_every,
            evaluate=lambda: self.evaluate(10 * len(KINDS)),
            evaluate_every=self.options.evaluate_every,
        )
        self.evaluate(20 * len(KINDS))


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    Trainer(options).run()


if __name__ == "__main__":
    main()
