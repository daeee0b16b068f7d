"""Import paths of vLLM's `lora` package, for scripts written for vLLM.

`request` has `LoRARequest`, the adapter of a request; its definition is in `quire.types`.
"""
