"""Keys of pages by content, so that other processes and later ones find them.

The key of a page is a digest of the model's scope and of the page's hash. The scope covers all that determines keys
and values besides the prompt: the checkpoint's files, how they are computed, and how pages are laid out. The hash of a
page (`page_pool`) covers its tokens and those before it, media, the cache salt and the adapters. Within a process
adapters count with their revisions, in keys with a digest of their files in the place of name and revision.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from quire.engine.adapters.folder import Fingerprint, fingerprint
from quire.engine.adapters.revision import AdapterRevision
from quire.engine.kv_tiers.digests import Unreadable, content_digest
from quire.engine.loading.load import LoadedModel
from quire.engine.scheduler.seq import Seq, SeqGroup
from quire.errors import BadRequest
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Request, WeightedAdapter

LAYOUT_VERSION = 1
"""Of what a page holds; counted up when the order of the bytes or their meaning changes."""

KEY_BYTES = 16
MAX_CHAINS = 1024
"""Sequences with adapters whose hashes by content are kept."""

_PART = re.compile(r"-\d{5}-of-\d{5}$")


def weight_paths(config: ModelConfig, loaded: LoadedModel) -> list[Path]:
    """The folder of a model, and the GGUF files that it was loaded from. Raises Unreadable if they are not known."""
    folder, named = Path(loaded.info.folder), Path(config.model)
    if config.load_format == "dummy":
        raise Unreadable("its weights are random")
    if named.suffix == ".gguf" and named.is_file():
        stem = _PART.sub("", named.stem)
        same = [each for each in named.parent.glob("*.gguf") if _PART.sub("", each.stem) == stem]
        return [folder, *sorted(same)]
    if not any(each.suffix in (".safetensors", ".bin", ".pt", ".pth") for each in folder.iterdir()):
        raise Unreadable("its weights are not in its folder")
    return [folder]


def scope_digest(config: ModelConfig, loaded: LoadedModel, weights: bytes) -> bytes:
    """The scope of a model's pages. weights: digest of its files."""
    try:
        release = version("quire-serve")
    except PackageNotFoundError:
        release = ""
    settings = (
        *(LAYOUT_VERSION, release, config.page_size, loaded.kv_dtype, loaded.dtype, loaded.device.type),
        *(loaded.info.architecture, loaded.info.max_model_len, config.model_impl, config.attention_implementation),
        *(config.quantization, config.quantization_group_size, config.quantization_ignore, config.activation_bits),
        config.batch_invariant,
        loaded.decoder.kv_shapes,
    )
    return blake2b(repr(settings).encode() + weights, digest_size=32).digest()


class PageKeys:
    """Keys of the pages of one model's sequences. known: the adapters that sequences may use.

    scope: None until the digest of the weights is known; there are no keys before.
    """

    def __init__(self, page_size: int, known: Mapping[AdapterRef, AdapterRevision]) -> None:
        self._page_size, self._known = page_size, known
        self.scope: bytes | None = None
        self._contents: dict[AdapterRef, tuple[AdapterRevision, bytes, Fingerprint]] = {}
        self._chains: OrderedDict[int, Seq] = OrderedDict()

    def read_adapters(self, request: Request) -> bool:
        """Take digests of the adapters of a request, in a thread; False if one cannot be used in keys."""
        for use in request.adapters:
            if use.ref in self._contents:
                continue
            revision = self._known.get(use.ref)
            if revision is None:
                return False
            try:
                before = fingerprint(str(revision.path))
                digest = content_digest(revision.path)
                if fingerprint(str(revision.path)) != before:
                    return False
            except (BadRequest, Unreadable):  # the request fails for that, or does without keys
                return False
            self._contents[use.ref] = (revision, digest, before)
            for ref in [ref for ref in self._contents if ref not in self._known]:
                self._contents.pop(ref, None)
        return True

    def by_content(self, request: Request) -> Request | None:
        """The request with digests in the place of its adapters' names; None if they are not those that were read."""
        uses = []
        for use in request.adapters:
            revision, digest, seen = self._contents.get(use.ref, (None, b"", ()))
            if revision is None or revision.fingerprint not in (None, seen):
                return None
            uses.append(WeightedAdapter(AdapterRef(name=digest.hex()), use.weight))
        return replace(request, adapters=tuple(uses))

    def are_read(self, request: Request) -> bool:
        """Whether the weights of its adapters in use are those that the digests are of."""
        for use in request.adapters:
            revision, _, seen = self._contents.get(use.ref, (None, b"", ()))
            if revision is None or revision.fingerprint is None or revision.fingerprint != seen:
                return False
        return True

    def key(self, seq: Seq, page: int) -> str | None:
        """The key of a full page of a seq; None if there is none. Called by the thread of the steps."""
        if self.scope is None:
            return None
        request = seq.group.request
        if not request.adapters:
            return page_key(self.scope, seq.page_hash(page, self._page_size))
        chain = self._chains.get(seq.id)
        if chain is None or chain.group.request.id != request.id:
            by_content = self.by_content(request) if self.are_read(request) else None
            if by_content is None:
                return None
            chain = self._chains[seq.id] = seq_of(by_content, seq.tokens)
            if len(self._chains) > MAX_CHAINS:
                self._chains.popitem(last=False)
        return page_key(self.scope, chain.page_hash(page, self._page_size))

    def of_prompt(self, request: Request, count: int) -> list[str] | None:
        """The keys of the first pages of a prompt, in any thread."""
        by_content = self.by_content(request) if request.adapters else request
        if self.scope is None or by_content is None:
            return None
        seq = seq_of(by_content, list(request.prompt.token_ids))
        return [page_key(self.scope, seq.page_hash(i, self._page_size)) for i in range(count)]


def page_key(scope: bytes, page_hash: bytes) -> str:
    return blake2b(scope + page_hash, digest_size=KEY_BYTES).hexdigest()


def seq_of(request: Request, tokens: list[int]) -> Seq:
    """A seq for the hashes of its pages, which is in no scheduler."""
    group = SeqGroup(request, arrival=0, seed=0)
    return Seq(-1, group, 0, tokens, max_len=0, min_len=0, stop_ids=frozenset(), eos_ids=frozenset())
