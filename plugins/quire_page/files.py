"""The files of the page: their names, and their content as it is served."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

INDEX = "/"
FOLDER = Path(__file__).parent / "static"
NAMES = (
    "app/answers.js",
    "app/chat_body.js",
    "app/conversation.js",
    "app/events.js",
    "app/frames.js",
    "app/main.js",
    "app/metrics.js",
    "app/numbers.js",
    "app/pictures.js",
    "app/recording.js",
    "app/requests.js",
    "app/server.js",
    "app/session.js",
    "app/snippets.js",
    "app/theme.js",
    "icon.svg",
    "index.html",
    "parts/chart.js",
    "parts/copy.js",
    "parts/dialogs.js",
    "parts/fields.js",
    "parts/running.js",
    "parts/tokens.js",
    "style/base.css",
    "style/chat.css",
    "style/controls.css",
    "style/narrow.css",
    "style/tables.css",
    "style/views.css",
    "vendor/LICENSE-htm.txt",
    "vendor/LICENSE-preact.txt",
    "vendor/LICENSE-uplot.txt",
    "vendor/preact-htm.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
    "views/chat.js",
    "views/chat_settings.js",
    "views/completion.js",
    "views/composer.js",
    "views/embeddings.js",
    "views/leaving.js",
    "views/live.js",
    "views/load_form.js",
    "views/load_model.js",
    "views/model_settings.js",
    "views/models.js",
    "views/plugins.js",
    "views/ranking.js",
    "views/turn.js",
)
"""Every file that is served, relative to `FOLDER`: a request for another name finds nothing."""

MEDIA_TYPES: Mapping[str, str] = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file in memory. etag: a quoted hash of the content, for the headers ETag and If-None-Match."""

    content: bytes
    media_type: str
    etag: str


def read_files() -> Mapping[str, PageFile]:
    """All files by name. Raises OSError if one is missing."""
    return {name: _read(name) for name in NAMES}


def _read(name: str) -> PageFile:
    content = (FOLDER / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    return PageFile(content, MEDIA_TYPES[PurePosixPath(name).suffix], f'"{digest}"')
