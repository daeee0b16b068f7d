"""Parts of speech: where recordings are cut, how texts of windows become one, subtitles, and plugins that misbehave."""

import numpy as np
import pytest
from audio_model import ARCHITECTURE, RATE, noise
from fake_client import info

from quire import Transcriber
from quire.errors import BadRequest, PluginError, PluginFailed
from quire.media.windows import split_windows
from quire.params.sampling import SamplingParams
from quire.records import InputMapper, MappedMedia, Registry, Segment, SpeechTask
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.outputs.outputs import CompletionOutput, RequestOutput
from quire.text.speech.subtitles import srt, vtt
from quire.text.speech.transcript import TextJoiner, TranscriptSegment, join_texts
from quire.text.speech.transcription import TranscriptionModel
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing import byte_tokenizer

# --- windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.001, 1, 2, 2.001, 7.3, 60])
@pytest.mark.parametrize("rate", [10, 800, 16_000])
def test_nothing_is_left_out_and_no_window_is_too_long(seconds, rate):
    samples = np.random.default_rng(0).standard_normal(max(1, int(seconds * rate))).astype(np.float32)
    windows = list(split_windows(samples, rate, 2.0))
    assert windows[0][0] == 0
    assert windows[-1][1] == len(samples)
    assert [end for _, end in windows[:-1]] == [begin for begin, _ in windows[1:]]
    assert all(0 < end - begin <= 2 * rate for begin, end in windows)
    assert all(end - begin >= rate for begin, end in windows[:-1])


def test_a_window_ends_where_it_is_quiet_in_its_last_second():
    samples = noise(10, quiet=[(0.5, 0.7), (1.4, 1.6), (2.9, 3.1)])
    first, second, *_ = split_windows(samples, RATE, 2.0)
    assert 1.4 * RATE < first[1] < 1.6 * RATE
    assert 2.9 * RATE < second[1] < 3.1 * RATE


def test_silence_is_cut_as_late_as_can_be():
    (_, first), *_ = split_windows(np.zeros(5 * RATE, np.float32), RATE, 2.0)
    assert first == pytest.approx(2 * RATE, abs=0.05 * RATE)


# --- texts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        ([" One", " two. "], "One two."),
        (["One.", "Two."], "One. Two."),
        (["One. ", " Two."], "One. Two."),
        (["你好。", "再见。"], "你好。再见。"),
        (["你好 ", "再见"], "你好 再见"),
        (["", " ", "One", "", "  ", "two"], "One two"),
        ([" "], ""),
        ([], ""),
    ],
)
def test_texts_of_windows_become_one(texts, whole):
    assert join_texts(texts) == whole
    flow, parts = TextJoiner(), []
    for text in texts:
        parts += map(flow.push, text)
        flow.next_window()
    assert "".join(parts) == whole


def segment(start_s, end_s, text):
    return TranscriptSegment(start_s=start_s, end_s=end_s, window_s=0, text=text, token_ids=())


def test_subtitles_have_times_and_lines_that_cannot_break_them():
    segments = [segment(0, 59.9996, " a\n\nb "), segment(3599.5, 360_000.001, "x --> y")]
    assert srt(segments) == ("1\n00:00:00,000 --> 00:01:00,000\na b\n\n2\n00:59:59,500 --> 100:00:00,001\nx -> y\n")
    assert vtt(segments) == ("WEBVTT\n\n00:00:00.000 --> 00:01:00.000\na b\n\n00:59:59.500 --> 100:00:00.001\nx -> y\n")
    assert (srt([]), vtt([])) == ("", "WEBVTT\n")


# --- what plugins say ------------------------------------------------------------------------------


class Maps:
    def map(self, item):
        return MappedMedia([1, 2], {"samples": item.samples})


class Asks:
    sampling_rate, window_s = RATE, 2.0

    def __init__(self):
        self.languages, self.found = {}, ()
        self.needs = {"max_tokens": 1000, "top_p": 0.5, "temperature": 0.7}

    def prompt(self, task):
        return [*b"<audio>", 3]

    def language_detection(self):
        return None

    def params(self, task):
        return self.needs

    def segments(self, token_ids, task):
        return self.found


