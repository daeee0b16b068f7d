"""Imports transformers' config classes without the PyTorch parts that only its models need."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_ACTIVATIONS = "transformers.activations"
_VALIDATORS = "transformers.utils.type_validators"


def config_mapping() -> Any:
    """transformers' config classes by model_type.

    Every config class imports the validators of fields, and these import transformers' activations for their names
    alone; with them come torch.compile and torch.distributed, which take longer to import than torch itself. So the
    validators get an empty table, as they do where PyTorch is not installed, and accept any name;
    `config_fields.act` raises an error for those that Quire lacks.
    """
    if _ACTIVATIONS not in sys.modules and _VALIDATORS not in sys.modules:
        import torch  # noqa: F401  # first, so that only what transformers adds is imported below
        import transformers

        stand_in = ModuleType(_ACTIVATIONS)
        stand_in.ACT2FN = {}  # type: ignore[attr-defined]
        sys.modules[_ACTIVATIONS] = stand_in
        try:
            import transformers.utils.type_validators  # noqa: F401
        except ImportError:  # another version of transformers, which has none
            pass
        finally:
            del sys.modules[_ACTIVATIONS]
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING
