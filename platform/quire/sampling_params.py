"""Sampling parameters, with vLLM's import path."""

from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.params.structured import GuidedDecodingParams, StructuredOutputsParams

__all__ = ["BeamSearchParams", "GuidedDecodingParams", "SamplingParams", "StructuredOutputsParams"]
