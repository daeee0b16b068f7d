"""Pictures in messages: from files or URLs to parts of a message's content."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from quire import files
from quire.errors import ConfigError

MAX_BYTES = 64 << 20
"""Size limit of a picture's file in bytes. The server has limits of its own."""

SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
)
"""First bytes of picture files, and the subtype of the media type."""

_MENTION = re.compile(r"""(?<!\S)@(?:"([^"\n]+)"|'([^'\n]+)'|(\S+))""")


def content_part(picture: str) -> dict[str, Any]:
    """The content part of a picture: a path, or a URL (http, https, data), which the server fetches.

    Raises ConfigError for a file that cannot be read or is not a picture.
    """
    url = picture if re.match(r"(https?://|data:)", picture) else _data_url(Path(picture).expanduser())
    return {"type": "image_url", "image_url": {"url": url}}


def mentioned(text: str) -> tuple[str, list[str]]:
    """The text without the pictures that it mentions, and their paths.

    A picture is mentioned as @PATH, @"PATH" or @'PATH' if there is such a file. Other words with @ stay in the text.
    """
    found: list[str] = []

    def take(match: re.Match[str]) -> str:
        path = next(filter(None, match.groups()))
        if not Path(path).expanduser().is_file():
            return match.group()
        found.append(path)
        return ""

    rest = _MENTION.sub(take, text)
    return (re.sub(r"[ \t]{2,}", " ", rest).strip() if found else text), found


def _data_url(path: Path) -> str:
    try:
        content = files.read_bytes(path, MAX_BYTES, root=Path(path.resolve().anchor))
    except files.FileRefused as error:
        raise ConfigError(f"The picture {str(path)!r} cannot be used: {error}.") from error
    kind = next((kind for signature, kind in SIGNATURES if content.startswith(signature)), None)
    if kind is None and content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        known = ", ".join(sorted({kind for _, kind in SIGNATURES} | {"webp"}))
        raise ConfigError(f"{str(path)!r} is not a picture in a format that is known here ({known}).")
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
