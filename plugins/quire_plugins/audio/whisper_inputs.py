"""Audio inputs of Whisper models."""

from __future__ import annotations

from pathlib import Path

from quire.records import Context, MappedMedia
from quire_models.loading import checkpoint
from quire_plugins.audio.log_mel import AudioLike, LogMelExtractor


class SpeechProcessor:
    """Speech of at most one window, as the frames of a whole window padded with silence.

    rate: samples per second. window_s: seconds per window; length: its ids. positions: those of the text.
    """

    def __init__(self, context: Context) -> None:
        """Raises CheckpointError when the folder has no feature extractor, or one that does not match the model."""
        assert context.folder is not None, "a mapper is built for a model"
        config = checkpoint.read_config(Path(context.folder))
        self._id, self.length = config.decoder_start_token_id, config.max_source_positions
        self.positions: int = config.max_target_positions
        self._mels = LogMelExtractor(context.folder, config.num_mel_bins, 2 * self.length)
        self.rate, self.window_s = self._mels.rate, self._mels.seconds

    def map(self, item: AudioLike) -> MappedMedia:
        """Maps `quire.media.audio.Audio`: two frames per id. Raises TooLarge for more than a window."""
        frames = self._mels.full_window(self._mels.samples(item))
        return MappedMedia(ids=[self._id] * self.length, tensors={"frames": frames})
