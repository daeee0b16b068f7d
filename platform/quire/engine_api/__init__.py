"""An engine in this process, driven step by step or from asyncio: `EngineArgs`, `LLMEngine`, `AsyncLLMEngine`.

Names and methods are those of vLLM; all three stand on `quire.llm.LLM`.
"""
