"""Claude Code, unmodified and non-interactive, against a scripted model: a tool call goes round.

    python tests/clients/claude_code.py [COMMAND]

COMMAND: the executable `claude`; by default npm installs it into a temporary folder. The model is a script that calls
the tool Read and then says what is in the file. Between are the routes of the plugin `anthropic`, a socket and
the client. Prints how much of the second prompt was in the first one already, where the prefix cache has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

HELPERS = Path(__file__).parents[1] / "helpers"
sys.path[:0] = [str(HELPERS / folder) for folder in ("fakes", "loads", "servers")]
from api_rig import api_app  # noqa: E402
from live_server import live  # noqa: E402
from scripted_server import Scripted  # noqa: E402

from quire_plugins.tools import quire_tool_parsers  # noqa: E402

SECRET = "The ferry leaves at 07:42."
TIMEOUT_S = 120


def common_prefix(first: str, second: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


async def run(command: str, folder: Path) -> int:
    """Ask Claude Code for the contents of a file; 0 if the answer has them."""
    (folder / "ferry.txt").write_text(SECRET)
    call = {"name": "Read", "arguments": {"file_path": str(folder / "ferry.txt")}}
    script = Scripted(f"I read it.\n<tool_call>\n{json.dumps(call)}\n</tool_call>", f"It says: {SECRET}", per_step=8)
    script.infos = tuple(with_context(info) for info in script.infos)
    hermes = next(parser for parser in quire_tool_parsers() if parser.name == "hermes")
    options = {"anthropic": {"fallback": "*"}}
    app = api_app(folder, script, ["anthropic"], options, tool_parser=hermes)
    async with live(app) as (url, _):
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "CLAUDE"))},
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "tiny",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "HOME": str(folder),
        }
        words = [command, "-p", "What does ferry.txt say?", "--allowedTools", "Read", "--output-format", "json"]
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    print(out.decode()[-2000:], err.decode()[-2000:])
    prompts = [script.prompt(number) for number in range(len(script.requests))]
    print(f"{len(prompts)} requests, prompts of {[len(prompt) for prompt in prompts]} characters")
    if len(prompts) > 1:
        print(f"the second begins with {common_prefix(*prompts[:2])} characters of the first")
    return 0 if process.returncode == 0 and SECRET in out.decode() and SECRET in prompts[-1] else 1


def with_context(info):
    """The model with room for the prompts of a coding agent."""
    return replace(info, max_model_len=1 << 20, num_pages=1 << 16)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        if len(sys.argv) > 1:
            command = sys.argv[1]
        else:
            install = ["npm", "install", "--silent", "--prefix", temporary, "@anthropic-ai/claude-code"]
            subprocess.run(install, check=True)
            command = str(folder / "node_modules" / ".bin" / "claude")
        work = folder / "work"
        work.mkdir()
        sys.exit(asyncio.run(run(command, work)))
