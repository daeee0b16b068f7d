"""Media over HTTP: what is fetched, and everything that must not be, against a web server on this machine."""

import shutil
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from media_server import web_of_media

from quire.errors import BadRequest, TooLarge, Unprocessable
from quire.media.fetching.addresses import allowed_addresses, is_public
from quire.media.fetching.fetcher import Fetcher
from quire.media.limits import Budget, MediaLimits

LOCAL = {"private_addresses": True, "timeout_s": 30}


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def web():
    with web_of_media() as made:
        made.files["a"] = b"picture"
        yield made


@pytest.fixture
def fetch(threads):
    async def fetch(url, resolve=None, max_bytes=1000, **limits):
        fetcher = Fetcher(MediaLimits(**{**LOCAL, **limits}), threads, resolve)
        return await fetcher.fetch(url, Budget(max_bytes))

    return fetch


async def test_a_body_is_fetched_by_the_name_in_its_url(web, fetch):
    url = f"http://media.example:{web.port}/file/a#part"
    assert await fetch(url, resolve=lambda host, port: ["127.0.0.1"]) == b"picture"
    assert web.asked == [(f"media.example:{web.port}", "/file/a")]
    assert web.headers["accept-encoding"] == "identity"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_a_certificate_must_be_of_the_name_in_the_url_not_of_the_address(tmp_path, fetch, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=media -addext subjectAltName=DNS:media.example"
    subprocess.run([*make.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    asked = []
    tls.sni_callback = lambda _, name, __: asked.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with web_of_media(tls) as web:
        web.files["a"] = b"picture"
        here = {"resolve": lambda *_: ["127.0.0.1"]}
        assert await fetch(f"https://media.example:{web.port}/file/a", **here) == b"picture"
        with pytest.raises(Unprocessable, match=r"does not answer: .*certificate"):
            await fetch(f"https://other.example:{web.port}/file/a", **here)
    assert asked == ["media.example", "other.example"]


async def test_redirects_are_followed_so_many_times(web, fetch):
    web.targets |= {"1": "/to/2", "2": f"{web.url}/to/3", "3": "../file/a"}
    assert await fetch(f"{web.url}/to/1") == b"picture"
    assert await fetch(f"{web.url}/to/1", max_redirects=3) == b"picture"
    with pytest.raises(Unprocessable, match=r"redirects more than 2 times \(--max-media-redirects\)"):
        await fetch(f"{web.url}/to/1", max_redirects=2)
    with pytest.raises(Unprocessable, match="more than 0 times"):
        await fetch(f"{web.url}/to/1", max_redirects=0)


async def test_redirects_in_a_circle_end(web, fetch):
    with pytest.raises(Unprocessable, match="more than 3 times"):
        await fetch(f"{web.url}/loop/0")
    assert [path for _, path in web.asked] == [f"/loop/{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", None),
        ("localhost", None),
        ("[::1]", None),
        ("0.0.0.0", None),
        ("2130706433", None),
        ("0x7f.1", None),
        ("[::ffff:127.0.0.1]", None),
        ("10.1.2.3", None),
        ("169.254.169.254", None),
        ("inside.example", ["10.0.0.5"]),
        ("both.example", ["93.184.215.14", "127.0.0.1"]),
    ],
)
async def test_hosts_in_private_networks_are_refused_however_they_are_written(web, fetch, host, addresses):
    resolve = None if addresses is None else lambda *_: addresses
    with pytest.raises(BadRequest, match="private network or on this machine"):
        await fetch(f"http://{host}:{web.port}/file/a", resolve=resolve, private_addresses=False)
    assert web.asked == []


async def test_a_redirect_into_a_private_network_is_refused(web, fetch, monkeypatch):
    """The first host counts as public here; where it redirects to does not."""
    web.targets["in"] = f"http://127.0.0.1:{web.port}/file/a"
    monkeypatch.setattr("quire.media.fetching.addresses.is_public", lambda address: address == "127.0.0.2")
    resolve = {"outside.example": ["127.0.0.2"], "127.0.0.1": ["127.0.0.1"]}
    with socket.create_server(("127.0.0.2", 0)) as server, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(_redirect_once, server, web.targets["in"])
        with pytest.raises(BadRequest, match="private network"):
            await fetch(
                f"http://outside.example:{server.getsockname()[1]}/",
                resolve=lambda host, _: resolve[host],
                private_addresses=False,
            )
        answer.result(30)
    assert web.asked == []


def _redirect_once(server, target):
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())