@pytest.fixture
def speech_of(tmp_path):
    made = []

    def speech_of(build=lambda context: Asks()):
        mapper = InputMapper("m", ARCHITECTURE, "audio", lambda context: Maps())
        record = Transcriber("t", ARCHITECTURE, build)
        found = Registry(
            records={"quire_input_mappers": {"m": mapper}, "quire_transcribers": {"t": record}},
            origin={("quire_transcribers", "t"): "made", ("quire_input_mappers", "m"): "made"},
        )
        one = info(architecture=ARCHITECTURE, modalities=("audio",), tasks=("generate", "transcribe"))
        tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))
        made.append(MultimodalProcessor(found, one, tokenizer))
        return TranscriptionModel.from_model_info(found, one, tokenizer, made[-1])

    yield speech_of
    for media in made:
        media.loader.close()


def answers(*texts, finish="stop"):
    outputs = [
        CompletionOutput(index=0, text=text, token_ids=list(text.encode()), finish_reason=finish) for text in texts
    ]
    return [
        RequestOutput(request_id="r", prompt=None, prompt_token_ids=[], outputs=[one], finished=True) for one in outputs
    ]


def test_parameters_of_the_task_are_defaults(speech_of):
    speech = speech_of()
    (window,) = speech.windows((noise(1), RATE), "audio")
    ask = speech.transcription_prompt(window, SpeechTask(), SamplingParams(temperature=0, max_tokens=None))
    assert (ask.params.temperature, ask.params.top_p) == (0, 0.5)
    assert ask.params.max_tokens == info().max_model_len - len(ask.prompt.token_ids)
    ask = speech.transcription_prompt(window, SpeechTask(), SamplingParams(max_tokens=7, top_p=0.9))
    assert (ask.params.temperature, ask.params.top_p, ask.params.max_tokens) == (0.7, 0.9, 7)


def test_segments_without_times_stand_between_their_neighbours_and_empty_ones_are_left_out(speech_of):
    asks = Asks()
    asks.found = [
        Segment(begin=0, end=2, text_ids=(97, 98), start_s=0.25),
        Segment(begin=2, end=3, text_ids=(32,), start_s=0.5, end_s=0.75),
        Segment(begin=3, end=4, text_ids=(99,), end_s=9.0),
    ]
    speech = speech_of(lambda context: asks)
    windows = speech.windows((noise(3, quiet=[(1.5, 1.6)]), RATE), "audio")
    next_window = windows[0].end_s
    made = speech.transcription(windows, SpeechTask(timestamps=True), answers("ab c", "ab c"))
    assert made.text == "ab c ab c"
    times = [(one.start_s, one.end_s, one.text) for one in made.segments]
    assert times[:2] == [(0.25, 0.5, "ab"), (0.75, next_window, "c")]
    assert [one[:2] for one in times[2:]] == [(next_window + 0.25, next_window + 0.5), (next_window + 0.75, 3)]


def test_a_model_whose_language_cannot_be_chosen_says_so(speech_of):
    with pytest.raises(BadRequest, match="cannot be chosen for this model"):
        speech_of().language_code("en", "language")


def test_a_model_that_knows_one_language_hears_that(speech_of):
    asks = Asks()
    asks.languages = {"en": "English"}
    assert speech_of(lambda context: asks).resolve_language(None) == "en"
    asks.languages = {"en": "English", "de": "German"}
    assert speech_of(lambda context: asks).resolve_language(None) is None
    assert speech_of(lambda context: asks).resolve_language(" GERMAN ") == "de"


def test_a_plugin_that_fails_is_named(speech_of):
    with pytest.raises(PluginError, match=r"'t' cannot be built\. Plugin 'made' failed: ZeroDivisionError"):
        speech_of(lambda context: 1 / 0)
    asks = Asks()
    asks.needs = {"volume": 11}
    speech = speech_of(lambda context: asks)
    with pytest.raises(PluginFailed, match="Plugin 'made' failed"):
        speech.transcription_prompt(speech.windows((noise(1), RATE), "audio")[0], SpeechTask(), SamplingParams())
