"""Print how many held-out rows of digits the demo Whisper writes down exactly right.

    python examples/demo_models/evaluate_whisper.py                    # the shipped model
    python examples/demo_models/evaluate_whisper.py MODEL_DIR
    python examples/demo_models/evaluate_whisper.py --save-audio DIR   # listen to them
    python examples/demo_models/evaluate_whisper.py --base-url http://localhost:8000/v1

With ``--base-url`` the utterances go to `/v1/audio/transcriptions` of an OpenAI-compatible server, which shows that the
server gives the same answers as the model does on its own.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import soundfile
import torch
from data.speech.synthesizer import RATE
from data.speech.utterances import Utterance
from evaluation.reports import ask_all, report
from evaluation.transcripts import held_out, score, write_down
from transformers import WhisperForConditionalGeneration, WhisperProcessor

if TYPE_CHECKING:
    from openai import OpenAI

SHIPPED = Path(__file__).resolve().parents[2] / "plugins" / "quire_demos" / "demo_whisper"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model_dir", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("--utterances", type=int, default=500)
    parser.add_argument("--seed", default="evaluation", help="seed of rows and voices")
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N", help="print the first N mistakes")
    parser.add_argument("--save-audio", type=Path, metavar="DIR", help="write the utterances as WAV files, and go on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--base-url", help="ask an OpenAI-compatible server instead")
    parser.add_argument("--model", default="demo-whisper", help="name of the model on that server")
    parser.add_argument("--parallel", type=int, default=8, help="requests to the server at a time")
    return parser.parse_args()


def ask_model(folder: Path, utterances: Sequence[Utterance]) -> list[str]:
    """Write down with transformers in this process."""
    # In float32, so that the figure does not depend on how a CPU rounds bfloat16.
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return write_down(model, WhisperProcessor.from_pretrained(folder), utterances)


def ask_server(base_url: str, model: str, parallel: int, utterances: Sequence[Utterance]) -> list[str]:
    """Have a server write down."""

    def ask(client: OpenAI, utterance: Utterance) -> str:
        file = ("speech.wav", wav(utterance))
        return client.audio.transcriptions.create(model=model, file=file, language="en", temperature=0).text.strip()

    return ask_all(base_url, parallel, utterances, ask)


def wav(utterance: Utterance) -> bytes:
    """The bytes of a WAV file."""
    data = io.BytesIO()
    soundfile.write(data, utterance.samples, RATE, format="WAV", subtype="PCM_16")
    return data.getvalue()


def save_audio(utterances: Sequence[Utterance], folder: Path) -> None:
    """Write each, numbered as the mistakes are."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, utterance in enumerate(utterances):
        (folder / f"{number}.wav").write_bytes(wav(utterance))


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    utterances = held_out(options.utterances, options.seed)
    if options.save_audio:
        save_audio(utterances, options.save_audio)
    if options.base_url:
        texts = ask_server(options.base_url, options.model, options.parallel, utterances)
    else:
        texts = ask_model(options.model_dir, utterances)
    wrong = [
        (number, u.text, text) for number, (u, text) in enumerate(zip(utterances, texts, strict=True)) if text != u.text
    ]
    for number, said, text in wrong[: options.show_wrong]:
        print(f"[{number}] said {said}, written down {text}")
    print(f"{len(utterances)} held-out utterances, exact matches, greedy decoding")
    print(report(score(utterances, texts)))


if __name__ == "__main__":
    main()
