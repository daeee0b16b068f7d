"""Requests with tools, and their calls as each tool parser's model writes them."""

from tool_texts import CALLS, TOOLS

from quire_plugins.tools import quire_tool_parsers

PARSERS = {parser.name: parser for parser in quire_tool_parsers()}


ASK = {"role": "user", "content": "Add and look."}


BASE = {"model": "tiny", "tools": TOOLS}


# --- calls on demand -------------------------------------------------------------------------------


def written(name, calls=CALLS, template=""):
    frames = [PARSERS[name].call_format(call.name, template) for call in calls]
    body = frames[0].separator.join(
        frame.before + call.arguments + frame.after for frame, call in zip(frames, calls, strict=True)
    )
    return frames[0].first + body + frames[0].last


HOST = f'[{{"name": "add", "arguments": {CALLS[0].arguments}}}, {{"name": "look", "arguments": {CALLS[1].arguments}}}]'
