"""Puts packed matrices of a cached file into a model, and has the file written if there is none."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from quire.engine.weights_cache.cache_folder import CacheFolder
from quire.engine.weights_cache.format import BadFile, ModuleEntry
from quire.engine.weights_cache.identity import identity, name_of
from quire.engine.weights_cache.reader import PackedFile, reading_threads
from quire.engine.weights_cache.writer import NotWritten, PackedWriter
from quire.errors import CheckpointError
from quire.isolation.idle_thread import run_when_idle
from quire_kernels.cpu.linear.stored import PackedData, TensorSize, expected_tensors, library_name, restored, room_for
from quire_kernels.ops import MatrixPlace

if TYPE_CHECKING:
    from quire.engine.loading.weight_source import WeightSource
    from quire_models.loading.quantized_files import WeightFiles
    from quire_models.modules.builder import ModuleBuilder

log = logging.getLogger(__name__)


class NoCachedWeights:
    """What `CachedWeights` is without `--weights-cache`."""

    def restore(self, model: nn.Module) -> Iterator[tuple[nn.Module, int]]:
        return iter(())

    def store(self, model: nn.Module) -> None:
        pass


class _Matrix(NamedTuple):
    """A matrix to read: its place in the model, and memory for it."""

    place: MatrixPlace
    stored: PackedData


class CachedWeights:
    """The cached file of one load.

    find_identity: what its content depends on, asked again after the load. Files are only written for what it is then.
    """

    def __init__(self, folder: CacheFolder, source: WeightSource, files: WeightFiles, builder: ModuleBuilder) -> None:
        self._folder, self._source, self._files, self._builder = folder, source, files.files, builder
        self._identity = self._find_identity()
        self._name = name_of(self._identity)
        self._is_complete = False

    def _find_identity(self) -> Mapping[str, Any]:
        source, builder = self._source, self._builder
        rank, stage = getattr(source.shard, "rank", None), getattr(source.shard, "stage", None)
        return identity(
            self._files,
            source.located.folder,
            source.config,
            builder.ops,
            str(builder.dtype),
            f"{rank} {stage}",
            library_name() or "",
        )

    def restore(self, model: nn.Module) -> Iterator[tuple[nn.Module, int]]:
        """Put matrices into modules of the model; yields these, and the elements of their matrices.

        A file that cannot be used is deleted, and the modules that have no matrices yet are not yielded.
        """
        began = time.monotonic()
        try:
            file = PackedFile(self._folder.path(self._name))
        except FileNotFoundError:
            return
        except BadFile as error:
            self._refuse(error)
            return
        try:
            yield from self._read(file, model)
        except (BadFile, ValueError, OSError) as error:
            self._refuse(error)
        else:
            self._is_complete = True
            self._folder.touch(self._name)
            log.info("packed weights are read after %.2f s", time.monotonic() - began)
        finally:
            file.close()

    def _refuse(self, error: Exception) -> None:
        log.warning("The cached weights %s are not used: %s.", self._folder.path(self._name), error)
        self._folder.remove(self._name)

    def _read(self, file: PackedFile, model: nn.Module) -> Iterator[tuple[nn.Module, int]]:
        if file.header.identity != self._identity:
            raise BadFile("it is for other weights")
        modules = dict(model.named_modules())
        expected = [(modules.get(entry.path), entry) for entry in file.header.modules]
        if len({id(module) for module, _ in expected}) < len(expected):
            raise BadFile("it has a module twice")
        plans = [(module, _plan(module, entry)) for module, entry in expected]
        wanted = [size for _, plan in plans for _, tensors in plan for size in tensors.values()]
        file.check_sizes([size.elements * size.dtype.itemsize for size in wanted])
        reads: list[tuple[Any, list[_Matrix]]] = []
        for (module, plan), (_, entry) in zip(plans, expected, strict=True):
            matrices = [
                _Matrix(place, PackedData(each.kind, each.numbers, {n: room_for(n, size) for n, size in sizes.items()}))
                for (place, sizes), each in zip(plan, entry.matrices, strict=True)
            ]
            reads.append((module, matrices))
        tensors = [tensor for _, matrices in reads for matrix in matrices for tensor in matrix.stored.tensors.values()]
        with reading_threads() as pool:
            results = iter(file.read(pool, tensors))
            try:
                for module, matrices in reads:
                    _wait([next(results) for matrix in matrices for _ in matrix.stored.tensors])
                    module.put_packed([restored(matrix.stored, matrix.place) for matrix in matrices])
                    yield module, sum(matrix.place.shape[0] * matrix.place.shape[1] for matrix in matrices)
            finally:
                pool.shutdown(cancel_futures=True)

    def store(self, model: nn.Module) -> None:
        """Begin to write the model's packed matrices to a file, unless they came from one."""
        if self._is_complete:
            return
        try:
            writer = PackedWriter(model, self._identity)
            if not writer.num_bytes:
                return
            refused = self._folder.make_room(writer.num_bytes)
        except OSError as error:
            refused = str(error)
        if refused is not None:
            log.warning("The packed weights are not cached: %s.", refused)
            return
        threading.Thread(target=self._write, args=(writer,), name="weights-writer", daemon=True).start()

    def _write(self, writer: PackedWriter) -> None:
        """Write the file, in a thread of its own."""
        run_when_idle()
        unfinished, began = self._folder.unfinished(self._name), time.monotonic()
        try:
            writer.write(unfinished)
            if self._find_identity() != self._identity:
                raise NotWritten  # the checkpoint has changed since it was read
            os.replace(unfinished, self._folder.path(self._name))
            log.info("packed weights (%d bytes) are cached after %.1f s", writer.num_bytes, time.monotonic() - began)
        except (NotWritten, CheckpointError):
            log.info("packed weights are not cached: the model was unloaded, or its files have changed")
        except OSError as error:
            log.warning("The packed weights cannot be cached: %s", error)
        finally:
            unfinished.unlink(missing_ok=True)


def packed_weights(source: WeightSource, files: WeightFiles, builder: ModuleBuilder) -> CachedWeights | NoCachedWeights:
    """The cached file for a load, if there is to be one: for weights of files, on a CPU whose kernels pack them."""
    config = source.config
    if config.weights_cache is None or builder.device.type != "cpu" or library_name() is None:
        return NoCachedWeights()
    folder = CacheFolder(Path(config.weights_cache).expanduser(), config.weights_cache_bytes)
    return CachedWeights(folder, source, files, builder)


def _plan(module: Any, entry: ModuleEntry) -> list[tuple[MatrixPlace, dict[str, TensorSize]]]:
    """The place and the tensors of each matrix of a module. Raises BadFile, ValueError."""
    if not hasattr(module, "places"):
        raise BadFile(f"the model has no matrices at {entry.path!r:.80}")
    places = module.places([matrix.outputs for matrix in entry.matrices])
    found = []
    for place, matrix in zip(places, entry.matrices, strict=True):
        wanted = expected_tensors(matrix.kind, matrix.numbers, place)
        if list(wanted) != list(matrix.tensors):
            raise BadFile(f"a matrix of {entry.path!r:.80} has other tensors")
        found.append((place, wanted))
    return found


def _wait(reads: list[list[Future[bool]]]) -> None:
    for read in reads:
        for part in read:
            if not part.result():
                raise BadFile("its content is damaged")
