"""Speech from end to end: the `openai` client and `LLM` ask a tiny random model that hears, and get one answer."""

import os

import openai
import pytest
from audio_model import PLUGIN, RATE, noise, tiny_hearing_model, wav
from plugin_site import installed
from serving import serving

from quire import LLM, SamplingParams
from quire.errors import BadRequest
from quire.media.windows import split_windows
from quire.text.speech.transcript import join_texts

# The client calls translations deprecated, which is an affair of the service it was made for.
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")

SOUND = noise(3.1, seed=1, quiet=[(1.5, 1.7)])
PLAIN = SamplingParams(temperature=0, max_tokens=12, logit_bias={0: -100.0}, extra={"letters": True})
LENGTH = {"extra_body": {"max_completion_tokens": 12}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_hearing_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("plugins") / "site", "ears", PLUGIN) as site:
        yield site


@pytest.fixture(scope="module")
def server(folder, site):
    env = {"PYTHONPATH": os.pathsep.join([str(site.folder), os.environ.get("PYTHONPATH", "")])}
    words = [folder, "--served-model-name", "tiny", "--plugins", "llama,ears", "--dtype", "float32"]
    with serving(*words, "--device", "cpu", "--num-pages", "64", env=env) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def llm(folder, site):
    with LLM(str(folder), plugins="llama,ears", dtype="float32", device="cpu", num_pages=64) as made:
        yield made


def by_hand(llm, question, samples=SOUND):
    """What the model says of each window when it is asked as `LLM.generate` asks."""
    windows = [(samples[begin:end], RATE) for begin, end in split_windows(samples, RATE, 2.0)]
    prompts = [{"prompt": f"<audio>{question}", "multi_modal_data": {"audio": window}} for window in windows]
    return [output.outputs[0] for output in llm.generate(prompts, PLAIN, use_tqdm=False)]


def asked(client, **fields):
    return client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(SOUND)), **LENGTH, **fields)


def test_the_client_gets_what_the_model_says_of_each_window(client, llm):
    answers = by_hand(llm, "enw")
    assert len(answers) == 2
    assert answers[0].token_ids != answers[1].token_ids
    answer = asked(client, language="en")
    assert answer.text == join_texts([one.text for one in answers])
    assert (answer.usage.type, answer.usage.seconds) == ("duration", 4)
    assert asked(client, language="en", response_format="text") == f"{answer.text}\n"
    translated = client.audio.translations.create(
        model="tiny", file=wav(SOUND), extra_body={"language": "de", "max_completion_tokens": 12}
    )
    assert translated.text == join_texts([one.text for one in by_hand(llm, "det")])


def test_the_client_streams_the_same(client):
    with asked(client, language="en", stream=True) as stream:
        *deltas, done = list(stream)
    whole = asked(client, language="en").text
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text == whole
    assert done.usage.output_tokens == 24


def test_the_client_gets_segments_and_the_language_that_was_heard(client, llm):
    answer = asked(client, response_format="verbose_json", timestamp_granularities=["segment"])
    step = SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=[ord("H"), ord("d")])
    begin, end = next(split_windows(SOUND, RATE, 2.0))
    first = {"prompt": "<audio>?", "multi_modal_data": {"audio": (SOUND[begin:end], RATE)}}
    (heard,) = llm.generate(first, step, use_tqdm=False)
    language = {"H": "english", "d": "german"}[heard.outputs[0].text]
    assert answer.language == language
    assert answer.duration == pytest.approx(3.1)
    answers = by_hand(llm, f"{language[0]}{'n' if language == 'english' else 'e'}w0")
    said = [segment for segment in answer.segments if segment.seek == 0]
    assert "".join(segment.text for segment in said) == answers[0].text
    assert [segment.tokens for segment in said] == [answers[0].token_ids[i : i + 4] for i in (0, 4, 8)]
    assert all(0 <= one.start <= one.end <= answer.duration for one in answer.segments)
    assert all(one.avg_logprob < 0 and 0 < one.no_speech_prob < 1 for one in answer.segments)


def test_python_says_what_the_server_says(client, llm):
    first, second = llm.transcribe(
        [(SOUND, RATE), wav(noise(1, seed=3))], language="en", sampling_params=PLAIN, use_tqdm=False
    )
    assert first.text == asked(client, language="English").text
    assert (first.duration_s, first.language, first.segments) == (pytest.approx(3.1), "english", ())
    assert second.text == join_texts([one.text for one in by_hand(llm, "enw", noise(1, seed=3))])
    (timed,) = llm.transcribe(
        (SOUND, RATE), timestamps=True, translate=True, prompt="", sampling_params=PLAIN, use_tqdm=False
    )
    served = client.audio.translations.create(
        model="tiny", file=wav(SOUND), response_format="verbose_json", extra_body={"max_completion_tokens": 12}
    )
    assert timed.text == served.text
    assert [one.start_s for one in timed.segments] == [one.start for one in served.segments]


def test_python_refuses_what_cannot_be(llm):
    with pytest.raises(BadRequest, match="one of en, de, zh"):
        llm.transcribe((SOUND, RATE), language="fr")
    with pytest.raises(BadRequest, match="Chinese cannot be translated"):
        llm.transcribe((SOUND, RATE), language="zh", translate=True)
    with pytest.raises(BadRequest, match="transcribed once"):
        llm.transcribe((SOUND, RATE), language="en", sampling_params=SamplingParams(n=2))
    assert llm.tasks[-2:] == ("transcribe", "translate")
