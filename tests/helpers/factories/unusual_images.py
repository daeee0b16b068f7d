"""Image files, good, odd and broken, for tests; no libraries but Pillow are asked what they mean."""

import io
import struct
import zlib


def encoded(image, form="PNG", **settings):
    """The bytes of a file."""
    data = io.BytesIO()
    image.save(data, form, **settings)
    return data.getvalue()


def header_of_png(width, height):
    """A whole PNG whose header claims a size that its data do not have."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(bytes(64)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")
