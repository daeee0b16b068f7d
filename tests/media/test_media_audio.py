"""Audio from bytes and from Python: one channel of floats at the rate that a mapper asks for."""

import io
import sys

import numpy as np
import pytest

from quire.errors import BadRequest, TooLarge, Unprocessable
from quire.media.audio import Audio, as_audio, decode_audio
from quire.media.limits import MediaLimits

LIMITS = MediaLimits(max_s=2)
RATE = 8000


def tone(seconds=1.0, rate=RATE, hertz=440):
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate).astype(np.float32) / 2


def wav(samples, rate=RATE, form="WAV", **settings):
    soundfile = pytest.importorskip("soundfile")
    data = io.BytesIO()
    soundfile.write(data, samples, rate, format=form, **settings)
    return data.getvalue()


def sound_in_matroska(samples):
    """Sound in a container that only PyAV reads."""
    av = pytest.importorskip("av")
    data = io.BytesIO()
    with av.open(data, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray((samples[None] * 32767).astype(np.int16), format="s16", layout="mono")
        frame.sample_rate = RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return data.getvalue()


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
def test_an_audio_file_becomes_floats_of_one_channel(form):
    left, right = tone(), tone(hertz=880)
    made = decode_audio(wav(np.stack([left, right], axis=1), form=form), LIMITS)
    assert made.rate == RATE
    assert made.samples.dtype == np.float32
    assert made.duration_s == 1
    assert np.abs(made.samples - (left + right) / 2).max() < (0.1 if form == "OGG" else 1e-4)


def test_a_container_that_soundfile_does_not_know_is_read_by_pyav():
    made = decode_audio(sound_in_matroska(tone()), LIMITS)
    assert made.rate == RATE
    assert np.abs(made.samples[: RATE // 2] - tone()[: RATE // 2]).max() < 1e-3


def test_pyav_alone_reads_audio_too(monkeypatch):
    data = wav(tone(), form="FLAC")
    pytest.importorskip("av")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    made = decode_audio(data, LIMITS)
    assert np.abs(made.samples - tone()).max() < 1e-3


def test_longer_audio_than_the_limit_is_refused():
    with pytest.raises(TooLarge, match=r"longer than 2 seconds \(--max-media-seconds\)"):
        decode_audio(wav(tone(2.01)), LIMITS)
    with pytest.raises(TooLarge, match="longer than 2 seconds"):
        as_audio((tone(2.01), RATE), LIMITS)
    assert as_audio((tone(2), RATE), LIMITS).duration_s == 2


@pytest.mark.parametrize("data", [b"<html></html>", b"RIFF\0\0\0\0WAVE", bytes(100)])
def test_what_is_no_audio_is_refused(data):
    pytest.importorskip("soundfile")
    pytest.importorskip("av")
    with pytest.raises(Unprocessable):
        decode_audio(data, LIMITS)


@pytest.mark.parametrize(
    ("form", "said"),
    [("WAV", "cut short: of 16000 bytes of samples 8022 are missing"), ("FLAC", "is damaged"), ("OGG", "audio")],
)
def test_audio_without_its_end_is_refused(form, said):
    data = wav(tone(), form=form)
    with pytest.raises(Unprocessable, match=said):
        decode_audio(data[: len(data) // 2], LIMITS)


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0xFFFFFFFF])
def test_a_wav_file_that_was_written_to_a_pipe_is_read_to_its_end(size):
    data = wav(tone())
    at = data.index(b"data") + 4
    assert decode_audio(data[:at] + size.to_bytes(4, "little") + data[at + 4 :], LIMITS).duration_s == 1


def test_samples_that_are_no_numbers_are_refused():
    samples = tone()
    samples[5] = np.nan
    with pytest.raises(Unprocessable, match="not finite numbers"):
        decode_audio(wav(samples, subtype="FLOAT"), LIMITS)
    with pytest.raises(BadRequest, match="must be finite numbers"):
        as_audio((samples, RATE), LIMITS)


def test_audio_without_bytes_or_samples_is_refused():
    with pytest.raises(Unprocessable, match="audio is empty"):
        decode_audio(b"", LIMITS)
    with pytest.raises(Unprocessable, match="no samples"):
        decode_audio(wav(np.empty(0, np.float32)), LIMITS)


def test_without_the_libraries_the_error_says_what_to_install(monkeypatch):
    for name in ("soundfile", "av"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadRequest, match="cannot read audio, except plain WAV files: it needs `pip install soundfile`"):
        decode_audio(b"RIFF", LIMITS)


@pytest.mark.parametrize("rate", [16000, 4000, 11025])
def test_another_rate_keeps_the_sound(rate):
    made = Audio(samples=tone(), rate=RATE).resample(rate)
    assert made.dtype == np.float32
    assert len(made) == rate
    middle = slice(rate // 10, -rate // 10)
    assert np.abs(made - tone(rate=rate))[middle].max() < 0.01


def test_samples_with_a_rate_are_audio_too():
    for samples in (tone(), tone().astype(np.float64), np.stack([tone()] * 2)):
        made = as_audio((samples, RATE), LIMITS)
        assert made.samples.dtype == np.float32
        assert np.array_equal(made.samples, tone())
    assert as_audio(made, LIMITS) is made


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (tone(), "a pair"),
        (5, "got int"),
        ((tone(), 0), "rate of audio"),
        ((tone(), 7.5), "rate of audio"),
        ((tone(), "8000"), "rate of audio"),
        ((np.zeros(5, np.int16), RATE), r"must be floats .* got int16 \[5\]"),
        ((np.zeros((2, 2, 2)), RATE), "must be floats"),
        ((np.zeros(0), RATE), "must be floats"),
    ],
)
def test_what_is_no_audio_in_python_is_refused(item, said):
    with pytest.raises(BadRequest, match=said):
        as_audio(item, LIMITS)
