"""Speed of a Llama of random weights on a device: single stream, many streams, many adapters, first token."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Sequence
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


def run(geometry: str, device: str, num_adapters: int = 64, scale: int = 1) -> dict[str, Any]:
    """scale: divides lengths and numbers of requests."""
    draw = random.Random(0)
    found: dict[str, Any] = {"limits": limits(device)}
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
            measure = Measure(engine, draw, device)
            found["one stream"] = measure.steady(1, 128 // scale, 100 // scale)
            found["64 streams"] = measure.steady(64 // scale, 128 // scale, 60 // scale)
            found["256 streams"] = measure.steady(256 // scale, 128 // scale, 60 // scale)
            found["256 requests"] = measure.requests(256 // scale, (32, 256), (32, 128))
            found["first token of 1500"] = measure.first_token(1500 // scale)
            found["profiles"] = {rows: steps(engine, rows, draw, device) for rows in (1, 64 // scale)}
            if num_adapters:
                names = [f"a{i}" for i in range(num_adapters)]
                for i, each in enumerate(names):
                    engine.load_adapter(each, write_adapter(geometry, Path(name), i))
                found["64 streams of 64 adapters"] = measure.steady(
                    64 // scale, 128 // scale, 60 // scale, adapters=names
                )
                found["64 streams beside adapters"] = measure.steady(64 // scale, 128 // scale, 60 // scale)
        bandwidth = found["limits"].get("copy_bytes_per_s")
        if bandwidth:
            seconds = found["one stream"]["step_ms"] / 1e3
            found["one stream"]["share_of_copy_bandwidth"] = found["weight_bytes"] / seconds / bandwidth
    return found


class Measure:
    """Measures one engine."""

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

    def requests(self, count: int, prompts: tuple[int, int], outputs: tuple[int, int]) -> dict[str, float]:
        """All at once, from their arrival to the last token."""
        client = Client(self._engine)
        start = perf_counter()
        for _ in range(count):
            client.add(self._prompt(self._draw.randint(*prompts)), self._draw.randint(*outputs))
        client.ended(list(client.tokens))
        seconds = perf_counter() - start
        produced = sum(map(len, client.tokens.values()))
        return {"seconds": seconds, "output_tokens": produced, "output_tokens_per_s": produced / seconds}

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
    geometry: str, device: str, batches: tuple[int, ...] = (1, 64), tokens: int = 32
) -> dict[str, Any]:
    """`generate` of transformers for a model of that size, with its default cache: seconds a step."""
    from transformers import AutoConfig, AutoModelForCausalLM

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        config = AutoConfig.from_pretrained(write_geometry(geometry, Path(name)))
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        for batch in batches:
            ids = torch.randint(2, 260, (batch, 128), device=device)
            options = {
                "attention_mask": torch.ones_like(ids),
                "do_sample": False,
                "pad_token_id": 0,
                "eos_token_id": None,
            }
            model.generate(ids, max_new_tokens=4, **options)
            times = []
            for count in (4, 4 + tokens):
                synchronize(device)
                start = perf_counter()
                model.generate(ids, max_new_tokens=count, **options)
                synchronize(device)
                times.append(perf_counter() - start)
            step = (times[1] - times[0]) / tokens
            found[f"{batch} streams"] = {"step_ms": step * 1e3, "tokens_per_s": batch / step}
    return found
