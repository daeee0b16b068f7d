"""The real server with two models, keys, a root for adapters, and a few adapters made with peft."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_client import AdapterClient
from lora_rig import Base
from safetensors.torch import load_file, save_file
from serving import Server, serving
from torch import Tensor

PROMPT = list(b"To be or not to be, that is the question")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass
class Rig:
    """A server of the models `one` and `two`, and adapters for them."""

    root: Path
    one: Base
    two: Base
    good: Path
    other: Path
    for_two: Path
    server: Server
    asks: AdapterClient

    @property
    def url(self) -> str:
        return self.server.url

    def forget(self) -> None:
        """Unload what a test has loaded."""
        for row in self.asks.rows():
            if row["id"] not in ("plain", "written"):
                self.asks.unload(row["id"])


@contextmanager
def served_adapters(root: Path) -> Iterator[Rig]:
    """A rig, with the adapters `plain` (of `one`) and `written` (of `two`, pinned) loaded from the start."""
    one, two = Base(root / "one", "LlamaForCausalLM"), Base(root / "two", "Qwen2ForCausalLM")
    good = one.adapter("good", r=8, target_modules=TARGETS)
    other = one.adapter("other", r=4, use_rslora=True, target_modules=["q_proj", "down_proj"])
    for_two = two.adapter("for-two", r=2, target_modules=["v_proj"])
    configure(good, base_model_name_or_path=str(one.folder))  # as training leaves it: so a server knows which it is for
    written = {"name": "written", "path": str(for_two), "base_model_name": "two", "pinned": True}
    flags = ("--enable-lora", "--dtype", "float32", "--num-pages", "200", "--max-model-len", "256")
    lora = ("--max-loras", "2", "--max-cpu-loras", "4", "--max-lora-rank", "16", "--lora-root", root)
    first = ("--lora-modules", f"plain={good}", json.dumps(written))
    keys = ("--api-key", "user", "--admin-api-key", "admin")
    with serving(f"one={one.folder}", f"two={two.folder}", *flags, *lora, *first, *keys) as server:
        asks = AdapterClient(server.url, "admin")
        yield Rig(root, one, two, good, other, for_two, server, asks)
        asks.http.close()


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    found = tensors(folder)
    change(found)
    save_file(found, folder / "adapter_model.safetensors")


def configure(folder: Path, **settings: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
