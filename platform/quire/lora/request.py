"""`LoRARequest` under the import path that vLLM has for it."""

from quire.types import LoRARequest

__all__ = ["LoRARequest"]
