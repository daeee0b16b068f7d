"""Codex, unmodified and non-interactive, against a scripted model: a tool call goes round.

    python tests/clients/codex_exec.py [COMMAND]

COMMAND: the executable `codex`; by default npm installs it into a temporary folder. The model is a script that calls
the tool with which Codex runs commands and then says what the command printed. Between are the routes of the plugin
`responses`, a socket and the client.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HELPERS = Path(__file__).parents[1] / "helpers"
sys.path[:0] = [str(HELPERS / folder) for folder in ("fakes", "loads", "servers")]
from api_rig import api_app  # noqa: E402
from live_server import live  # noqa: E402
from scripted_server import Scripted  # noqa: E402

from quire_plugins.tools import quire_tool_parsers  # noqa: E402

SECRET = "The ferry leaves at 07:42."
TIMEOUT_S = 120
PROVIDER = 'model_providers.quire={{name="Quire",base_url="{url}/v1",wire_api="responses"}}'


async def run(command: str, folder: Path) -> int:
    """Ask Codex for the contents of a file; 0 if the answer has them."""
    (folder / "ferry.txt").write_text(SECRET)
    call = {"name": "exec_command", "arguments": {"cmd": "cat ferry.txt"}}
    script = Scripted(f"I read it.\n<tool_call>\n{json.dumps(call)}\n</tool_call>", f"It says: {SECRET}", per_step=8)
    script.infos = tuple(replace(info, max_model_len=1 << 20, num_pages=1 << 16) for info in script.infos)
    hermes = next(parser for parser in quire_tool_parsers() if parser.name == "hermes")
    app = api_app(folder, script, ["responses"], tool_parser=hermes)
    async with live(app) as (url, _):
        settings = [PROVIDER.format(url=url), 'model_provider="quire"', 'model="tiny"']
        words = [command, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"]
        words += [word for setting in settings for word in ("-c", setting)]
        process = await asyncio.create_subprocess_exec(
            *words,
            "What does ferry.txt say?",
            cwd=folder,
            env={**os.environ, "HOME": str(folder), "CODEX_HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    print(out.decode()[-2000:], err.decode()[-4000:])
    prompts = [script.prompt(number) for number in range(len(script.requests))]
    print(f"{len(prompts)} requests, prompts of {[len(prompt) for prompt in prompts]} characters")
    return 0 if process.returncode == 0 and SECRET in out.decode() and SECRET in prompts[-1] else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        if len(sys.argv) > 1:
            command = sys.argv[1]
        else:
            install = ["npm", "install", "--silent", "--prefix", temporary, "@openai/codex"]
            subprocess.run(install, check=True)
            command = str(folder / "node_modules" / ".bin" / "codex")
        work = folder / "work"
        work.mkdir()
        sys.exit(asyncio.run(run(command, work)))
