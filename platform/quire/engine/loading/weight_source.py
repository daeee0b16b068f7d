"""Where the weights of a model come from, and how they are quantized."""

from __future__ import annotations

from dataclasses import dataclass

from quire import hub
from quire.engine.quantization.at_load import LinearAt
from quire.errors import ConfigError
from quire.records import CheckpointFormat
from quire.settings.model_config import ModelConfig
from quire_models.gguf.folder import open_tensors
from quire_models.loading import tensor_files as tensors
from quire_models.loading.quantized_files import QuantizedFiles, WeightFiles
from quire_models.loading.weight_names import WeightsMapper
from quire_models.loading.weights import OnProgress
from quire_models.sharding.model import ModelShard, WholeModel


@dataclass(frozen=True)
class WeightSource:
    """The source of the weights.

    stored_as: how they are quantized there, None if they aren't. linear_at: the ops of `--quantization`. on_progress:
    gets the loaded fraction. shard: the part of the model that is loaded.
    """

    located: hub.ModelFiles
    config: ModelConfig
    names: WeightsMapper
    stored_as: CheckpointFormat | None
    linear_at: LinearAt | None
    on_progress: OnProgress
    shard: ModelShard | WholeModel

    def files(self) -> WeightFiles | None:
        """The weights; None for random ones. Raises ConfigError if `--quantization` asks to quantize them again."""
        if self.config.load_format == "dummy":
            return None
        if self.located.gguf is not None:
            read = open_tensors(self.located.parts)
            if read.quantized_types and self.config.quantization is not None:
                raise ConfigError(
                    f"--quantization {self.config.quantization}: {self.located.gguf} is quantized already "
                    f"({', '.join(read.quantized_types)}); leave the setting out."
                )
            return read
        found = tensors.find(self.located.folder, self.config.load_format)
        return found if self.stored_as is None else QuantizedFiles(found, self.stored_as)
