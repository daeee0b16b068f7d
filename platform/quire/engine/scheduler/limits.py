"""The limits of the scheduler, from a model's settings, and the check of a request's lengths against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import BadRequest
from quire.settings.model_config import ModelConfig
from quire.types import EncoderInputInfo, Prompt, Request
from quire.types.encoder_input import unused_positions

if TYPE_CHECKING:
    from quire.engine.loading.load import LoadedModel


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Limits of one engine.

    max_model_len: prompt and output together. max_num_seqs: running at once. max_num_batched_tokens: computed per
    step. max_num_queued_reqs: accepted and unfinished. chunked_prefill: a prompt may be split over steps. preemption:
    "auto" and "swap" use host pages while there are some. eos_ids: end-of-text tokens. seed: for requests without one.
    bidirectional_media: each medium is computed in a single step; media_in_one: even if its beginning is in the prefix
    cache. num_divisions: plans in flight that running seqs are divided among.
    """

    max_model_len: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_num_queued_reqs: int = 2048
    chunked_prefill: bool = True
    preemption: str = "auto"
    eos_ids: frozenset[int] = frozenset()
    seed: int = 0
    bidirectional_media: bool = False
    media_in_one: bool = False
    encoder_input: EncoderInputInfo | None = None
    num_divisions: int = 1

    @classmethod
    def from_config(
        cls, config: ModelConfig, loaded: LoadedModel, *, max_model_len: int, max_tokens: int, num_divisions: int = 1
    ) -> SchedulerLimits:
        """max_tokens: of a step."""
        bidirectional_media = loaded.decoder.bidirectional_media
        return cls(
            max_model_len=max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=max_tokens,
            max_num_queued_reqs=config.max_num_queued_reqs,
            chunked_prefill=config.enable_chunked_prefill and not loaded.decoder.non_causal,
            preemption=config.preemption,
            eos_ids=frozenset(loaded.eos_ids),
            seed=config.seed,
            bidirectional_media=bidirectional_media,
            media_in_one=bidirectional_media and config.batch_invariant,
            encoder_input=loaded.info.encoder_input,
            num_divisions=num_divisions,
        )

    def num_unshared_tokens(self, prompt: Prompt) -> int:
        """Tokens at the end of a prompt that each of several outputs computes by itself: the last, to sample from it,
        or the whole medium that it belongs to."""
        last = prompt.media[-1] if prompt.media and self.bidirectional_media else None
        ends_with_it = last is not None and last.start + last.length == len(prompt.token_ids)
        return last.length if last is not None and ends_with_it else 1

    def _check_media(self, prompt: Prompt) -> None:
        longest = max((medium.length for medium in prompt.media), default=0)
        if self.bidirectional_media and longest > self.max_num_batched_tokens:
            raise BadRequest(
                f"The prompt has a medium of {longest} tokens, which must be computed in one step; at most "
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) can be.",
                "prompt",
            )

    def max_tokens_for(self, request: Request, num_slots: int) -> int:
        """Tokens that a seq of this request may reach, prompt included. num_slots: of the page pool, one per token.

        Raises BadRequest if the prompt, a medium of it, or the requested output can never fit.
        """
        prompt_len, max_tokens = len(request.prompt.token_ids), request.params.max_tokens
        if prompt_len == 0:
            raise BadRequest("The prompt has no tokens; at least one is needed.", "prompt")
        limit = self.max_model_len - unused_positions(self.encoder_input, request.prompt.media)
        if prompt_len + (max_tokens != 0) > limit:
            error = f"The prompt has {request.prompt.size}; with the output at most {limit} fit this model."
            raise BadRequest(error, "prompt")
        if not self.chunked_prefill and prompt_len > self.max_num_batched_tokens:
            raise BadRequest(
                f"The prompt has {request.prompt.size}; without chunked prefill at most "
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) can be computed.",
                "prompt",
            )
        self._check_media(request.prompt)
        context = min(limit, num_slots + 1)  # the last token generated is never computed
        longest = context if max_tokens is None else min(limit, prompt_len + max_tokens)
        if longest > context or prompt_len > num_slots:
            raise BadRequest(
                f"{prompt_len} prompt tokens and at most {max_tokens} new ones can never fit the KV cache, "
                f"which has {num_slots} slots.",
                "max_tokens",
            )
        return longest
