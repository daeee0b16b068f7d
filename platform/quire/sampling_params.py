"""Parameters of sampling under the import path that vLLM has for them."""

from quire.sampling import BeamSearchParams, SamplingParams
from quire.structured import GuidedDecodingParams, StructuredOutputsParams

__all__ = ["BeamSearchParams", "GuidedDecodingParams", "SamplingParams", "StructuredOutputsParams"]
