"""What a router outside knows of a prefix cache from its events."""

from quire.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored


class KvCacheView:
    """Applies events in order. blocks: hash of a cached block → (hash of its parent, its tokens, adapters, extra)."""

    def __init__(self):
        self.blocks = {}
        self.num_events = 0

    def apply(self, events):
        for event in events:
            self.num_events += 1
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for number in event.block_hashes:
                        del self.blocks[number]
                case AllBlocksCleared():
                    self.blocks.clear()

    def _store(self, event):
        assert len(event.token_ids) == event.block_size * len(event.block_hashes)
        parent = event.parent_block_hash
        extra = event.extra_keys or [None] * len(event.block_hashes)
        for i, number in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[i * event.block_size : (i + 1) * event.block_size])
            assert number not in self.blocks
            self.blocks[number] = parent, tokens, event.lora_name, extra[i]
            parent = number

    def text(self, number):
        """All tokens up to the end of a block."""
        parent, tokens, *_ = self.blocks[number]
        return (() if parent is None else self.text(parent)) + tokens
