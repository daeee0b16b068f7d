"""A server that transcribes, without a model."""

from dataclasses import replace

import pytest
from audio_model import ARCHITECTURE, PLUGIN
from fake_client import PretendClient, info, served
from plugin_site import installed

from quire.hooks import registry
from quire.media.limits import MediaLimits
from quire.media.loader import MediaLoader
from quire.server.app import build_app
from quire.settings.server_config import ServerConfig
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.speech.transcription import TranscriptionModel
from quire.text.tokenizer.tokenizer import Tokenizer

HEARS = {
    "architecture": ARCHITECTURE,
    "modalities": ("audio",),
    "tasks": ("generate", "transcribe", "translate"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("plugins") / "site", "ears", PLUGIN):
        yield registry.load(["llama", "ears", "realtime"])


@pytest.fixture
def app_of(found, tmp_path):
    """An application with one model that hears and one that does not, and the client that pretends to run them."""
    intakes = []

    def app_of(config=None, records=None, limits=None, options=None, **client):
        client = PretendClient(info(**HEARS), info("deaf"), **{"ends_after": 13, **client})
        hears, deaf = served(tmp_path, client.infos)
        intakes.append(MediaLoader(limits or MediaLimits()))
        realtime = {**found.options["realtime"], **(options or {})}
        loaded = replace(
            found, records={**found.records, **(records or {})}, options={**found.options, "realtime": realtime}
        )
        media = MultimodalProcessor(loaded, hears.info, Tokenizer.load(tmp_path), intakes[-1])
        speech = TranscriptionModel.from_model_info(loaded, hears.info, hears.tokenizer, media)
        models = [replace(hears, media=media, speech=speech), deaf]
        return build_app(client, config or ServerConfig(), loaded, models), client

    yield app_of
    for intake in intakes:
        intake.close()
