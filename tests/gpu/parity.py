"""Tiny models of all families on a device in float32: logits and greedy tokens are those of transformers on the CPU.

Where decode steps are captured, greedy and sampled tokens are those of steps that are not.
"""

from __future__ import annotations

import random
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import attention_cases
import dense_cases
import hybrid_cases
import latent_cases
import moe_cases
import torch
from engines import Client, engine_of, is_captured
from family_case import FamilyCase

from quire_models.testing import ChunkSpec, ModelDriver
from quire_testing.tiny import reference_model, save

FILES = (dense_cases, attention_cases, moe_cases, latent_cases, hybrid_cases)
CASES: dict[str, FamilyCase] = {str(case): case for file in FILES for case in file.CASES}
ONE_GROUP = {"Mamba2ForCausalLM": {"n_groups": 1}}
ONE_GROUP |= {each: {"mamba_n_groups": 1} for each in ("BambaForCausalLM", "GraniteMoeHybridForCausalLM")}
"""Some versions of transformers norm all groups of these together, which Quire, like the original code, does not."""
TOLERANCE = 2e-4
LENGTHS = (41, 23, 1, 30)
NEW_TOKENS = 24
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 7}


def run(names: Sequence[str], device: str) -> dict[str, Any]:
    """A result for each of these cases."""
    torch.backends.cudnn.allow_tf32 = False  # convolutions too are compared in full float32
    return {name: _result(CASES[name], device) for name in names}


def _result(case: FamilyCase, device: str) -> dict[str, Any]:
    start = perf_counter()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            _check(case, Path(folder), device, found)
            found["ok"] = found["max_diff"] <= TOLERANCE and found["tokens_agree"]
        except Exception:
            found |= {"ok": False, "error": traceback.format_exc(limit=-8)}
    return {**found, "seconds": round(perf_counter() - start, 2)}


def _check(case: FamilyCase, folder: Path, device: str, found: dict[str, Any]) -> None:
    config = {**case.config, **ONE_GROUP.get(case.architecture, {})}
    theirs = reference_model(case.architecture, case.seed, case.attention, **config)
    if theirs.config.get_text_config().tie_word_embeddings:
        with torch.no_grad():
            theirs.get_input_embeddings().weight.mul_(case.scale)
    save(theirs, folder)
    draw = random.Random(3)
    prompts = [[draw.randrange(256) for _ in range(length)] for length in LENGTHS]
    settings = {"dtype": "float32", "num_pages": 64, "max_num_batched_tokens": 33, "max_num_seqs": 6}
    settings |= {"max_model_len": 80, **case.settings}
    with torch.inference_mode(), engine_of(folder, device, **settings) as engine:
        found["ops"] = {choice.op: choice.name for choice in engine.loaded.ops.report}
        driver = ModelDriver(engine.loaded.module, engine.loaded.decoder, prompts)
        first = [ChunkSpec(i, min(7, length)) for i, length in enumerate(LENGTHS)]
        rest = [ChunkSpec(i, length - 7) for i, length in enumerate(LENGTHS) if length > 7]
        parts = [
            (chunk, logits)
            for chunks in (first, rest)
            for chunk, logits in zip(chunks, driver.step(chunks), strict=True)
        ]
        worst = 0.0
        for i, prompt in enumerate(prompts):
            ours = torch.cat([logits for chunk, logits in parts if chunk.seq == i]).cpu()
            wanted = theirs(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
            worst = max(worst, (ours - wanted).abs().nan_to_num(1e9).max().item())
        found["max_diff"] = worst
        with host_synchronisations(device, after_tokens=8) as (stepped, places):
            client = Client(engine)
            names = [client.add(prompt, NEW_TOKENS) for prompt in prompts]
            while engine.has_work:
                client.step()
                stepped(client.tokens[names[0]])
        found["syncs"] = places
        answers = [client.tokens[name] for name in names]
        found["tokens_agree"] = client.errors == {} and all(
            theirs(input_ids=torch.tensor([[*prompt, *answer]]), use_cache=False)
            .logits[0, len(prompt) - 1 : -1]
            .argmax(-1)
            .tolist()
            == answer
            for prompt, answer in zip(prompts, answers, strict=True)
        )
        found["captured"] = is_captured(engine)
        sampled = client.answers(prompts, NEW_TOKENS, **SAMPLED)
    if found["captured"]:
        with torch.inference_mode(), engine_of(folder, device, **settings, enforce_eager=True) as engine:
            client = Client(engine)
            eager = client.answers(prompts, NEW_TOKENS), client.answers(prompts, NEW_TOKENS, **SAMPLED)
        found["tokens_agree"] &= eager == (answers, sampled)


@contextmanager
def host_synchronisations(device: str, after_tokens: int) -> Iterator[tuple[Any, dict[str, int]]]:
    """Counts by place what makes the host wait for the device, once the first answer has `after_tokens` tokens."""
    places: dict[str, int] = {}
    if device != "cuda":
        yield lambda tokens: None, places
        return

    def stepped(tokens: Sequence[int]) -> None:
        if len(tokens) >= after_tokens:
            torch.cuda.set_sync_debug_mode("warn")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield stepped, places
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found = Counter(
            f"{'/'.join(Path(each.filename).parts[-3:])}:{each.lineno}"
            for each in caught
            if "synchroniz" in str(each.message)
        )
        places.update(found.most_common(40))
