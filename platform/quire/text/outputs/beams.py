"""Outputs of beam searches with vLLM's names: each sequence contains the prompt and its continuation."""

from __future__ import annotations

from dataclasses import dataclass

from quire.text.outputs.outputs import RequestOutput
from quire.text.tokenizer.tokenizer import Tokenizer


@dataclass(kw_only=True)
class BeamSearchSequence:
    """One beam. tokens and text begin with the prompt; cum_logprob is the sum over the generated tokens."""

    tokens: list[int]
    text: str
    cum_logprob: float | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(kw_only=True)
class BeamSearchOutput:
    """The beams of a prompt, best first."""

    sequences: list[BeamSearchSequence]


def beam_output(output: RequestOutput, tokenizer: Tokenizer) -> BeamSearchOutput:
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
