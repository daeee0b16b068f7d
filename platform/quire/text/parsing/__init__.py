"""Structure in generated text, found while it streams: stop strings, reasoning, channels and tool calls.

`scanner` finds stop strings and delimiters. `output_parser` combines the parsers of one request: `reasoning` splits off
the reasoning, and `tool_calls` finds calls in the rest, with the help of `tool_spans`. For formats that are series of
messages, `channels` splits the text first. Formats come from plugins as records; `default_tool_format` is the one
for models without a known format.
"""
