"""Import paths of vLLM's `entrypoints` package, for scripts written for vLLM.

`chat_utils` reads chat templates. The implementations live in `quire.text.chat`.
"""
