"""Small files that unpack to far more than they have are refused, or decoded where they can be stopped."""

import io
from math import inf

import numpy as np
import pytest
from media_bombs import crowded_wav, film, flac, many_scans, packets_in_matroska, wav_header
from PIL import Image

from quire.errors import TooLarge, Unprocessable
from quire.media.audio import decode_audio
from quire.media.images import is_costly, num_pixels
from quire.media.isolated_media import IsolatedMedia
from quire.media.items import MediaBytes
from quire.media.limits import DecodingTime, MediaLimits
from quire.media.loader import MediaLoader
from quire.media.video import decode_video
from quire.media.weights import is_heavy

SIZE = (64, 48)


@pytest.fixture
def isolated():
    made = IsolatedMedia(60.0)
    yield made
    made.close()


@pytest.fixture
def loader():
    made = MediaLoader(MediaLimits(max_s=20))
    yield made
    made.close()


@pytest.fixture(scope="module")
def black():
    pytest.importorskip("av")
    return film("mp4", "mpeg4", [SIZE] * 9)


def silence(num_frames, **more):
    """4096 samples of silence in each frame of a FLAC file."""
    pytest.importorskip("soundfile")
    return flac(num_frames, rate=16_000, channels=1, block=4096, declared=num_frames * 4096, **more)


def test_audio_of_a_high_rate_may_not_have_more_samples_than_long_audio_of_a_usual_one(loader):
    pytest.importorskip("soundfile")
    bomb = flac(160, channels=1, declared=160 * 65_535)
    assert len(bomb) < 3000
    with pytest.raises(TooLarge, match=r"more than 10000000 samples; at 655350 samples a second it may last 15\.3 sec"):
        loader.decode("audio", MediaBytes(data=bomb))
    with pytest.raises(TooLarge, match="more than 10000000 samples"):
        decode_audio(wav_header(1, 700_000, 10_000_001, 8) + bytes(10_000_001), MediaLimits(max_s=20))


def test_audio_is_the_same_from_another_process(isolated):
    found, expected = isolated.audio(silence(3), MediaLimits()), decode_audio(silence(3), MediaLimits())
    assert (found.rate, found.samples.dtype) == (expected.rate, np.float32)
    assert np.array_equal(found.samples, expected.samples)


def test_a_video_is_the_same_from_another_process(isolated, black):
    found, expected = isolated.video(black, MediaLimits(), DecodingTime(inf)), decode_video(black, MediaLimits())
    for name in ("num_frames", "fps", "height", "width", "max_frames"):
        assert getattr(found, name) == getattr(expected, name)
    assert np.array_equal(found.frames([0, 3, 8]), expected.frames([0, 3, 8]))


def test_decoding_audio_and_video_is_ended_when_it_takes_too_long(isolated, black):
    soon = MediaLimits(timeout_s=0.001)
    with pytest.raises(Unprocessable, match=r"Decoding the audio took longer than 0\.001 s and was stopped"):
        isolated.audio(silence(3), soon)
    with pytest.raises(Unprocessable, match=r"Decoding the video took longer than 0\.001 s and was stopped"):
        isolated.video(black, soon, DecodingTime(inf))


def test_the_frames_of_a_video_are_decoded_within_the_time_of_the_prompt(isolated, black):
    now = [0.0]
    time = DecodingTime(10.0, lambda: now[0])
    video = isolated.video(black, MediaLimits(), time)
    with time.measure():
        now[0] = 11.0
    with pytest.raises(Unprocessable, match=r"longer than 10 seconds \(--media-decode-timeout-s\)"):
        video.frames([0])


def test_packets_that_cannot_be_decoded_are_an_error(isolated):
    pytest.importorskip("av")
    bomb = packets_in_matroska(1000, film("matroska", "mpeg4", [SIZE] * 2))
    with pytest.raises(Unprocessable, match="The video cannot be read"):
        isolated.video(bomb, MediaLimits(), DecodingTime(inf))


def test_larger_frames_in_the_middle_are_an_error():
    pytest.importorskip("av")
    joined = film("mpegts", "mpeg2video", [SIZE] * 9) + film("mpegts", "mpeg2video", [(1280, 720)] * 9)
    with pytest.raises(Unprocessable):
        decode_video(joined, MediaLimits()).frames([8])


def test_compressed_audio_does_not_hold_up_light_media():
    limits = MediaLimits()
    plain = wav_header(1, 16_000, 1000) + bytes(1000)
    assert not is_heavy({"audio": [MediaBytes(data=plain)]}, limits)
    assert is_heavy({"audio": [MediaBytes(data=plain), MediaBytes(data=silence(1))]}, limits)


def test_a_jpeg_file_of_many_scans_does_not_hold_up_light_media(loader):
    bomb = many_scans(100, (70, 50))
    assert is_costly(bomb, num_pixels(bomb))
    assert is_heavy({"image": [MediaBytes(data=bomb)]}, MediaLimits())
    assert loader.decode("image", MediaBytes(data=bomb)).size == (70, 50)
    usual = io.BytesIO()
    Image.new("RGB", (70, 50)).save(usual, "JPEG", progressive=True)
    assert not is_costly(usual.getvalue(), 3500)


def test_a_wav_file_of_millions_of_chunks_is_refused():
    with pytest.raises(Unprocessable, match="more than 4096 chunks"):
        decode_audio(crowded_wav(5000), MediaLimits())


@pytest.mark.parametrize("rate", [0, 1, 99, 768_001, 2**32 - 1])
def test_rates_that_no_recording_has_are_refused(rate):
    with pytest.raises(Unprocessable, match=f"says it has {rate} samples a second; 100 to 768000 are accepted"):
        decode_audio(wav_header(1, rate, 1000) + bytes(1000), MediaLimits())
