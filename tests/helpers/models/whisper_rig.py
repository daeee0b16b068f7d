"""Tiny random Whisper models in Hugging Face format, and what transformers makes of speech with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_rig import Rig, greedy, rig_of
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer as Tokens
from torch import Tensor

from quire.params.sampling import SamplingParams
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt
from quire_testing.tiny import byte_tokenizer, reference_model, save

RATE = 16_000
WINDOW_S = 2
LENGTH = 50 * WINDOW_S
"""Rows of a source."""
ROOM = 128

TASKS = ("<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>")
SPECIAL = (*TASKS, "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMES, FIRST_TIME = range(260, 269)
VOCAB = FIRST_TIME + 101
"""Timestamps of two seconds, in steps of 20 ms."""

END = 256
TEXT = 40
"""Positions of text."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80,
    "num_mel_bins": 16,
    "max_source_positions": LENGTH,
    "max_target_positions": TEXT,
    "decoder_start_token_id": START,
    "bos_token_id": END,
}

NEVER, NOT_FIRST = [*range(1, 40), 261, START], [32, END, 250]

GENERATION = {
    "no_timestamps_token_id": NO_TIMES,
    "max_initial_timestamp_index": 50,
    "suppress_tokens": NEVER,
    "begin_suppress_tokens": NOT_FIRST,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
}


def speech(seed: int, seconds: float = 1.3) -> NDArray[np.float32]:
    """Tones that change, and noise; at `RATE`."""
    rng = np.random.default_rng(seed)
    count = int(seconds * RATE)
    pitch = np.interp(np.arange(count), np.linspace(0, count, 6), rng.uniform(100, 3000, 6))
    sound = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) * rng.uniform(0.2, 0.8) + 0.05 * rng.standard_normal(count)
    return sound.astype(np.float32)


def whisper_tokenizer(folder: Path) -> None:
    """Bytes, and the tokens that Whisper's prompts are made of."""
    byte_tokenizer(folder, chat_template=None)
    tokens = Tokens.from_file(str(folder / "tokenizer.json"))
    times = [f"<|{i * 0.02:.2f}|>" for i in range(VOCAB - FIRST_TIME)]
    special = [AddedToken(name, special=True, normalized=False) for name in SPECIAL]
    tokens.add_special_tokens(special)
    tokens.add_tokens([AddedToken(name, normalized=False) for name in times])
    tokens.save(str(folder / "tokenizer.json"))


def _listen(decoder: Any) -> None:
    """Let what is said depend on what is heard and on when, more than on the token before."""
    with torch.no_grad():
        decoder.embed_tokens.weight.mul_(0.3)
        decoder.embed_positions.weight.mul_(4)
        for layer in decoder.layers:
            layer.encoder_attn.q_proj.weight.mul_(4)


class Model:
    """A tiny model in a folder. rules: whether its generation config forbids tokens."""

    def __init__(self, folder: Path, rules: bool = False, **config: Any) -> None:
        from transformers import GenerationConfig, WhisperFeatureExtractor

        self.folder = folder
        self.reference = reference_model("WhisperForConditionalGeneration", **{**SIZES, **config})
        _listen(self.reference.model.decoder)
        forbidding = ("suppress_tokens", "begin_suppress_tokens")
        own = {name: value for name, value in GENERATION.items() if rules or name not in forbidding}
        self.reference.generation_config = GenerationConfig(eos_token_id=END, decoder_start_token_id=START, **own)
        save(self.reference, folder)
        whisper_tokenizer(folder)
        self.extractor: Any = WhisperFeatureExtractor(feature_size=16, chunk_length=WINDOW_S)
        self.extractor.save_pretrained(folder)

    def prompt(self, found: Registry, info: ModelInfo, samples: Any, text: str | Sequence[int]) -> Prompt:
        tokenizer = Tokenizer.load(self.folder)
        key = "prompt" if isinstance(text, str) else "prompt_token_ids"
        audio = samples if isinstance(samples, list) else (samples, RATE)
        value = {key: text, "multi_modal_data": {"audio": audio}}
        return to_prompt(value, tokenizer, multimodal=MultimodalProcessor(found, info, tokenizer))

    def features(self, samples: NDArray[np.float32]) -> Tensor:
        features: Tensor = self.extractor(samples, sampling_rate=RATE, return_tensors="pt")["input_features"]
        return features

    @torch.inference_mode()
    def logits(self, samples: NDArray[np.float32], ids: Sequence[int], model: Any = None) -> Tensor:
        """[ids, vocab], by transformers."""
        made = (model or self.reference)(
            input_features=self.features(samples), decoder_input_ids=torch.tensor([list(ids)])
        )
        logits: Tensor = made.logits[0]
        return logits

    @torch.inference_mode()
    def greedy(
        self,
        samples: NDArray[np.float32],
        ids: Sequence[int],
        count: int = 32,
        model: Any = None,
        processors: Sequence[Callable[[Tensor, Tensor], Tensor]] = (),
    ) -> list[int]:
        """The likeliest token after each, with the text's end like any other. processors: of transformers."""
        whisper = self.reference if model is None else model.get_base_model()
        heard = whisper.model.encoder(self.features(samples))
        found = list(ids)
        for _ in range(count):
            so_far = torch.tensor([found])
            scores = whisper(encoder_outputs=heard, decoder_input_ids=so_far).logits[:, -1]
            for process in processors:
                scores = process(so_far, scores)
            found.append(int(scores.argmax()))
        return found[len(ids) :]


CASES: dict[str, dict[str, Any]] = {
    "tied": {},
    "with a head of its own": {
        "tie_word_embeddings": False,
        "activation_function": "relu",
        "decoder_layers": 2,
        "decoder_attention_heads": 2,
        "scale_embedding": True,
    },
}
"""By what is special about them."""

ASKED: list[tuple[NDArray[np.float32], str | list[int]]] = [
    (speech(1), "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"),
    (speech(2, 0.4), "<|startoftranscript|>"),
    (speech(3, 2.0), [START, GERMAN, TRANSLATE]),
    (speech(4, 1.99), "<|startofprev|> a<|startoftranscript|><|en|>"),
    (speech(1), [START, GERMAN]),
    (speech(5, 0.03), [START, ENGLISH, TRANSCRIBE, NO_TIMES, *b"ab"]),
]
"""Speech of different lengths, some of it twice, and how the text begins."""


IDS = [START, ENGLISH, TRANSCRIBE, NO_TIMES]


Asked = list[tuple[Prompt, list[int]]]


def asked_of(model: Model, found: Registry) -> Asked:
    """Prompts, and the 32 tokens that transformers gives after each."""
    asked = []
    with rig_of(model.folder, found) as rig:
        for sound, text in ASKED:
            prompt = model.prompt(found, rig.engine.info, sound, text)
            asked.append((prompt, model.greedy(sound, prompt.token_ids[ROOM:])))
    assert len({tuple(tokens) for _, tokens in asked}) == len(asked)
    return asked


def answers_of(rig: Rig, asked: Asked, params: SamplingParams | None = None) -> list[list[int]]:
    ids = [rig.add(prompt, params or greedy(32, ignore_eos=True)) for prompt, _ in asked]
    answers = rig.drain()
    assert [answers[request_id, 0].last.error for request_id in ids] == [None] * len(ids)
    return [answers[request_id, 0].token_ids for request_id in ids]
