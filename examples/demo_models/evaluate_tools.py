"""Print how many held-out questions the demo that calls tools answers exactly right.

    python examples/demo_models/evaluate_tools.py                  # the shipped model
    python examples/demo_models/evaluate_tools.py MODEL_DIR --show-wrong 5
    python examples/demo_models/evaluate_tools.py --base-url http://localhost:8000/v1

With ``--base-url`` the questions go to an OpenAI-compatible server, with the tools and without forcing a call. That
shows that the server reads calls out of the answers, and writes tools and results into prompts, as they were trained.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from data.tools.tool_dialogues import Message, Question, held_out_questions
from evaluation.reports import ask_all, report
from evaluation.tool_answers import Answer, answer, is_right, score
from transformers import AutoModelForCausalLM, AutoTokenizer

if TYPE_CHECKING:
    from openai import OpenAI

SHIPPED = Path(__file__).resolve().parents[2] / "plugins" / "quire_demos" / "demo_tools"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model_dir", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("--questions", type=int, default=1200, help="how many, shared evenly by the families")
    parser.add_argument("--seed", default="evaluation", help="seed of the questions")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model in this process"
    )
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N", help="print the first N mistakes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--base-url", help="ask an OpenAI-compatible server instead")
    parser.add_argument("--model", default="demo-tools", help="name of the model on that server")
    parser.add_argument("--parallel", type=int, default=8, help="requests to the server at a time")
    return parser.parse_args()


def ask_model(folder: Path, dtype: str, questions: Sequence[Question]) -> list[Answer]:
    """Answer with transformers in this process."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return answer(model, AutoTokenizer.from_pretrained(folder), questions)


def ask_server(base_url: str, model: str, parallel: int, questions: Sequence[Question]) -> list[Answer]:
    """Answer through a server."""

    def ask(client: OpenAI, question: Question) -> Answer:
        tools: dict[str, Any] = {"tools": question.tools} if question.tools else {}
        messages = [_sent(message) for message in question.messages]
        completion = client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=200, **tools
        )
        return Answer.from_message(completion.choices[0].message.model_dump())

    return ask_all(base_url, parallel, questions, ask)


def _sent(message: Message) -> Message:
    """As clients send it: with arguments as JSON text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def show_wrong(questions: Sequence[Question], answers: Sequence[Answer], limit: int) -> None:
    """Print the first mistakes with the whole dialogue before them."""
    wrong = [(q, a) for q, a in zip(questions, answers, strict=True) if not is_right(q, a)]
    for question, given in wrong[:limit]:
        print(f"[{question.family}]")
        for line in (*question.tools, *question.messages):
            print(f"  {json.dumps(line, ensure_ascii=False)}")
        print(f"  expected: {Answer.from_message(question.answer)}\n  answered: {given}\n")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    questions = held_out_questions(options.questions, options.seed)
    if options.base_url:
        answers = ask_server(options.base_url, options.model, options.parallel, questions)
    else:
        answers = ask_model(options.model_dir, options.dtype, questions)
    show_wrong(questions, answers, options.show_wrong)
    print(f"{len(questions)} held-out questions, exact matches, greedy decoding")
    print(report(score(questions, answers)))


if __name__ == "__main__":
    main()
