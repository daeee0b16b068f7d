"""Text for terminals: control characters of text that others wrote are made visible, so that they control nothing."""

from __future__ import annotations

_VISIBLE = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"},
    **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)},  # surrogates, which no encoding can write
}


def visible(text: str) -> str:
    """The text with escapes in place of surrogates, and of control characters other than line feeds and tabs."""
    return text.translate(_VISIBLE)


def file_size(num_bytes: float) -> str:
    """A size in decimal units, as shops and hubs state them: 988 MB."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"