async def test_a_name_that_changes_its_address_after_the_check_leads_nowhere_else(web, fetch):
    """The address that was checked is the one connected to: the name is looked up once for each hop."""
    answers = [["127.0.0.1"], ["192.0.2.1"]]
    url = f"http://rebinding.example:{web.port}/file/a"
    assert await fetch(url, resolve=lambda *_: answers.pop(0)) == b"picture"
    assert answers == [["192.0.2.1"]]


async def test_the_next_address_is_tried_when_one_takes_no_connection(web, fetch):
    url = f"http://two.example:{web.port}/file/a"
    assert await fetch(url, resolve=lambda *_: ["127.0.0.9", "127.0.0.1"]) == b"picture"
    with pytest.raises(Unprocessable, match=r"host 'two\.example' of the media URL does not answer"):
        await fetch(url, resolve=lambda *_: ["127.0.0.9"])


async def test_only_allowed_domains_are_asked_after_a_redirect_too(web, fetch):
    def resolve(*_):
        return ["127.0.0.1"]

    allowed = {"resolve": resolve, "allowed_domains": frozenset({"media.example"})}
    web.targets["else"] = f"http://else.example:{web.port}/file/a"
    assert await fetch(f"http://MEDIA.example.:{web.port}/file/a", **allowed) == b"picture"
    for url in (f"http://sub.media.example:{web.port}/file/a", f"http://media.example:{web.port}/to/else"):
        with pytest.raises(BadRequest, match=r"is not one of the allowed domains: media\.example"):
            await fetch(url, **allowed)
    assert [path for _, path in web.asked] == ["/file/a", "/to/else"]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://media.example/a", "data:,x", "gopher://x"])
async def test_a_redirect_to_another_scheme_is_refused(web, fetch, target):
    web.targets["there"] = target
    with pytest.raises(BadRequest, match="only http and https"):
        await fetch(f"{web.url}/to/there")


async def test_an_endless_body_ends_at_the_limit(web, fetch):
    with pytest.raises(TooLarge, match=r"at most 100000 bytes \(--max-media-bytes\)"):
        await fetch(f"{web.url}/endless", max_bytes=100_000)


async def test_a_slow_body_ends_at_the_time_limit(web, fetch):
    with pytest.raises(Unprocessable, match=r"took longer than 0\.05 seconds \(--media-timeout-s\)"):
        await fetch(f"{web.url}/slow", timeout_s=0.05)


async def test_a_response_without_success_is_an_error(web, fetch):
    for status in (204, 404, 500):
        with pytest.raises(Unprocessable, match=f"answered {status}"):
            await fetch(f"{web.url}/status/{status}")


async def test_a_compressed_answer_is_refused(web, fetch):
    web.more["Content-Encoding"] = "gzip"
    with pytest.raises(Unprocessable, match="compressed its answer"):
        await fetch(f"{web.url}/file/a")


async def test_a_response_that_breaks_off_is_an_error(web, fetch):
    with pytest.raises(Unprocessable, match="cannot be read: peer closed connection"):
        await fetch(f"{web.url}/short")


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1", "http://a\nb/", "https:///x", "http://x:99999/", "http:x", "http://xn--/"]
)
async def test_what_is_no_url_is_refused(fetch, url):
    with pytest.raises(BadRequest, match="media URL"):
        await fetch(url)


def test_a_host_name_without_addresses_is_an_error():
    def unknown(*_):
        raise socket.gaierror

    with pytest.raises(Unprocessable, match=r"host 'no\.example' of the media URL cannot be found"):
        allowed_addresses("no.example", 80, unknown, private=False)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.5.4",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_that_are_public(address):
    assert is_public(address)
