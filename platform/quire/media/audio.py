"""Decodes audio files, and converts audio of Python code, to mono samples for input mappers.

A mapper resamples them to the rate of its model (`Audio.resample`).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BadRequest, TooLarge, Unprocessable
from quire.media.containers import DecodingDeadline, open_container
from quire.media.limits import MediaLimits
from quire.media.resampling import resample
from quire.media.wav import Wav, chunks, is_wav, parse

MIN_RATE, MAX_RATE = 100, 768_000
"""Samples per second of a file. A lower rate needs a filter for each sample of the model's rate."""

_BLOCK = 1 << 16
"""Samples read at once, between checks of the limits."""

_USUAL_RATE = 48_000
"""Audio of a higher rate may have as many samples as the longest audio of this one, for the sake of memory."""

_MIN_SAMPLES = 10_000_000
"""So many samples are accepted at any rate, also where the longest audio is short."""

_UNKNOWN_SIZE = 0x7F000000
"""Streaming programs write sizes from this one on as placeholders for an unknown size."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Audio:
    """Mono audio. samples: float32 [samples], from -1 to 1. rate: samples per second."""

    samples: NDArray[np.float32]
    rate: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate

    def resample(self, rate: int) -> NDArray[np.float32]:
        """The samples at another rate: float32 [samples × rate / self.rate, rounded up]."""
        return self.samples if rate == self.rate else resample(self.samples, self.rate, rate)


def decode_audio(data: bytes, limits: MediaLimits) -> Audio:
    """Decode an audio file and average its channels. WAV needs no library; other formats need soundfile or PyAV.

    Raises TooLarge for more than `limits.max_s` seconds, Unprocessable for bytes that are not audio, `BadRequest` if
    the libraries are not installed.
    """
    if not data:
        raise Unprocessable("The audio is empty: it has no bytes.")
    _check_complete(data)
    if (plain := parse(data)) is not None:
        return _from_wav(plain, limits)
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: libsndfile is missing
        return _with_pyav(data, limits)
    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except soundfile.LibsndfileError:
        return _with_pyav(data, limits)
    with file:
        _check_samples(file.frames, file.samplerate, limits)
        try:
            blocks = list(_blocks(file, limits))
        except soundfile.LibsndfileError as error:
            raise Unprocessable(f"The audio is damaged: {error}.") from error
        return _to_audio(blocks, file.samplerate)


def _from_wav(plain: Wav, limits: MediaLimits) -> Audio:
    _check_samples(plain.num_frames, plain.rate, limits)
    return _to_audio(list(plain.blocks()), plain.rate)


def _check_complete(data: bytes) -> None:
    """Raise Unprocessable for a truncated WAV file, which libraries would read as a shorter one."""
    if not is_wav(data):
        return
    for name, begin, size in chunks(data):
        missing = begin + size - len(data)
        if name == b"data" and size < _UNKNOWN_SIZE and missing > 0:
            raise Unprocessable(f"The audio is cut short: of {size} bytes of samples {missing} are missing.")


def _blocks(file: Any, limits: MediaLimits) -> Iterator[NDArray[np.float32]]:
    """Mono blocks of the file. The length is checked while reading, because the header may be wrong."""
    count, size = 0, max(_BLOCK // file.channels, 1)
    while len(block := file.read(size, dtype="float32", always_2d=True)):
        count += len(block)
        _check_samples(count, file.samplerate, limits)
        yield block.mean(axis=1, dtype=np.float32)


def _with_pyav(data: bytes, limits: MediaLimits) -> Audio:
    deadline = DecodingDeadline("audio", limits.timeout_s)
    with open_container(data, "audio", "audio") as container:
        import av

        if not container.streams.audio:
            raise Unprocessable("The file has no audio in it.")
        if container.streams.audio[0].codec_context is None:
            raise Unprocessable("The audio has an unknown codec.")
        rate = container.streams.audio[0].rate
        resampler = av.AudioResampler(format="fltp", layout="mono", rate=rate)
        blocks, count = [], 0
        for frame in container.decode(audio=0):
            deadline.check()
            for part in resampler.resample(frame):
                blocks.append(part.to_ndarray()[0])
                count += part.samples
            _check_samples(count, rate, limits)
        blocks += [part.to_ndarray()[0] for part in resampler.resample(None)]
        return _to_audio(blocks, rate)


def _to_audio(blocks: list[NDArray[np.float32]], rate: int) -> Audio:
    samples = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
    if not len(samples):
        raise Unprocessable("The audio has no samples.")
    if not np.isfinite(samples).all():  # files of floats can contain NaN
        raise Unprocessable("The audio has samples that are not finite numbers.")
    return Audio(samples=samples.astype(np.float32, copy=False), rate=rate)


def as_audio(item: Any, limits: MediaLimits) -> Audio:
    """Convert audio of Python code: `Audio`, or (samples, rate) with float samples [samples] or [channels, samples].

    Raises `BadRequest` for other objects, TooLarge for too many seconds.
    """
    if isinstance(item, Audio):
        return item
    if not isinstance(item, tuple) or len(item) != 2:
        raise BadRequest(
            "Audio must be bytes of an audio file, a path, a URL, or a pair (samples, rate); got"
            f" {type(item).__name__}."
        )
    samples, rate = np.asarray(item[0]), item[1]
    is_whole = isinstance(rate, int | np.integer) or (isinstance(rate, float) and rate.is_integer())
    if not is_whole or not 0 < rate <= MAX_RATE:
        raise BadRequest(f"The rate of audio must be a whole number from 1 to {MAX_RATE}; got {rate!r:.40}.")
    if samples.dtype.kind != "f" or samples.ndim not in (1, 2) or not samples.size:
        raise BadRequest(
            "Samples of audio must be floats of shape [samples] or [channels, samples]; got"
            f" {samples.dtype} {list(samples.shape)}."
        )
    if not np.isfinite(samples).all():
        raise BadRequest("Samples of audio must be finite numbers.")
    _check_length(samples.shape[-1] / int(rate), limits)
    mono = samples if samples.ndim == 1 else samples.mean(axis=0)
    return Audio(samples=mono.astype(np.float32), rate=int(rate))


def _check_samples(count: int, rate: int, limits: MediaLimits) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise Unprocessable(f"The audio says it has {rate} samples a second; {MIN_RATE} to {MAX_RATE} are accepted.")
    _check_length(count / rate, limits)
    most = max(int(limits.max_s * _USUAL_RATE), _MIN_SAMPLES)
    if count > most:
        raise TooLarge(
            f"The audio has more than {most} samples; at {rate} samples a second it may last {most / rate:.1f} seconds"
            f" (--max-media-seconds, which is for rates up to {_USUAL_RATE})."
        )


def _check_length(seconds: float, limits: MediaLimits) -> None:
    if seconds > limits.max_s:
        raise TooLarge(f"The audio is longer than {limits.max_s:g} seconds (--max-media-seconds).")
