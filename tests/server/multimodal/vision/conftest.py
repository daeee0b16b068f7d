"""A server with vision models, its images on a local HTTP server and in files."""

import openai
import pytest
from media_server import web_of_media
from serving import serving
from unusual_images import encoded
from vision_server import CACHE_BYTES, PICTURES, Llava, Qwen


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {kind.name: kind(tmp_path_factory.mktemp(kind.name)) for kind in (Llava, Qwen)}


@pytest.fixture(params=["llava", "qwen"])
def model(request, models):
    return models[request.param]


@pytest.fixture(scope="module")
def web():
    with web_of_media() as made:
        made.files |= {str(i): encoded(image) for i, image in enumerate(PICTURES)}
        made.files["html"] = b"<!doctype html><title>no picture</title>"
        made.targets["0"] = f"{made.url}/file/0"
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "0.png").write_bytes(encoded(PICTURES[0]))
    return folder


@pytest.fixture(scope="module")
def server(models, files):
    names = [f"{name}={model.folder}" for name, model in models.items()]
    flags = ["--limit-mm-per-prompt", "image=3,video=1", "--allowed-local-media-path", files, "--max-media-bytes", "1M"]
    engine = ["--dtype", "float32", "--device", "cpu", "--num-pages", "48", "--max-num-batched-tokens", "24"]
    engine += ["--max-num-seqs", "5", "--encoder-cache-bytes", CACHE_BYTES, "--max-num-encoder-tokens", "32"]
    plugins = ["--plugins", "llama,qwen,llava,qwen-vl"]
    with serving(*names, *plugins, *flags, "--allow-private-media-addresses", *engine) as made:
        yield made


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made
