"""Print how many questions about held-out pictures the demo LLaVA answers exactly right.

    python examples/demo_models/evaluate_llava.py                      # the shipped model
    python examples/demo_models/evaluate_llava.py MODEL_DIR
    python examples/demo_models/evaluate_llava.py --new                # colours on shapes that training never showed
    python examples/demo_models/evaluate_llava.py --save-pictures DIR  # look at them
    python examples/demo_models/evaluate_llava.py --base-url http://localhost:8000/v1

With ``--base-url`` the pictures go to an OpenAI-compatible server as data URLs, which shows that the server gives the
same answers as the model does on its own.
"""

from __future__ import annotations

import argparse
import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from evaluation.image_answers import Example, answer, held_out, score
from evaluation.reports import ask_all, report
from transformers import AutoProcessor, LlavaForConditionalGeneration

if TYPE_CHECKING:
    from openai import OpenAI

SHIPPED = Path(__file__).resolve().parents[2] / "plugins" / "quire_demos" / "demo_llava"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model_dir", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("--pictures", type=int, default=500, help="how many, each with one question")
    parser.add_argument("--seed", default="evaluation", help="seed of pictures and questions")
    parser.add_argument("--new", action="store_true", help="only pictures with a new pair of colour and shape")
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N", help="print the first N mistakes")
    parser.add_argument("--save-pictures", type=Path, metavar="DIR", help="write the pictures as PNG files, and go on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--base-url", help="ask an OpenAI-compatible server instead")
    parser.add_argument("--model", default="demo-llava", help="name of the model on that server")
    parser.add_argument("--parallel", type=int, default=8, help="requests to the server at a time")
    return parser.parse_args()


def ask_model(folder: Path, examples: Sequence[Example]) -> list[str]:
    """Answer with transformers in this process."""
    # In float32, so that the figure does not depend on how a CPU rounds bfloat16.
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return answer(model, AutoProcessor.from_pretrained(folder), examples)


def ask_server(base_url: str, model: str, parallel: int, examples: Sequence[Example]) -> list[str]:
    """Answer through a server."""

    def ask(client: OpenAI, example: Example) -> str:
        file = io.BytesIO()
        example.picture.save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts = [
            {"type": "text", "text": example.question.text},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        messages = [{"role": "user", "content": parts}]
        completion = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=80)
        return completion.choices[0].message.content or ""

    return ask_all(base_url, parallel, examples, ask)


def save_pictures(examples: Sequence[Example], folder: Path) -> None:
    """Write each picture, numbered as the mistakes are."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(examples):
        example.picture.save(folder / f"{number}.png")


def show_wrong(examples: Sequence[Example], answers: Sequence[str], limit: int) -> None:
    """Print the first mistakes with what the picture shows."""
    asked = [(number, e.scene.key, e.question) for number, e in enumerate(examples)]
    wrong = [(*a, text) for a, text in zip(asked, answers, strict=True) if text != a[2].answer]
    for number, key, question, text in wrong[:limit]:
        print(f"[{number}, {question.kind}] {key}\n  {question.text}")
        print(f"  expected: {question.answer}\n  answered: {text}\n")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    examples = held_out(options.pictures, options.seed, new=options.new)
    if options.save_pictures:
        save_pictures(examples, options.save_pictures)
    if options.base_url:
        answers = ask_server(options.base_url, options.model, options.parallel, examples)
    else:
        answers = ask_model(options.model_dir, examples)
    show_wrong(examples, answers, options.show_wrong)
    print(f"{len(examples)} held-out pictures, exact matches, greedy decoding")
    print(report(score(examples, answers)))


if __name__ == "__main__":
    main()
