"""LLaVA and Qwen-VL over HTTP, asked with the `openai` client: transformers' answers, wherever a picture comes from."""

import asyncio
import io
import re

import httpx
import openai
import pytest
from llava_rig import picture
from qwen_vl_rig import film
from unusual_images import encoded
from vision_server import CACHE_BYTES, LENGTH, MORE, PICTURES, content, generated_ids, url_of

# --- good ones ---------------------------------------------------------------------------------------


def test_a_picture_is_seen_wherever_it_comes_from(client, model, web, files):
    wanted = model.says("What is ", PICTURES[0], "?")
    assert wanted != model.says("What is ", PICTURES[1], "?")
    for url in (PICTURES[0], f"{web.url}/file/0", f"{web.url}/to/0", f"file://{files}/0.png"):
        assert generated_ids(client, model, "What is ", url, "?") == wanted


def test_a_stream_says_the_same(client, model, web):
    wanted = model.says("see ", PICTURES[1], " and ", PICTURES[2])
    parts = content("see ", PICTURES[1], " and ", f"{web.url}/file/2")
    with client.chat.completions.create(model=model.name, messages=parts, **MORE, stream=True) as stream:
        choices = [choice.to_dict() for chunk in stream for choice in chunk.choices]
    model.num_asked += 1
    ids = [id for choice in choices for id in choice.get("token_ids") or []]
    assert ids == wanted


def test_pictures_stand_where_they_are_put(client, model):
    for parts in (
        (PICTURES[0], "at the start"),
        ("at the end", PICTURES[1]),
        (PICTURES[1], " ", PICTURES[0], " ", PICTURES[1]),
        ("a ", PICTURES[2], " b ", PICTURES[0], " c"),
    ):
        assert generated_ids(client, model, *parts) == model.says(*parts)


def test_a_video_is_seen(client, models):
    av = pytest.importorskip("av")
    frames, data = film(5, 4, 40, 32), io.BytesIO()
    with av.open(data, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=2)  # which loses nothing
        stream.width, stream.height, stream.pix_fmt = 32, 40, "bgr0"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    qwen = models["qwen"]
    parts = ("It ", {"type": "video_url", "video_url": {"url": url_of(data.getvalue())}}, " moves")
    assert generated_ids(client, qwen, *parts) == qwen.says("It ", frames, " moves")
    with pytest.raises(openai.BadRequestError, match="takes text and image only"):
        generated_ids(client, models["llava"], *parts)


def test_the_same_picture_asked_twice_goes_through_the_tower_once(client, server, model):
    new = picture(100, 40, 32)
    before = figures(server, model)
    first = generated_ids(client, model, "Is ", new, " new?")
    assert generated_ids(client, model, "Is ", new, " new?") == first
    assert generated_ids(client, model, "No, ", new, " is old.") == model.says("No, ", new, " is old.")
    after = figures(server, model)
    assert after["media_encoded_total"] == before["media_encoded_total"] + 1
    assert after["encoder_cache_hits_total"] > before["encoder_cache_hits_total"]
    assert after["prefix_cache_hits_total"] > before["prefix_cache_hits_total"]


def figures(server, model):
    """Of the model, by name, once they have what was asked so far: the server looks at them now and then."""
    while True:
        page = httpx.get(f"{server.url}/metrics").text
        found = dict(re.findall(rf'^quire:(\w+){{engine="0",model_name="{model.name}"}} (.*)$', page, re.MULTILINE))
        if float(found["generation_tokens_total"]) == LENGTH * model.num_asked:
            return {name: float(value) for name, value in found.items()}


async def test_two_hundred_at_once_all_get_their_own_answer_and_memory_is_given_back(server, models, web):
    new = [picture(200 + i, 40, 32) for i in range(25)]
    web.files |= {f"new-{i}": encoded(image) for i, image in enumerate(new)}

    async def ask(http, number):
        model, image = models[("llava", "qwen")[number % 2]], number // 2 % len(new)
        url = f"{web.url}/file/new-{image}" if number % 3 else encoded(new[image])
        body = {"model": model.name, "messages": content("What is ", url, "?"), "temperature": 0, "max_tokens": LENGTH}
        answer = await http.post(f"{server.url}/v1/chat/completions", json={**body, **MORE["extra_body"]})
        assert answer.status_code == 200, answer.text
        model.num_asked += 1
        return model, image, answer.json()["choices"][0]["token_ids"]

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        answers = await asyncio.gather(*(ask(http, number) for number in range(200)))
    wanted = {(model, i): model.says("What is ", new[i], "?") for model in models.values() for i in range(len(new))}
    assert [ids for *_, ids in answers] == [wanted[model, image] for model, image, _ in answers]
    for model in models.values():
        found = figures(server, model)
        assert (found["num_requests_running"], found["num_requests_waiting"]) == (0, 0)
        assert found["kv_cache_usage_perc"] == 0
        assert 0 < found["encoder_cache_bytes"] <= CACHE_BYTES
