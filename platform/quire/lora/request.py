"""`LoRARequest` under vLLM's import path."""

from quire.types import LoRARequest

__all__ = ["LoRARequest"]
