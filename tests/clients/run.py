"""Runs clients that others wrote, unmodified, against a demo server, and prints which pass.

    python tests/clients/run.py [NAME …] [--folder FOLDER]

Each gets an environment of its own (a virtual one, or a folder of npm packages) in a temporary folder, or in FOLDER,
where the next run finds it again. Needs the network for packages only; not part of the test suite.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "helpers" / "fakes"))
from serving import serving  # noqa: E402

CLIENTS = {
    "langchain_chat.py": ["langchain-anthropic", "langchain-ollama", "langchain-openai"],
    "langchain_cohere_rerank.py": ["langchain-cohere"],
    "litellm_providers.py": ["litellm"],
    "pydantic_ai_agent.py": ["pydantic-ai-slim[anthropic,openai]"],
    "guidance_vllm_model.py": ["guidance", "openai"],
    "outlines_from_sglang.py": ["outlines", "openai"],
    "lm_eval_remote_tokenizer.py": ["lm-eval[api]"],
    "ai_sdk_generate_object.mjs": ["ai", "@ai-sdk/openai-compatible", "zod"],
    "ai_sdk_tools.mjs": ["ai", "@ai-sdk/anthropic", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod"],
    "anthropic_js_messages.mjs": ["@anthropic-ai/sdk"],
    "openai_js_responses.mjs": ["openai", "ai", "@ai-sdk/openai", "zod"],
}
MODELS = ("demo-chat", "demo-embed", "demo-rerank", "demo-tools")
SERVED = (*(f"{name}={name}" for name in MODELS), "--kv-cache-memory-bytes", "128M", "--enable-auto-tool-choice")
TIMEOUT_S = 300


def prepared(folder: Path, script: str) -> list[str]:
    """The command for a script; what it needs is installed first, unless it was."""
    environment, packages = folder / Path(script).stem, CLIENTS[script]
    done = environment / ".done"
    if script.endswith(".py"):
        command = [str(environment / "bin" / "python"), str(HERE / script)]
        if not done.exists():
            venv.create(environment, with_pip=True)
            subprocess.run([command[0], "-m", "pip", "install", "-q", *packages], check=True)
    else:
        copy = environment / script  # node looks for packages beside the script
        command = ["node", str(copy)]
        if not done.exists():
            environment.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "install", "--silent", "--prefix", str(environment), *packages], check=True)
        copy.write_text((HERE / script).read_text())
    done.touch()
    return command


def passes(command: list[str], url: str) -> tuple[bool, str]:
    """Whether a client ends well, and the last line that it says."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            [*command, url], capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"not done within {TIMEOUT_S} s"
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode:
        said = [line for line in said if "Error" in line] or said
    return done.returncode == 0, said[-1] if said else ""


def run(names: list[str], folder: Path) -> int:
    """Run these; 0 if all pass."""
    commands = {name: prepared(folder, name) for name in CLIENTS if not names or Path(name).stem in names}
    failed = 0
    with serving(*SERVED) as server:
        for name, command in commands.items():
            good, said = passes(command, server.url)
            failed += not good
            print(f"{'pass' if good else 'FAIL'}  {Path(name).stem:28} {said:.140}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(Path(name).stem for name in CLIENTS))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if unknown := {*given.names}.difference(Path(name).stem for name in CLIENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(run(given.names, given.folder or Path(temporary)))
