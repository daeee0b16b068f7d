"""Reads the configuration files of a tokenizer, in the formats of the Hugging Face hub.

They hold special tokens, added tokens, flags and chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire import files
from quire.errors import CheckpointError

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT_TEMPLATE = "default"
MAX_BYTES = 64 << 20
MAX_TEMPLATES = 100
MAX_ID_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """The contents of the configuration files.

    special: text of the named special tokens ("bos_token" → "<s>"). extra_special: further special tokens.
    added: tokens by id that tokenizer_config.json lists. templates: chat templates by name; "default" is used unless
    a request names another. tokenizer_class: its name in transformers. has_code: the folder has Python code of a
    tokenizer class. lower_case: lower texts before encoding, the `do_lower_case` of sentence-transformers.
    The tokens that begin and end a text are defined by tokenizer.json.
    """

    special: Mapping[str, str] = field(default_factory=dict)
    extra_special: tuple[str, ...] = ()
    added: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    split_special_tokens: bool = False
    templates: Mapping[str, str] = field(default_factory=dict)
    lower_case: bool = False
    has_code: bool = False
    tokenizer_class: str | None = None


def read_files(folder: Path) -> TokenizerFiles:
    """Read the files that exist. Raises `CheckpointError` with the name of a file that is not valid."""
    config = _json(folder / "tokenizer_config.json")
    special_map = {**_json(folder / "special_tokens_map.json"), **config}
    special = {name: text for name in NAMED_TOKENS if (text := _content(special_map.get(name))) is not None}
    return TokenizerFiles(
        special=special,
        extra_special=_extra(special_map.get("additional_special_tokens"), special_map.get("extra_special_tokens")),
        added=_added(folder, config.get("added_tokens_decoder")),
        split_special_tokens=config.get("split_special_tokens") is True,
        templates=_templates(folder, config),
        lower_case=_lower_case(folder),
        has_code=isinstance(config.get("auto_map"), Mapping) and "AutoTokenizer" in config["auto_map"],
        tokenizer_class=_content(config.get("tokenizer_class")),
    )


def _lower_case(folder: Path) -> bool:
    if not (folder / "modules.json").is_file():
        return False
    return _json(folder / "sentence_bert_config.json").get("do_lower_case") is True


def _json(path: Path) -> dict[str, Any]:
    try:
        value = files.read_json(path, MAX_BYTES)
    except files.FileRefused as error:
        if error.missing:
            return {}
        raise CheckpointError(f"{path} cannot be used: {error}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return value


def _content(value: Any) -> str | None:
    """Text of a special token, which is written as a string or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _extra(*sources: Any) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for source in sources:
        values = source.values() if isinstance(source, Mapping) else source if isinstance(source, list) else ()
        found.update(dict.fromkeys(text for value in values if (text := _content(value)) is not None))
    return tuple(found)


def _added(folder: Path, value: Any) -> dict[int, Mapping[str, Any]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder must be an object.")
    added = {}
    for key, token in value.items():
        if not _is_id(key) or not isinstance(token, Mapping) or _content(token) is None:
            raise CheckpointError(
                f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has a wrong entry {key!r}."
            )
        added[int(key)] = token
    return dict(sorted(added.items()))


def _is_id(key: Any) -> bool:
    return isinstance(key, str) and key.isdecimal() and len(key) <= MAX_ID_DIGITS


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name. Separate template files take precedence over tokenizer_config.json."""
    templates: dict[str, str] = {}
    for source in (config.get("chat_template"), _json(folder / "chat_template.json").get("chat_template")):
        if isinstance(source, str):
            templates[DEFAULT_TEMPLATE] = source
        elif isinstance(source, list):
            templates.update(
                (str(entry["name"]), str(entry["template"]))
                for entry in source
                if isinstance(entry, Mapping) and "name" in entry and "template" in entry
            )
    home, additional = files.root_of(folder), sorted((folder / "additional_chat_templates").glob("*.jinja"))
    candidates = ((path.stem, path) for path in (*additional[:MAX_TEMPLATES], folder / "chat_template.jinja"))
    for name, path in candidates:
        try:
            text = files.read_text(path, MAX_BYTES, home)
        except files.FileRefused as error:
            if error.missing:
                continue
            raise CheckpointError(f"{path} cannot be used: {error}.") from error
        templates[DEFAULT_TEMPLATE if name == "chat_template" else name] = text
    return templates


def no_tokenizer_error(folder: Path) -> CheckpointError:
    """The error for a folder without a tokenizer."""
    return CheckpointError(
        f"{folder} has no tokenizer: expected tokenizer.json, or tokenizer.model or vocab files that transformers can"
        " read. Name another folder with --tokenizer."
    )
