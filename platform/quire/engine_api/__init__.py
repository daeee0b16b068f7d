"""An engine in this process that the caller runs step by step or from asyncio, with the names and methods of vLLM.

`EngineArgs` (args) holds the arguments of `quire.llm.llm.LLM` and parses them from command lines. `LLMEngine` (engine)
adds requests to an `LLM` and steps it. `AsyncLLMEngine` (async_engine) steps an `LLMEngine` in a thread while there are
requests, and passes each output to the task that waits for it.
"""
