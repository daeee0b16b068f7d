"""A model that hears: a tiny Llama with a tower of one matrix, a mapper of the loudness of four parts of a sound, and
a transcriber that says what it wants in a few letters; the answer has ASCII only, and a time at every fourth token."""

import io
import json

import numpy as np
import soundfile
import torch
from safetensors.torch import load_file, save_file

from quire_testing import tiny_llama

PLACE = 262
"""Stands for a part of a sound in prompts."""

NUM_PARTS = 4
RATE = 800
WINDOW_S = 2.0
ARCHITECTURE = "HearsLlamaForCausalLM"

PLUGIN = f"""
    from dataclasses import dataclass

    import torch

    from quire.errors import BadRequest
    from quire_models.loading import weight_names as names
    from quire_plugins.architectures.llama import decoder


    @dataclass(frozen=True)
    class Loudness:
        def build(self, width, builder):
            class Tower(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.proj = builder.projection(2, width, bias=True)

                def forward(self, items, call):
                    counts = [len(item["parts"]) for item in items]
                    parts = torch.cat([item["parts"] for item in items])
                    return list(self.proj(parts, call.context(counts)).split(counts))

            return Tower()


    class MapsSound:
        def __init__(self, context):
            pass

        def map(self, item):
            import numpy as np

            assert item.rate == {RATE}
            parts = np.array_split(item.samples, {NUM_PARTS})
            rows = [[part.std() if len(part) else 0.0, len(part) / {RATE}] for part in parts]
            return MappedMedia([{PLACE}] * {NUM_PARTS}, {{"parts": torch.tensor(rows, dtype=torch.float32)}})


    class AsksInLetters:
        sampling_rate, window_s = {RATE}, {WINDOW_S}
        languages = {{"en": "English", "de": "German", "zh": "Chinese"}}

        def __init__(self, context):
            self.tokenizer = context.tokenizer

        def prompt(self, task):
            if task.language == "zh" and task.translate:
                raise BadRequest("Chinese cannot be translated.", "language")
            what = "t" if task.translate else "w"
            return self.tokenizer.encode(
                f"{{task.previous}}<audio>{{task.language}}{{what}}{{'0' if task.timestamps else ''}}"
            )

        def language_detection(self):
            return LanguageDetection(
                prompt_ids=self.tokenizer.encode("<audio>?"),
                languages={{ord("H"): "en", ord("d"): "de"}},
                silence_id=ord("."),
            )

        def params(self, task):
            return {{"max_tokens": 10_000, "logit_bias": {{0: -100.0}}, "extra": {{"letters": True}}}}

        def segments(self, token_ids, task):
            found = []
            for begin in range(0, len(token_ids), 4):
                ids = tuple(token_ids[begin : begin + 4])
                end_s = begin / 8 + 0.5 if begin + 4 <= len(token_ids) else None
                found.append(
                    Segment(begin=begin, end=begin + len(ids), text_ids=ids, start_s=begin / 8, end_s=end_s)
                )
            return found


    @hookimpl
    def quire_architectures():
        table = names.LLAMA | names.WeightsMapper((("sound_embed", "tower.proj"),))
        yield Architecture("{ARCHITECTURE}", decoder, table, tower=lambda c: Loudness())


    @hookimpl
    def quire_input_mappers():
        yield InputMapper("ears/audio", "{ARCHITECTURE}", "audio", MapsSound)


    class Letters:
        def __init__(self, context):
            pass

        def start(self, params):
            return params.extra.get("letters")

        def apply(self, logits, rows):
            logits[:, 128:256] = -torch.inf


    @hookimpl
    def quire_logits_processors():
        yield LogitsProcessor("letters", {{"letters": bool}}, Letters)


    @hookimpl
    def quire_transcribers():
        yield Transcriber("ears", "{ARCHITECTURE}", AsksInLetters)
"""


def tiny_hearing_model(folder, **settings):
    """Write the model, for the plugin above; gives the folder."""
    tiny_llama(folder, **settings)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    tensors["sound_embed.weight"] = 12 * torch.randn(64, 2, generator=generator)
    tensors["sound_embed.bias"] = torch.randn(64, generator=generator)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [ARCHITECTURE]}))
    return folder


def noise(seconds, seed=0, quiet=()):
    """Samples [seconds × RATE] of noise, louder and softer, silent where `quiet` says: pairs of seconds."""
    random = np.random.default_rng(seed)
    loudness = np.repeat(random.uniform(0.1, 0.9, int(seconds * 4) + 1), RATE // 4)[: int(seconds * RATE)]
    samples = (random.uniform(-1, 1, int(seconds * RATE)) * loudness).astype(np.float32)
    for begin, end in quiet:
        samples[int(begin * RATE) : int(end * RATE)] = 0
    return samples


def wav(samples, rate=RATE):
    """The bytes of a file of sound, which gives back the same samples."""
    data = io.BytesIO()
    soundfile.write(data, samples, rate, "FLOAT", format="WAV")
    return data.getvalue()
