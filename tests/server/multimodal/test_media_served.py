"""Pictures from end to end: the `openai` client and `LLM` ask a tiny random model that sees, and get one answer."""

import os

import openai
import pytest
from media_server import web_of_media
from PIL import Image
from plugin_site import installed
from serving import serving
from vision_model import NUM_PATCHES, PLUGIN, asking, data_url, png, tiny_seeing_model

from quire import LLM, SamplingParams
from quire.errors import BadRequest, ConfigError

MORE = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_seeing_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("plugins") / "site", "colours", PLUGIN) as site:
        yield site


@pytest.fixture(scope="module")
def web():
    with web_of_media() as made:
        made.files |= {"red": png("red"), "html": b"<!doctype html>"}
        made.targets["red"] = f"{made.url}/file/red"
        yield made


@pytest.fixture(scope="module")
def client(folder, site):
    env = {"PYTHONPATH": os.pathsep.join([str(site.folder), os.environ.get("PYTHONPATH", "")])}
    flags = ["--allow-private-media-addresses", "--limit-mm-per-prompt", "image=2", "--enable-prompt-tokens-details"]
    words = [folder, "--served-model-name", "tiny", "--plugins", "llama,colours", "--dtype", "float32", *flags]
    with (
        serving(*words, "--device", "cpu", "--num-pages", "64", env=env) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def llm(folder, site):
    settings = {"dtype": "float32", "device": "cpu", "num_pages": 64, "allow_private_media_addresses": True}
    with LLM(str(folder), plugins="llama,colours", limit_mm_per_prompt={"image": 2}, **settings) as made:
        yield made


def said(client, *parts):
    answer = client.chat.completions.create(model="tiny", messages=asking(*parts), **MORE)
    return answer.choices[0].message.content


def chat(llm, messages):
    return llm.chat(messages, GREEDY, use_tqdm=False)[0].outputs[0].text


def test_a_picture_is_seen_wherever_it_comes_from(client, web, llm):
    red, blue = ({"url": data_url(png(colour))} for colour in ("red", "blue"))
    answer = said(client, red, "What is it?")
    assert answer != said(client, blue, "What is it?")
    for url in (f"{web.url}/file/red", f"{web.url}/to/red"):
        assert said(client, {"url": url}, "What is it?") == answer
        assert chat(llm, asking({"url": url}, "What is it?")) == answer
    held = {"type": "image_pil", "image_pil": Image.new("RGB", (8, 6), "red")}
    content = [held, {"type": "text", "text": "What is it?"}]
    assert chat(llm, [{"role": "user", "content": content}]) == answer


def test_a_stream_says_the_same_and_counts_the_tokens_of_media(client):
    picture = {"url": data_url(png("green"))}
    asked = {"model": "tiny", "messages": asking(picture, "and ", picture), **MORE}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    for usage in (whole.usage, chunks[-1].usage):
        assert usage.prompt_tokens_details.multimodal_tokens == 2 * NUM_PATCHES


def test_prompts_with_items_of_every_kind_say_what_chat_says(llm, web, tmp_path):
    (tmp_path / "red.png").write_bytes(png("red"))
    text = "<|user|><image>\nWhat?<|end|><|assistant|>"
    items = [png("red"), str(tmp_path / "red.png"), tmp_path / "red.png", f"{web.url}/file/red", data_url(png("red"))]
    prompts = [{"prompt": text, "multi_modal_data": {"image": item}} for item in items]
    answers = {output.outputs[0].text for output in llm.generate(prompts, GREEDY, use_tqdm=False)}
    assert answers == {chat(llm, asking({"url": f"{web.url}/file/red"}, "What?"))}


def test_what_is_refused_is_an_error_of_the_client_and_the_server_goes_on(client, web, llm):
    picture = {"url": data_url(png())}
    with pytest.raises(openai.UnprocessableEntityError, match="a page of HTML"):
        said(client, {"url": f"{web.url}/file/html"})
    with pytest.raises(openai.BadRequestError, match="At most 2 image"):
        said(client, picture, picture, picture)
    with pytest.raises(openai.BadRequestError, match="takes text and image only"):
        message = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [message]}])
    with pytest.raises(BadRequest, match="At most 2 image"):
        chat(llm, asking(picture, picture, picture))
    assert said(client, picture, "What?") == chat(llm, asking(picture, "What?"))


def test_a_misspelt_modality_stops_the_start(folder, site):
    settings = {"plugins": "llama,colours", "limit_mm_per_prompt": {"imgae": 2}}
    with pytest.raises(ConfigError, match="there is no modality 'imgae'; there are audio, image, video"):
        LLM(str(folder), **settings)
    with serving(folder, "--plugins", "llama", "--limit-mm-per-prompt", "imgae=2", ready=False) as server:
        assert server.process.wait(60) != 0
        assert "--limit-mm-per-prompt: there is no modality 'imgae'; there are audio, image, video." in server.output()


def test_a_picture_is_embedded_as_it_is_in_python(client, llm):
    red, blue = (asking({"url": data_url(png(colour))}, "What?") for colour in ("red", "blue"))
    found = []
    for messages in (red, blue):
        body = {"model": "tiny", "messages": messages, "add_generation_prompt": True}
        answer = client.post("/embeddings", body=body, cast_to=dict)
        found.append(answer["data"][0]["embedding"])
        assert answer["usage"]["prompt_tokens"] > NUM_PATCHES
    prompt = "<|user|><image>\nWhat?<|end|><|assistant|>"
    for vector, colour in zip(found, ("red", "blue"), strict=True):
        picture = Image.new("RGB", (8, 6), colour)
        (wanted,) = llm.embed({"prompt": prompt, "multi_modal_data": {"image": picture}}, use_tqdm=False)
        assert vector == pytest.approx(wanted.outputs.embedding, abs=1e-5)
    assert found[0] != pytest.approx(found[1], abs=1e-2)
