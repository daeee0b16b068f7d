"""Reads the tensors of a file of packed matrices in several threads, into the memory that kernels will read."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from quire.engine.weights_cache.format import (
    BLOCK_BYTES,
    PRELUDE_BYTES,
    BadFile,
    Header,
    aligned,
    blocks_of,
    bytes_of,
    decode_header,
    decode_prelude,
)
from quire.files import FileRefused, open_regular

MAX_THREADS = 8
"""More do not read faster from a disk."""

BLOCKS_AT_ONCE = 4
"""Blocks that a thread reads before it takes the next part of a file."""


class PackedFile:
    """An open file. Raises BadFile if it cannot be used; `missing` of the error: there is none. To be closed."""

    def __init__(self, path: Path) -> None:
        try:
            with open_regular(path) as descriptor:
                self._descriptor = os.dup(descriptor)
        except FileRefused as error:
            raise (FileNotFoundError() if error.missing else BadFile(str(error))) from error
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        status = os.fstat(self._descriptor)
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            raise BadFile("other users may have written it")
        length, count, digest = decode_prelude(os.pread(self._descriptor, PRELUDE_BYTES, 0))
        text = os.pread(self._descriptor, length, PRELUDE_BYTES)
        sums = os.pread(self._descriptor, 4 * count, PRELUDE_BYTES + length)
        self.header: Header = decode_header(text, sums, digest)
        self._checksums = memoryview(sums).cast("I")
        self._start, self._size = PRELUDE_BYTES + length + len(sums), status.st_size

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raise BadFile unless the file has tensors of exactly these bytes."""
        at = self._start
        for size in sizes:
            at = aligned(at) + size
        if at != self._size or sum(map(blocks_of, sizes)) != len(self._checksums):
            raise BadFile("it is truncated, or has other tensors than the model")

    def read(self, pool: ThreadPoolExecutor, tensors: Sequence[Tensor]) -> list[list[Future[bool]]]:
        """Begin to read all tensors of the file, in their order. The results of each say whether it is undamaged."""
        at, first, reads = self._start, 0, []
        for tensor in tensors:
            view = bytes_of(tensor)
            at = aligned(at)
            parts = range(0, blocks_of(len(view)), BLOCKS_AT_ONCE)
            reads.append([pool.submit(self._read_blocks, view, at, first, part) for part in parts])
            at, first = at + len(view), first + blocks_of(len(view))
        return reads

    def _read_blocks(self, view: memoryview, at: int, first: int, part: int) -> bool:
        """Read blocks of a tensor from `part` on. at: offset of the tensor. first: number of its first checksum."""
        for block in range(part, min(part + BLOCKS_AT_ONCE, blocks_of(len(view)))):
            begin = block * BLOCK_BYTES
            to = view[begin : begin + BLOCK_BYTES]
            count = os.preadv(self._descriptor, [to], at + begin)
            if count != len(to) or zlib.crc32(to) != self._checksums[first + block]:
                return False
        return True

    def close(self) -> None:
        """Close the file. Reads must have ended."""
        os.close(self._descriptor)


def reading_threads() -> ThreadPoolExecutor:
    """Threads to read with: as many as there are cores, within limits."""
    return ThreadPoolExecutor(min(MAX_THREADS, max(2, len(os.sched_getaffinity(0)))), "weights-reader")
