"""Outputs of a beam search, under vLLM's names: each sequence holds the prompt and what follows it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.text.outputs import RequestOutput
from quire.text.tokenizer import Tokenizer


@dataclass(kw_only=True)
class BeamSearchSequence:
    """One beam. tokens and text begin with the prompt's; cum_logprob is of the rest."""

    tokens: list[int]
    text: str
    cum_logprob: float | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(kw_only=True)
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]


def beam_output(output: RequestOutput, tokenizer: Tokenizer) -> BeamSearchOutput:
    """The beams of a finished request."""
    prompt = output.prompt if output.prompt is not None else tokenizer.decode(output.prompt_token_ids)
    return BeamSearchOutput(
        sequences=[
            BeamSearchSequence(
                tokens=output.prompt_token_ids + beam.token_ids,
                text=prompt + beam.text,
                cum_logprob=beam.cumulative_logprob,
                finish_reason=beam.finish_reason,
                stop_reason=beam.stop_reason,
            )
            for beam in output.outputs
        ]
    )
