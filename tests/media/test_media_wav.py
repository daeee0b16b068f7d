"""WAV files and other rates without a library for audio, held to soundfile and SciPy."""

import io
import sys
import tracemalloc

import numpy as np
import pytest

from quire.errors import TooLarge, Unprocessable
from quire.media.audio import Audio, decode_audio
from quire.media.limits import MediaLimits
from quire.media.resampling import resample
from quire.media.wav import parse

LIMITS = MediaLimits(max_s=2)
RATE = 8000
NOISE = np.random.default_rng(0).uniform(-1, 1, (4000, 2))


def written(samples, subtype, form="WAV"):
    soundfile = pytest.importorskip("soundfile")
    data = io.BytesIO()
    soundfile.write(data, samples, RATE, format=form, subtype=subtype)
    return data.getvalue()


def header(coding=1, channels=1, rate=RATE, bits=16, size=None, body=b"\0\0"):
    block = channels * bits // 8 if size is None else size
    fields = (coding, 2), (channels, 2), (rate, 4), (0, 4), (block, 2), (bits, 2)
    form = b"".join(value.to_bytes(width, "little") for value, width in fields)
    return b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + form + b"data" + len(body).to_bytes(4, "little") + body


@pytest.mark.parametrize("form", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_are_those_that_soundfile_reads(form, subtype, channels, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    data = written(NOISE[:, :channels], subtype, form)
    theirs = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0].mean(axis=1)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "av", None)
    ours = decode_audio(data, LIMITS)
    assert (ours.rate, ours.samples.dtype) == (RATE, np.float32)
    np.testing.assert_allclose(ours.samples, theirs, atol=1e-7)


@pytest.mark.parametrize("subtype", ["ULAW", "ALAW", "IMA_ADPCM"])
def test_other_codings_are_left_to_the_libraries(subtype):
    data = written(NOISE[:, 0], subtype)
    assert parse(data) is None
    assert decode_audio(data, LIMITS).rate == RATE


@pytest.mark.parametrize(
    "rates", [(8000, 16000), (44100, 16000), (22050, 16000), (48000, 16000), (16000, 11025), (7, 5)]
)
def test_another_rate_gives_what_scipy_gives(rates):
    signal = pytest.importorskip("scipy.signal")
    rate, wanted = rates
    samples = NOISE[:, 0].astype(np.float32)
    theirs = signal.resample_poly(samples, wanted, rate)
    np.testing.assert_allclose(resample(samples, rate, wanted), theirs, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 100])
def test_short_sounds_have_the_length_that_their_rate_says(length):
    for wanted in (1, 3, RATE, 48000):
        assert len(resample(np.ones(length, np.float32), RATE, wanted)) == -(-length * wanted // RATE)


def test_a_rate_that_shares_no_factor_costs_no_more_memory_than_the_sound():
    audio = Audio(samples=np.zeros(767_999, np.float32), rate=767_999)
    tracemalloc.start()
    try:
        assert len(audio.resample(16000)) == 16000
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"RIFF\0\0\0\0WAVE", Unprocessable, "without samples"),
        (b"RIFF\0\0\0\0WAVEdata\2\0\0\0\0\0", Unprocessable, "does not say how"),
        (header(rate=0), Unprocessable, "says it has 0 samples a second"),
        (header(rate=2**32 - 1), Unprocessable, "samples a second"),
        (header(body=b""), Unprocessable, "no samples"),
        (header(rate=100, body=bytes(402)), TooLarge, "longer than 2 seconds"),
        (header(channels=65535, size=65535, bits=8, body=b"\0"), Unprocessable, "no samples"),
        (header(coding=3, bits=32, body=np.float32(np.nan).tobytes()), Unprocessable, "not finite numbers"),
    ],
)
def test_a_file_that_cannot_be_is_refused(data, error, said):
    with pytest.raises(error, match=said):
        decode_audio(data, LIMITS)


@pytest.mark.parametrize("changes", [{"channels": 0, "size": 0}, {"bits": 12}, {"size": 7}, {"coding": 0xFFFE}])
def test_a_header_that_does_not_add_up_is_not_read_as_plain_samples(changes):
    assert parse(header(**changes)) is None
