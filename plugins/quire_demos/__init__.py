"""Weights and tokenizers of the demo models, one folder each, below `FOLDER`; `examples/demo_models` trains them."""

from pathlib import Path

FOLDER = Path(__file__).parent
