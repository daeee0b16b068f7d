"""The built-in commands by name. None is imported before it runs, so that `platform --help` is fast."""

from __future__ import annotations

from collections.abc import Mapping

_LOCAL = "quire.commands.local_models.commands"

BUILT_IN: Mapping[str, tuple[str, str, str]] = {
    "serve": ("quire.commands.serve", "COMMAND", "serve models over HTTP (OpenAI API)"),
    "chat": ("quire.commands.chat.command", "CHAT", "chat with a running server"),
    "complete": ("quire.commands.chat.command", "COMPLETE", "complete text with a running server"),
    "pull": (_LOCAL, "PULL", "download a model, or a GGUF file of one"),
    "list": (_LOCAL, "LIST", "list the models that were downloaded"),
    "show": (_LOCAL, "SHOW", "describe a model"),
    "rm": (_LOCAL, "RM", "remove models that were downloaded"),
    "plugins": ("quire.commands.plugins", "COMMAND", "list plugins, what each provides, and how to enable it"),
    "doctor": (
        "quire.commands.doctor",
        "COMMAND",
        "show this machine, and which implementation of each operation runs and why",
    ),
    "top": ("quire.commands.top.command", "COMMAND", "show the load of a running server"),
    "usage": ("quire.commands.usage", "COMMAND", "show what the requests of a running server used"),
    "run-batch": ("quire.commands.run_batch", "COMMAND", "process a file of requests without a server"),
    "deploy": ("quire.ray.command", "COMMAND", "run the server on a cluster of Ray"),
    "completion": ("quire.commands.completion.command", "COMMAND", "print the completion script of a shell"),
}
"""Module, attribute and help of each built-in command; it is imported when it runs."""

CLIENTS = ("chat", "complete", "top", "usage", "pull", "list", "rm", "deploy")
"""Commands that use a running server or no model at all: plugins are not loaded, and have no flags."""

WITHOUT_OPTIONS = (*CLIENTS, "plugins", "doctor", "show", "completion")
"""Commands that run no model, and therefore have no plugin options."""
