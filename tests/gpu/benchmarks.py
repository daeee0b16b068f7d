"""Speed of a Llama of random weights on a device: single stream, many streams, many adapters, first token."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from engines import GEOMETRIES, Client, engine_of, is_captured, random_weights_on, synchronize, write_geometry
from safetensors.torch import save_file
from step_profile import limits, steps

SETTINGS = {
    "dtype": "bfloat16",
    "load_format": "dummy",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "max_model_len": 4096,
    "enable_prefix_caching": False,
    "max_loras": 64,
    "max_lora_rank": 16,
}
RANK = 16
PROJECTIONS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")


PROMPTS, OUTPUTS = (32, 256), (32, 128)
"""Least and most tokens of the requests that come at once."""


def run(
    geometry: str,
    device: str,
    found: dict[str, Any],
    save: Callable[[], None],
    num_adapters: int = 64,
    scale: int = 1,
) -> None:
    """Adds to `found`, and saves after each measurement. scale: divides lengths and numbers of requests."""
    draw = random.Random(0)
    found["limits"] = limits(device)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = write_geometry(geometry, Path(name) / "model")
        pages = {} if device == "cuda" else {"num_pages": 2048}
        start = perf_counter()
        with random_weights_on(device), engine_of(folder, device, **SETTINGS, **pages) as engine:
            found |= {
                "start_s": perf_counter() - start,
                "captured": is_captured(engine),
                "ops": {choice.op: choice.name for choice in engine.loaded.ops.report},
                "num_pages": engine.info.num_pages,
                "weight_bytes": engine.loaded.weight_bytes,
            }
            measure, many = Measure(engine, draw, device), 256 // scale
            measurements: dict[str, Callable[[], Any]] = {
                "one stream": partial(measure.steady, 1, 128 // scale, 100 // scale),
                "64 streams": partial(measure.steady, 64 // scale, 128 // scale, 60 // scale),
                "256 streams": partial(measure.steady, many, 128 // scale, 60 // scale),
                "16 streams of 3000": partial(measure.steady, 16 // scale, 3000 // scale, 40 // scale),
                "the first 256 requests": partial(measure.requests, many),
                "256 requests": partial(measure.requests, many),
                "first token of 1500": partial(measure.first_token, 1500 // scale),
                "profiles": lambda: {rows: steps(engine, rows, draw, device) for rows in (1, 64 // scale)},
            }
            if num_adapters:
                names = [f"a{i}" for i in range(num_adapters // scale)]
                adapted = partial(measure.steady, 64 // scale, 128 // scale, 60 // scale, adapters=names)
                measurements["adapters"] = lambda: load_adapters(engine, geometry, Path(name), names)
                measurements["64 streams of 64 adapters"] = adapted
                shared = partial(measure.steady, many, 128 // scale, 60 // scale, adapters=names)
                measurements["256 streams of 64 adapters"] = shared
            for each, call in measurements.items():
                found[each] = call()
                if each == "one stream" and "copy_bytes_per_s" in found["limits"]:
                    seconds = found[each]["step_ms"] / 1e3
                    share = found["weight_bytes"] / seconds / found["limits"]["copy_bytes_per_s"]
                    found[each]["share_of_copy_bandwidth"] = share
                save()


def run_quantized(
    geometry: str, device: str, found: dict[str, Any], save: Callable[[], None], kinds: Sequence[str], scale: int = 1
) -> None:
    """Decode steps of a model whose weights are quantized when it is loaded."""
    pages = {} if device == "cuda" else {"num_pages": 512}
    for kind in kinds:
        with tempfile.TemporaryDirectory() as name, torch.inference_mode():
            folder, start = write_geometry(geometry, Path(name) / "model"), perf_counter()
            options = {**SETTINGS, "max_num_seqs": 64, "quantization": kind, **pages}
            with random_weights_on(device), engine_of(folder, device, **options) as engine:
                seconds, measure = perf_counter() - start, Measure(engine, random.Random(0), device)
                found[kind] = {"start_s": seconds, "captured": is_captured(engine)}
                found[kind]["one stream"] = measure.steady(1, 128 // scale, 60 // scale)
                found[kind]["64 streams"] = measure.steady(64 // scale, 128 // scale, 60 // scale)
        save()


def load_adapters(engine: Any, geometry: str, folder: Path, names: Sequence[str]) -> dict[str, float]:
    start = perf_counter()
    for i, each in enumerate(names):
        engine.load_adapter(each, write_adapter(geometry, folder, i))
    return {"count": len(names), "load_s": perf_counter() - start}


class Measure:
    """Times of steps, batches and first tokens of one engine."""

    def __init__(self, engine: Any, draw: random.Random, device: str) -> None:
        self._engine, self._draw, self._device = engine, draw, device

    def _prompt(self, length: int) -> list[int]:
        return [self._draw.randrange(2, 260) for _ in range(length)]

    def steady(self, streams: int, prompt: int, steps: int, adapters: Sequence[str] = ()) -> dict[str, float]:
        """Decode steps of so many streams."""
        client = Client(self._engine)
        for i in range(streams):
            client.add(self._prompt(prompt), steps + 40, adapters[i % len(adapters)] if adapters else None)
        while self._engine.num_generating < streams:
            client.step()
        for _ in range(5):
            client.step()
        synchronize(self._device)
        times = sorted(_timed(client.step) for _ in range(steps))
        client.ended(list(client.tokens))
        median = times[len(times) // 2]
        return {"step_ms": median * 1e3, "p90_ms": times[len(times) * 9 // 10] * 1e3, "tokens_per_s": streams / median}

    def requests(self, count: int) -> dict[str, float]:
        """All at once, from their arrival to the last token; and how long the steps took that computed prompts."""
        client, prompt_steps = Client(self._engine), list[float]()
        start = perf_counter()
        for prompt, output in sizes_of_requests(count):
            client.add(self._prompt(prompt), output)
        while self._engine.has_work:
            seconds = _timed(client.step)
            if self._engine.num_step_tokens > count:
                prompt_steps.append(seconds)
        client.ended(list(client.tokens))
        seconds = perf_counter() - start
        produced = sum(map(len, client.tokens.values()))
        return {
            "seconds": seconds,
            "output_tokens": produced,
            "output_tokens_per_s": produced / seconds,
            "prompt_steps": len(prompt_steps),
            "prompt_steps_s": sum(prompt_steps),
        }

    def first_token(self, length: int, times: int = 7) -> dict[str, float]:
        """Of one request at a time."""
        found = []
        for _ in range(times):
            client = Client(self._engine)
            name, start = client.add(self._prompt(length), 2), perf_counter()
            while not client.tokens[name]:
                client.step()
            found.append(perf_counter() - start)
            client.drain()
        return {"median_ms": sorted(found)[times // 2] * 1e3, "first_ms": found[0] * 1e3}


def _timed(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def write_adapter(geometry: str, folder: Path, number: int) -> Path:
    """The folder of a LoRA adapter with random weights; all have the file of the first."""
    sizes = GEOMETRIES[geometry]
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    made = folder / f"adapter{number}"
    made.mkdir()
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": [p[p.index(".") + 1 :] for p in PROJECTIONS],
    }
    (made / "adapter_config.json").write_text(json.dumps(config))
    weights = made / "adapter_model.safetensors"
    if number:
        weights.hardlink_to(folder / "adapter0" / weights.name)
        return made
    model = json.loads((folder / "model" / "config.json").read_text())
    outputs = {"q_proj": sizes["num_attention_heads"] * model["head_dim"], "up_proj": inner, "down_proj": width}
    outputs["v_proj"] = model["num_key_value_heads"] * model["head_dim"]
    tensors = {}
    for layer in range(sizes["num_hidden_layers"]):
        for path in PROJECTIONS:
            name, inputs = path.rpartition(".")[2], inner if path.endswith("down_proj") else width
            prefix = f"base_model.model.model.layers.{layer}.{path}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(RANK, inputs).to(torch.bfloat16) / inputs**0.5
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs[name], RANK).to(torch.bfloat16) * 0.01
    save_file(tensors, weights)
    return made


def run_transformers(
    geometry: str, device: str, found: dict[str, Any], save: Callable[[], None], scale: int = 1, tokens: int = 48
) -> None:
    """`generate` of transformers for a model of that size, with its default cache and attention.

    One stream, then the requests that `Measure.requests` sends, as one batch whose prompts are padded: it ends with the
    longest answer, and the tokens that were asked for count.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        config = AutoConfig.from_pretrained(write_geometry(geometry, Path(name)))
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

        def seconds(ids: torch.Tensor, mask: torch.Tensor, count: int) -> float:
            options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
            synchronize(device)
            start = perf_counter()
            model.generate(ids, attention_mask=mask, max_new_tokens=count, **options)
            synchronize(device)
            return perf_counter() - start

        ids = torch.randint(2, 260, (1, 128), device=device)
        short, long = [seconds(ids, torch.ones_like(ids), count) for count in (4, 4, 4 + tokens)][1:]
        found["one stream"] = {"step_ms": (long - short) / tokens * 1e3, "tokens_per_s": tokens / (long - short)}
        save()
        sizes = sizes_of_requests(256 // scale)
        longest, most = max(prompt for prompt, _ in sizes), max(output for _, output in sizes)
        ids = torch.randint(2, 260, (len(sizes), longest), device=device)
        lengths = torch.tensor([prompt for prompt, _ in sizes], device=device)
        mask = (torch.arange(longest, device=device)[None] >= longest - lengths[:, None]).long()
        seconds(ids, mask, 2)
        took, wanted = seconds(ids, mask, most), sum(output for _, output in sizes)
        found["256 requests"] = {"seconds": took, "output_tokens": wanted, "output_tokens_per_s": wanted / took}
        save()


def sizes_of_requests(count: int) -> list[tuple[int, int]]:
    """Tokens of the prompt and of the answer of each, the same in every call."""
    draw = random.Random(1)
    return [(draw.randint(*PROMPTS), draw.randint(*OUTPUTS)) for _ in range(count)]
