"""Folders of hostile adapters: each spoils a good one."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

CONFIG, TENSORS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"


def linked(name: str, target: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return spoil


def piped(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return spoil


def configured(**settings: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        given = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**given, **settings}))

    return spoil


def written(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def header(text: str, data: int = 0) -> Callable[[Path], None]:
    """A safetensors file with this header."""
    return written(TENSORS, struct.pack("<Q", len(text)) + text.encode() + bytes(data))


def pickled(value: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / TENSORS).unlink()
        torch.save(value, folder / PICKLED)

    return spoil


def code(folder: Path) -> None:
    (folder / TENSORS).unlink()
    (folder / PICKLED).write_bytes(pickle.dumps(os.getcwd))


def huge(folder: Path) -> None:
    with (folder / TENSORS).open("wb") as file:
        file.truncate(1 << 40)  # of nothing: it takes no room


def magnified(folder: Path) -> None:
    """Every number may be, and no product."""
    found = load_file(folder / TENSORS)
    save_file({name: torch.full_like(tensor, 9e4) for name, tensor in found.items()}, folder / TENSORS)


def whole_alpha(digits: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        given = (folder / CONFIG).read_text()
        (folder / CONFIG).write_text(given.replace('"lora_alpha": ', f'"lora_alpha": {"9" * digits}'))

    return spoil


LONG_NUMBERS = json.dumps({"a": {"dtype": "F32", "shape": ["#"] * 1000, "data_offsets": [0, 0]}})
SLOW = {f"((.)|(..)|(...))*[A-Z]{i}": 4 for i in range(2000)}
MANY = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}

HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe for the config": (piped(CONFIG), "it is not a regular file"),
    "a pipe for the tensors": (piped(TENSORS), "it is not a regular file"),
    "a config that never ends": (linked(CONFIG, "/dev/zero"), "it is a link that leads out of its folder"),
    "tensors that never end": (linked(TENSORS, "/dev/zero"), "it is a link that leads out of its folder"),
    "a file outside the folder": (linked(CONFIG, "/etc/passwd"), "it is a link that leads out of its folder"),
    "links in a circle": (linked(CONFIG, CONFIG), "cannot be"),
    "a terabyte": (huge, "it has 1099511627776 bytes"),
    "numbers of 4000 digits": (header(LONG_NUMBERS.replace('"#"', "9" * 4000)), "a number has 4000 digits"),
    "nothing times too much": (
        header('{"a": {"dtype": "F32", "shape": [0, 4611686018427387904], "data_offsets": [0, 0]}}'),
        "shapes and offsets are whole numbers from 0 to",
    ),
    "many dimensions": (
        header(json.dumps({"a": {"dtype": "F32", "shape": [1] * 100_000, "data_offsets": [0, 4]}}), 4),
        "a shape is a list of at most 8 numbers",
    ),
    "many tensors": (header(json.dumps(MANY)), "it has 100000 tensors"),
    "a deep header": (header("[" * 1_000_000), "it is nested too deeply"),
    "a deep config": (written(CONFIG, b'{"peft_type":' * 80_000), "it is nested too deeply"),
    "a config of a list": (written(CONFIG, b"[]"), "must be a JSON object"),
    "slow patterns": (configured(rank_pattern=SLOW), "all patterns together took longer than 2 s"),
    "parentheses": (configured(target_modules="(" * 2000 + ")" * 2000), "a pattern that cannot be used"),
    "a long pattern": (configured(target_modules="(" * 5000 + ")" * 5000), "it has more than 4096 characters"),
    "an alpha of 400 digits": (whole_alpha(400), "digits, and at most 64 are read"),
    "an alpha of 1e38": (configured(lora_alpha=1e38), "`lora_alpha` must be a number from -1000000 to 1000000"),
    "products beyond all bounds": (magnified, "beyond what a model can compute with"),
    "code": (code, "holds more than tensors"),
    "few numbers that look like many": (
        pickled({"a": torch.zeros(1).expand(1 << 40)}),
        "its tensors have more than",
    ),
    "tensors without numbers": (pickled({"a": torch.empty(4, 4, device="meta")}), "must contain a mapping from names"),
    "sparse tensors": (pickled({"a": torch.eye(4).to_sparse()}), "must contain a mapping from names"),
}
"""What is done to an adapter, and what is said of it."""
