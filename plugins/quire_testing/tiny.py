"""Writes tiny random models in Hugging Face format, with a byte tokenizer and a chat template.

The architectures are those of transformers. The weights are large enough that logits differ clearly, so that a wrong
logit changes the answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
"""Ids 256 … 259; ids 0 … 255 are the bytes."""

END_ID = 256
VOCAB_SIZE = 264
"""Vocabulary of the models: a few ids more than the tokenizer has, as in real checkpoints."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

SIZES: dict[str, int] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
"""Config values for architectures that have these settings."""


def byte_tokenizer(folder: str | Path, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Write a tokenizer whose token id i < 256 is the byte i; return the folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[0],
        "pad_token": SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": SIZES["max_position_embeddings"],
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return folder


def tiny_llama(folder: str | Path, seed: int = 0, **overrides: Any) -> Path:
    """Write a tiny Llama with `tiny_model`; return its folder."""
    return tiny_model(folder, "LlamaForCausalLM", seed, **overrides)


def tiny_model(folder: str | Path, architecture: str, seed: int = 0, **overrides: Any) -> Path:
    """Write a tiny random model, its tokenizer and its generation config; return the folder.

    architecture: name of a class in transformers. overrides: settings of its config, beyond `SIZES`.
    Raises ValueError for an architecture that transformers does not have.
    """
    folder = Path(folder)
    save(reference_model(architecture, seed, **overrides), folder)
    return byte_tokenizer(folder)


def save(model: Any, folder: str | Path) -> None:
    """Write a model of transformers, without the progress bar."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if shown:
            logging.enable_progress_bar()


def reference_model(architecture: str, seed: int = 0, attention: str = "eager", **overrides: Any) -> Any:
    """The tiny model as transformers builds it: float32, on the CPU, without dropout.

    attention: its `attn_implementation`.
    """
    import torch

    model_class, config = _model_class(architecture), tiny_config(architecture, **overrides)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # some classes draw vectors, to which `_perturb` only adds
        torch.manual_seed(seed)
        model = model_class._from_config(config, dtype=torch.float32, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            _perturb(parameter, generator)
        saved = model.state_dict().keys()
        for name, buffer in model.named_buffers():
            if name in saved and buffer.is_floating_point() and buffer.dim():  # such as corrections of routers
                _perturb(buffer, generator)
    return model


def tiny_config(architecture: str, **overrides: Any) -> Any:
    """The config of `reference_model`, as an object of transformers."""
    config_class = _model_class(architecture).config_class
    known = config_class(**{name: overrides.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")})
    sizes = {name: size for name, size in SIZES.items() if _can_set(known, name)}
    ids = {"bos_token_id": None, "eos_token_id": END_ID, "pad_token_id": END_ID}
    return config_class(**{**sizes, **ids, "architectures": [architecture], **overrides})


def _model_class(architecture: str) -> Any:
    import transformers

    model_class: Any = getattr(transformers, architecture, None)
    if model_class is None:
        raise ValueError(f"transformers {transformers.__version__} has no {architecture!r} to compare with.")
    return model_class


def _can_set(config: Any, name: str) -> bool:
    """Whether a config has a setting that is not derived from others."""
    declared = getattr(type(config), name, None)
    try:
        exists = hasattr(config, name)
    except Exception:  # transformers' error for a setting that differs between layers
        exists = True
    return exists and not (isinstance(declared, property) and declared.fset is None)


def _perturb(parameter: Any, generator: Any) -> None:
    """Add noise to vectors (norms, biases), and replace matrices with large random values."""
    import torch

    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() == 1:
        parameter.add_(noise * 0.1)
    else:
        parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))


def _byte_characters() -> list[str]:
    """The printable character of each byte in byte-level vocabularies, as in GPT-2.

    Bytes that print as themselves stay; the others become characters from 256 on, in order.
    """
    themselves = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in themselves else chr(next(others)) for byte in range(256)]
