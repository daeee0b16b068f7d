"""How many tokens of an answer are reasoning, counted as they come."""

from __future__ import annotations

from collections.abc import Sequence

from quire.text.channels import ChannelStream
from quire.text.decode import IncrementalDecoder
from quire.text.reasoning import ReasoningReader
from quire.text.tokenizer import Tokenizer


class ThinkingTokens:
    """Counts those of one completion. A token counts that begins and ends within the reasoning: no delimiter does."""

    def __init__(self, reader: ReasoningReader, tokenizer: Tokenizer, prompt: str = "") -> None:
        channels = reader.parser.channels
        self._stream = ChannelStream.after(prompt, channels) if channels else reader.stream()
        self._decoder = IncrementalDecoder(tokenizer, skip_special_tokens=False)
        self._seen = 0
        self.count = 0

    def upto(self, ids: Sequence[int]) -> int:
        """The count for a completion that has these tokens by now; looks at each of them once."""
        for token_id in ids[self._seen :]:
            if self._stream.over:
                break
            before = self._stream.inside
            self._stream.push(self._decoder.push((token_id,)))
            self.count += before and self._stream.inside
        self._seen = len(ids)
        return self.count
