"""Print how many held-out questions the demo chat model answers exactly right, on its own or with an adapter.

    python examples/demo_models/evaluate_chat.py                     # the shipped model
    python examples/demo_models/evaluate_chat.py MODEL_DIR
    python examples/demo_models/evaluate_chat.py --voice pirate      # with the shipped adapter of that voice
    python examples/demo_models/evaluate_chat.py --voice reader      # with the one that answers from passages
    python examples/demo_models/evaluate_chat.py --voice pirate --adapter ADAPTER_DIR
    python examples/demo_models/evaluate_chat.py --base-url http://localhost:8000/v1 --model NAME
    python examples/demo_models/evaluate_chat.py --base-url http://localhost:8000/v1 --voice pirate

With ``--base-url`` the questions go to an OpenAI-compatible server, which shows
that the server gives the same answers as the model does on its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from data.chat.conversations import Message, Question, held_out_questions
from data.lessons import LESSONS
from evaluation.chat_answers import generate, score
from evaluation.reports import ask_all, report
from transformers import AutoModelForCausalLM, AutoTokenizer

if TYPE_CHECKING:
    from openai import OpenAI

SHIPPED = Path(__file__).resolve().parents[2] / "plugins" / "quire_demos" / "demo_chat"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model_dir", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("--voice", choices=LESSONS, help="what an adapter taught it, which makes other answers right")
    parser.add_argument("--adapter", type=Path, help="folder of the adapter (default: the shipped one of the voice)")
    parser.add_argument("--questions", type=int, default=2000, help="how many, shared evenly by the families")
    parser.add_argument("--seed", default="evaluation", help="seed of the questions")
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N", help="print the first N mistakes")
    parser.add_argument("--base-url", help="ask an OpenAI-compatible server instead")
    parser.add_argument("--model", help="name of model or adapter on that server (default: demo-chat, or demo-VOICE)")
    parser.add_argument("--parallel", type=int, default=8, help="requests to the server at a time")
    return parser.parse_args()


def ask_model(folder: Path, adapter: Path | None, chats: Sequence[list[Message]]) -> list[str]:
    """Answer with transformers, and peft if there is an adapter, in this process."""
    # In float32, so that the figure does not depend on how a CPU rounds bfloat16.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).get_base_model()
    return generate(model, AutoTokenizer.from_pretrained(folder), chats)


def ask_server(base_url: str, model: str, parallel: int, chats: Sequence[list[Message]]) -> list[str]:
    """Answer through a server."""

    def ask(client: OpenAI, messages: list[Message]) -> str:
        completion = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=160)
        return completion.choices[0].message.content or ""

    return ask_all(base_url, parallel, chats, ask)


def show_wrong(questions: Sequence[Question], answers: Sequence[str], limit: int) -> None:
    """Print the first mistakes with the whole conversation before them."""
    wrong = [(q, a) for q, a in zip(questions, answers, strict=True) if a.strip() != q.answer]
    for question, answer in wrong[:limit]:
        print(f"[{question.family}]")
        for message in question.messages:
            print(f"  {message['role']}: {message['content']}")
        print(f"  expected: {question.answer}\n  answered: {answer}\n")


def main() -> None:
    options = parse_arguments()
    held_out = LESSONS[options.voice].questions if options.voice else held_out_questions
    questions = held_out(options.questions, options.seed)
    chats = [q.messages for q in questions]
    if options.base_url:
        name = options.model or f"demo-{options.voice or 'chat'}"
        answers = ask_server(options.base_url, name, options.parallel, chats)
    else:
        shipped = SHIPPED / "adapters" / options.voice if options.voice else None
        answers = ask_model(options.model_dir, options.adapter or shipped, chats)
    show_wrong(questions, answers, options.show_wrong)
    print(f"{len(questions)} held-out questions, exact matches, greedy decoding")
    print(report(score(questions, answers)))


if __name__ == "__main__":
    main()
