"""Media in data: URLs and in files: what they hold, and where files may lie."""

import base64
import contextlib
import os
from urllib.parse import quote

import pytest

from quire.errors import BadRequest, TooLarge, Unprocessable
from quire.media.fetching import local
from quire.media.fetching.local import read_base64, read_data_url, read_file, read_file_url, read_path
from quire.media.limits import Budget

DATA = bytes(range(256))
BASE64 = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    ("url", "data"),
    [
        (f"data:image/png;base64,{BASE64}", DATA),
        (f"data:;base64,{BASE64}", DATA),
        (f"DATA:image/png;charset=x;BASE64,{BASE64}", DATA),
        (f"data:;base64,{BASE64.rstrip('=')}", DATA),
        (f"data:;base64,{BASE64[:40]}\n {BASE64[40:]}", DATA),
        ("data:;base64,%2B%2F8%3D", b"\xfb\xff"),
        ("data:text/plain,a%20b%00%ff", b"a b\x00\xff"),
        ("data:,", b""),
        ("data:;base64,", b""),
    ],
)
def test_a_data_url_holds_base64_or_percent_signs(url, data):
    assert read_data_url(url, Budget(len(data))) == data
    if data:
        with pytest.raises(TooLarge, match=f"at most {len(data) - 1} bytes"):
            read_data_url(url, Budget(len(data) - 1))


@pytest.mark.parametrize("text", ["AA*A", "A", "AAAAA", "A=A=", "AA-_", "日本"])
def test_broken_base64_is_refused(text):
    with pytest.raises(BadRequest, match="base64 of the medium is broken"):
        read_base64(text, Budget(100))


def test_a_data_url_without_data_is_refused():
    with pytest.raises(BadRequest, match="no comma"):
        read_data_url("data:image/png;base64", Budget(100))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "allowed"
    (folder / "in").mkdir(parents=True)
    (folder / "a b.png").write_bytes(DATA)
    (folder / "in" / "c").write_bytes(b"c")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "allowed-too").mkdir()
    (tmp_path / "allowed-too" / "d").write_bytes(b"d")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "out").symlink_to(tmp_path)
    (folder / "inner").symlink_to("in/c")
    (folder / "circle").symlink_to("circle")
    return folder


def test_files_under_the_folder_are_read_links_within_it_too(folder):
    for name, data in (("a%20b.png", DATA), ("in/c", b"c"), ("in/../in/c", b"c"), ("inner", b"c")):
        assert read_file_url(f"file://{folder}/{name}", folder, Budget(256)) == data
    assert read_file_url(f"file://localhost{folder}/in/c", folder, Budget(256)) == b"c"


@pytest.mark.parametrize("name", ["../secret", "%2e%2e/secret", "link", "out/secret", "../allowed-too/d", "../nothing"])
def test_files_elsewhere_are_refused_whatever_leads_there(folder, name):
    with pytest.raises(BadRequest, match="is not under the server's --allowed-local-media-path"):
        read_file_url(f"file://{folder}/{name}", folder, Budget(256))


def test_no_file_is_read_where_no_folder_is_allowed(folder):
    with pytest.raises(BadRequest, match="file: URLs are not allowed"):
        read_file_url(f"file://{folder}/in/c", None, Budget(256))


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("none", Unprocessable, "No such file"),
        ("in", Unprocessable, "Is a directory|not that of a file"),
        ("in/c/d", Unprocessable, "Not a directory"),
        ("circle", (BadRequest, Unprocessable), "no valid path|cannot be read"),
        ("%00", BadRequest, "no valid path"),
        ("x" * 300, Unprocessable, "too long"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(folder, name, error, said):
    with pytest.raises(error, match=said):
        read_file_url(f"file://{folder}/{name}", folder, Budget(256))


def test_a_file_url_names_no_host(folder):
    with pytest.raises(BadRequest, match="has a path but no host"):
        read_file_url(f"file://else.example{folder}/in/c", folder, Budget(256))
    with pytest.raises(BadRequest, match="no valid path"):
        read_file_url(f"file://[::1{folder}/in/c", folder, Budget(256))


def test_what_is_no_file_is_not_kept_open(folder):
    before = os.listdir("/proc/self/fd")
    for name in ("in", "none", "a%20b.png"):
        with contextlib.suppress(Unprocessable):
            read_file_url(f"file://{folder}/{name}", folder, Budget(256))
    assert os.listdir("/proc/self/fd") == before


def test_paths_of_python_code_may_be_links_and_lie_at_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    for path in (folder / "inner", f"{folder}/inner", "~/in/c"):
        assert read_path(path, Budget(1)) == b"c"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none.png", r"'none.png' leads nowhere: No such file or directory\.$"),
        ("~nobody-has-this-name/a", r"leads nowhere: Could not determine home directory\.$"),
        ("a\0b", "leads nowhere: .*null"),
        ("circle", "leads nowhere: "),
        ("in", "not that of a file"),
        ("x" * 300, "leads nowhere: File name too long"),
    ],
)
def test_paths_that_lead_to_no_file_are_errors(folder, monkeypatch, path, said):
    monkeypatch.chdir(folder)
    with pytest.raises(Unprocessable, match=said):
        read_path(path, Budget(256))


def test_a_file_that_is_too_large_or_no_plain_file_is_refused(folder):
    with pytest.raises(TooLarge, match="at most 255 bytes"):
        read_file(folder / "a b.png", Budget(255))
    os.mkfifo(folder / "pipe")
    with pytest.raises(Unprocessable, match="not that of a file"):
        read_file(folder / "pipe", Budget(255))
    with pytest.raises(Unprocessable, match="symbolic links"):
        read_file(folder / "inner", Budget(255))


@pytest.mark.parametrize("shift", range(4))
def test_long_urls_are_decoded_in_blocks(monkeypatch, shift):
    monkeypatch.setattr(local, "BLOCK_CHARS", 8)
    data = bytes(range(64)) + bytes(shift)
    encoded = base64.b64encode(data).decode()
    for text in (encoded, encoded.rstrip("="), quote(encoded, safe=""), "\n".join(encoded), "%20" * shift + encoded):
        assert read_base64(text, Budget(len(data))) == data
    escaped = "x" * shift + "".join(f"%{byte:02x}" for byte in data)
    assert read_data_url(f"data:,{escaped}", Budget(100)) == b"x" * shift + data
    for text in (f"{encoded[:40]}={encoded[40:]}", f"{encoded[:40]}AA=={encoded[40:]}"):
        with pytest.raises(BadRequest, match="base64 of the medium is broken"):
            read_base64(text, Budget(1000))


def test_long_urls_are_refused_before_all_is_decoded():
    for url in ("data:," + "%41" * 200_000, "data:;base64," + "QUFB" * 200_000):
        with pytest.raises(TooLarge, match="at most 100 bytes"):
            read_data_url(url, Budget(100))
