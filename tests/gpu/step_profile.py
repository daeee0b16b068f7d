"""What a decode step costs: time on the host and on the device, calls by operation, and the machine's own limits."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from engines import Client, engine_of, random_weights_on, synchronize, write_geometry

SETTINGS = {
    "dtype": "bfloat16",
    "load_format": "dummy",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "max_model_len": 4096,
}


def limits(device: str) -> dict[str, float]:
    """Bandwidth of a copy, counting bytes read and written, and what launches cost."""
    if device != "cuda":
        return {}
    source = torch.empty(1 << 31, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    target.copy_(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    copied = 20 * source.numel() / (begin.elapsed_time(end) / 1e3)
    del source, target
    small = torch.zeros(1024, device=device)
    for _ in range(100):
        small.add_(1)
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(1000):
        small.add_(1)
    launch = (perf_counter() - start) / 1000
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(500):
            small.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    replay = (perf_counter() - start) / 10
    host = torch.zeros(64, dtype=torch.int64, pin_memory=True)
    ids = torch.zeros(64, dtype=torch.int64, device=device)
    start = perf_counter()
    for _ in range(500):
        ids.copy_(host, non_blocking=True)
    upload = (perf_counter() - start) / 500
    torch.cuda.synchronize()
    return {
        "copy_bytes_per_s": copied,
        "launch_us": launch * 1e6,
        "graph_of_500_launches_us": replay * 1e6,
        "small_upload_us": upload * 1e6,
    }


def run(geometry: str, device: str, rows: tuple[int, ...] = (1, 64)) -> dict[str, Any]:
    """Steps with so many rows of one token each, of a Llama of that size."""
    found: dict[str, Any] = {"limits": limits(device)}
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = write_geometry(geometry, Path(name))
        start = perf_counter()
        pages = {} if device == "cuda" else {"num_pages": 1024}
        with random_weights_on(device), engine_of(folder, device, **SETTINGS, **pages) as engine:
            found["load_s"] = perf_counter() - start
            found["ops"] = {choice.op: choice.name for choice in engine.loaded.ops.report}
            found["weight_bytes"] = engine.loaded.weight_bytes
            found["num_pages"] = engine.info.num_pages
            for count in rows:
                found[f"{count} rows"] = steps(engine, count, draw, device)
    return found


def steps(engine: Any, count: int, draw: random.Random, device: str) -> dict[str, Any]:
    """Steps of so many rows: their time, what the host and the device do in it, and the number of kernels."""
    client = Client(engine)
    for _ in range(count):
        client.add([draw.randrange(2, 260) for _ in range(128)], 100)
    while engine.num_generating < count:
        client.step()
    for _ in range(5):
        client.step()
    synchronize(device)
    times = []
    for _ in range(30):
        start = perf_counter()
        client.step()
        times.append(perf_counter() - start)
    found: dict[str, Any] = {"step_ms": sorted(times)[15] * 1e3, "fastest_ms": min(times) * 1e3}
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(5):
            client.step()
        synchronize(device)
    averages = profile.key_averages()
    found["by_host_time"] = averages.table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60)
    if device == "cuda":
        found["by_device_time"] = averages.table(sort_by="self_cuda_time_total", row_limit=25)
        kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        found["kernels_per_step"] = len(kernels) / 5
        found["device_ms_per_step"] = sum(event.time_range.elapsed_us() for event in kernels) / 5e3
    client.drain()
    return found
