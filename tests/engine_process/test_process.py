"""The host with real engines: two models side by side, killed in the middle of a stream."""

import asyncio
import os
import signal

import pytest
import torch
from delta_streams import deltas_of
from transformers import LlamaConfig, LlamaForCausalLM

from quire.engine_process.client import EngineClient
from quire.errors import BadRequest, CheckpointError, EngineDied
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request

PROMPT = (1, 17, 99, 4)


def save_llama(folder, seed):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def expected(model, count):
    ids = torch.tensor([PROMPT])
    mask = torch.ones_like(ids)
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return out[0, len(PROMPT) :].tolist()


async def collect(client, model, request_id, params):
    request = Request(id=request_id, prompt=Prompt(token_ids=PROMPT), params=params)
    return [delta async for delta in deltas_of(client, model, request)]


async def drain(stream):
    async for _ in stream:
        pass


def greedy(count):
    return SamplingParams(temperature=0, max_tokens=count, min_tokens=count)


def tokens(deltas):
    return [token for delta in deltas for token in delta.token_ids]


@pytest.fixture
def two_models(tmp_path):
    models = {name: save_llama(tmp_path / name, seed) for seed, name in enumerate("ab")}
    configs = [
        ModelConfig(model=str(tmp_path / name), served_model_name=(name,), num_pages=256, device="cpu")
        for name in models
    ]
    return models, configs


@pytest.mark.usefixtures("fresh_processes")
async def test_two_models_answer_at_once_as_transformers_does_before_and_after_the_host_was_killed(two_models):
    models, configs = two_models
    wanted = {name: expected(model, 24) for name, model in models.items()}
    client = await EngineClient.start(configs, ["llama"], wait_ready_s=120)
    try:
        found = await asyncio.gather(*(collect(client, name, name, greedy(24)) for name in models))
        assert {name: tokens(deltas) for name, deltas in zip(models, found, strict=True)} == wanted

        stream = deltas_of(client, "a", Request(id="k", prompt=Prompt(token_ids=PROMPT), params=greedy(200)))
        await anext(stream)
        os.kill(client.engine_pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            await drain(stream)

        assert tokens(await collect(client, "b", "again", greedy(24))) == wanted["b"]
        assert [info.num_pages for info in client.models()] == [256, 256]
        with pytest.raises(BadRequest, match="maximum context length"):
            await collect(client, "a", "long", greedy(1000))
        beams = await collect(client, "a", "beams", BeamSearchParams(beam_width=2, max_tokens=4))
        assert {delta.index for delta in beams} == {0, 1}
    finally:
        await client.close()


async def test_a_corrupt_checkpoint_is_reported_as_such(two_models):
    _, configs = two_models
    with open(f"{configs[1].model}/model.safetensors", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        await EngineClient.start(configs, ["llama"])
