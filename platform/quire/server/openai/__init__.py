"""OpenAI's text API: completions, chat completions, models; and the native `/generate`.

A route (`routes`) parses the body, calls `prepare` of `chat` or `completions`, and then either `run`, which generates
to the end and returns the whole answer, or streams the job through `ChatStream` or `CompletionStream`.

`chat_prompt` renders messages, `chat_tools` and `chat_reasoning` derive constraints and parsers from the request,
`format` and `logprobs` build the parts of responses.
"""
