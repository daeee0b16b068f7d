"""Damaged GGUF files: valid ones whose bytes are cut, flipped, or replaced by lies about sizes, counts and offsets."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf_models import random_blocks, write_tokens

LIES = (0, 1, 2, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 33, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
"""Numbers that mean trouble as a count, a length or an offset."""


def small_file(path: Path, split: tuple[int, int] | None = None) -> None:
    """A model of one block with every kind of value in its metadata and tensors of several types.

    split: number from 0 and count, for one part of several.
    """
    writer = gguf.GGUFWriter(str(path), "llama")
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 256, "feed_forward_length": 256}
    for key, value in {**sizes, "attention.head_count": 4, "attention.head_count_kv": 2}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint8("other.u8", 1)
    writer.add_int16("other.i16", -1)
    writer.add_uint64("other.u64", 1 << 40)
    writer.add_float64("other.f64", 0.5)
    writer.add_bool("other.bool", True)
    writer.add_array("other.floats", [0.5, 1.5])
    writer.add_array("other.texts", ["one", "two"])
    writer.add_chat_template("{{ messages }}")
    write_tokens(writer, 264)
    if split is not None:
        writer.add_uint16("split.no", split[0])
        writer.add_uint16("split.count", split[1])
        writer.add_int32("split.tensors.count", 12 * split[1])
    prefix = f"blk.{0 if split is None else split[0]}"
    if split is None or split[0] == 0:
        writer.add_tensor("token_embd.weight", random_blocks(Type.Q8_0, 264, 256), raw_dtype=Type.Q8_0)
        writer.add_tensor("output_norm.weight", np.ones(256, np.float32))
    else:
        writer.add_tensor("rope_freqs.weight", np.ones(32, np.float32))
        writer.add_tensor("output.weight", np.ones((264, 256), np.float16))
    kinds = (Type.Q4_K, Type.Q6_K, Type.Q5_0, Type.IQ4_XS, Type.Q2_K, Type.Q3_K, Type.MXFP4)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for kind, name in zip(kinds, names, strict=True):
        rows = 128 if name in ("attn_k", "attn_v") else 256
        writer.add_tensor(f"{prefix}.{name}.weight", random_blocks(kind, rows, 256), raw_dtype=kind)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"{prefix}.{name}.weight", np.ones(256, np.float32))
    writer.add_tensor(f"{prefix}.attn_q.bias", np.ones(256, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def damaged(content: bytes, header: int, seed: int) -> bytes:
    """`content` with one to four damages, mostly in its first `header` bytes. The same for the same seed."""
    chance = random.Random(seed)
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        _damage(data, min(header, len(data)), chance)
    return bytes(data)


def _damage(data: bytearray, header: int, chance: random.Random) -> None:
    kind = chance.choice(("cut", "flip", "flip", "lie", "lie", "lie", "lie32", "splice", "float"))
    if len(data) < 16:
        return
    place = chance.randrange(header if header > 8 else len(data))
    if kind == "cut":
        del data[chance.randrange(len(data)) :]
    elif kind == "flip":
        data[place] ^= 1 << chance.randrange(8)
    elif kind == "lie":
        data[place : place + 8] = struct.pack("<Q", chance.choice(LIES))
    elif kind == "lie32":
        data[place : place + 4] = struct.pack("<I", chance.choice(LIES) & 0xFFFFFFFF)
    elif kind == "splice":
        other = chance.randrange(len(data))
        data[place : place + 32] = data[other : other + 32]
    else:
        number = chance.choice((float("nan"), float("inf"), -1e300, 0.0))
        data[place : place + 4] = struct.pack("<f", np.float32(np.clip(number, -3e38, 3e38)))
