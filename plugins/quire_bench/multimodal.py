"""`bench pictures`: prompts of which some begin with an image, compared with equally long text and with the tower
alone.

A perfect engine needs for the first as long as for the other two together.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import BadRequest
from quire.params.sampling import SamplingParams
from quire.records import Registry
from quire.types import Prompt, Request
from quire_bench.offline import add_model_flags, engine_of
from quire_bench.report import percentile, show
from quire_bench.workload import BenchRequest, Range, add_workload_flags, at_least, jobs, positive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quire.engine.engine import Engine
    from quire.text.inputs.multimodal import MultimodalProcessor
    from quire.text.tokenizer.tokenizer import Tokenizer

MODALITY = "image"


@dataclass(frozen=True)
class PictureJob:
    """A prompt, optionally with an image at its beginning, and the number of tokens to generate."""

    prompt: Prompt
    output_len: int


def configure(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=32, input_len="32:256", output_len="32:128")
    parser.add_argument("--share", type=positive, default=0.5, help="fraction of the requests with an image")
    parser.add_argument(
        "--picture-size",
        type=Range.parse,
        default=Range.parse("336"),
        help="side length of the images in pixels, N or LOW:HIGH",
    )
    parser.add_argument(
        "--repeats", type=at_least(1), default=3, help="number of runs of each kind; the medians are reported"
    )
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the seconds of the three workloads, run in alternation. Raises BadRequest without image input."""
    engine = engine_of(args)
    pictures = _Pictures.from_engine(engine, args.registry)
    _run_jobs(engine, _jobs(engine, pictures, args, salt=-1)[:2], "warmup")
    seconds: dict[str, list[float]] = {"pictures": [], "text": [], "tower": []}
    for repeat in range(args.repeats):
        work = _jobs(engine, pictures, args, salt=repeat)
        before = engine.stats()
        seconds["pictures"].append(_run_jobs(engine, work, f"p{repeat}"))
        num_encoded = engine.stats().num_media_encoded_total - before.num_media_encoded_total
        seconds["text"].append(_run_jobs(engine, _as_text(work, engine.info.vocab_size, repeat), f"t{repeat}"))
        seconds["tower"].append(_run_tower(engine, work, args.max_num_encoder_tokens))
    mixed, text, tower = (percentile(seconds[kind], 0.5) for kind in ("pictures", "text", "tower"))
    show(
        "pictures",
        {
            "model": engine.info.name,
            "requests": len(work),
            "pictures": sum(len(job.prompt.media) for job in work),
            "pictures_encoded": num_encoded,
            "picture_tokens": sum(medium.length for job in work for medium in job.prompt.media),
            "prompt_tokens": sum(len(job.prompt.token_ids) for job in work),
            "output_tokens": sum(job.output_len for job in work),
            "with_pictures_s": mixed,
            "as_text_s": text,
            "tower_alone_s": tower,
            "share_of_both": (text + tower) / mixed,
            **{f"{kind}_all_s": [round(value, 3) for value in values] for kind, values in seconds.items()},
        },
        args.output_json,
    )
    engine.close()
    return 0


@dataclass(frozen=True)
class _Pictures:
    """Puts noise images before prompts with the model's input mapper."""

    inputs: MultimodalProcessor
    tokenizer: Tokenizer

    @classmethod
    def from_engine(cls, engine: Engine, registry: Registry) -> _Pictures:
        """Raises BadRequest for a model without image input."""
        from quire.text.inputs.multimodal import MultimodalProcessor
        from quire.text.tokenizer.tokenizer import Tokenizer

        if MODALITY not in engine.info.modalities:
            raise BadRequest(f"{engine.info.name} takes no pictures.")
        tokenizer = Tokenizer.load(Path(engine.info.folder))
        return cls(MultimodalProcessor(registry, engine.info, tokenizer), tokenizer)

    def before(self, job: BenchRequest, picture: NDArray[np.uint8]) -> PictureJob:
        """Returns the job with an image, uint8 [height, width, 3], at the beginning of its prompt."""
        marker, data = self.inputs.markers[MODALITY], {MODALITY: picture}
        ids, media = self.inputs.process(marker, None, data, self._encode, "prompt")
        return PictureJob(Prompt(token_ids=(*ids, *job.prompt), media=media), job.output_len)

    def _encode(self, text: str, special: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=special)


def _jobs(engine: Engine, pictures: _Pictures, args: argparse.Namespace, salt: int) -> list[PictureJob]:
    """The text workload of the flags, with a new image before the first prompts."""
    plain = jobs(args, engine.info.vocab_size, salt)
    rng, sizes = random.Random(f"{args.workload_seed}/{salt}/pictures"), random.Random(args.workload_seed)
    few = round(args.share * len(plain))
    if not 1 <= few <= len(plain):
        raise BadRequest(f"--share {args.share:g} of {len(plain)} prompts is no prompt, or more than all.")
    made = [pictures.before(job, _noise(rng, args.picture_size.draw(sizes))) for job in plain[:few]]
    made += [PictureJob(Prompt(token_ids=job.prompt), job.output_len) for job in plain[few:]]
    random.Random(args.workload_seed).shuffle(made)
    return made


def _noise(rng: random.Random, side: int) -> NDArray[np.uint8]:
    """A random image: uint8 [side, side, 3]."""
    import numpy as np

    return np.frombuffer(rng.randbytes(side * side * 3), np.uint8).reshape(side, side, 3)


def _as_text(work: Sequence[PictureJob], vocab_size: int, salt: int) -> list[PictureJob]:
    """Jobs with the same numbers of tokens, all text and not in the prefix cache."""
    rng, low = random.Random(f"{salt}/text"), min(10, vocab_size - 1)
    return [
        replace(job, prompt=Prompt(token_ids=tuple(rng.randint(low, vocab_size - 1) for _ in job.prompt.token_ids)))
        for job in work
    ]


def _run_jobs(engine: Engine, work: Sequence[PictureJob], tag: str) -> float:
    """Seconds until all jobs are done when all are submitted at once."""
    start = time.perf_counter()
    for number, job in enumerate(work):
        params = SamplingParams(temperature=0, max_tokens=job.output_len, ignore_eos=True, detokenize=False)
        engine.add(Request(id=f"{tag}-{number}", prompt=job.prompt, params=params))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - start


def _run_tower(engine: Engine, work: Sequence[PictureJob], most_rows: int) -> float:
    """Seconds of the tower for all media of the workload, with about `most_rows` rows per call."""
    import torch

    from quire_models import TowerCall

    loaded = engine.loaded
    tower = loaded.module.tower
    assert tower is not None, "a model that takes pictures has a tower"
    media = [medium for job in work for medium in job.prompt.media]
    count = max(1, most_rows // max(medium.length for medium in media))
    start = time.perf_counter()
    with torch.inference_mode():
        for i in range(0, len(media), count):
            items = [
                {name: tensor.to(loaded.device, loaded.dtype) for name, tensor in medium.tensors.items()}
                for medium in media[i : i + count]
            ]
            tower(items, TowerCall(loaded.device))
    return time.perf_counter() - start
