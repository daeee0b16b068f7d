"""`GET /tokenizer_info`: what a client needs to make prompts as the server would, as vLLM answers it."""

from __future__ import annotations

from typing import Any

from quire.server.models import Served
from quire.text.tokenizer_files import NAMED_TOKENS

USUAL_CLASS = "PreTrainedTokenizerFast"


def tokenizer_info(served: Served) -> dict[str, Any]:
    """Special tokens (null where there is none), lengths, and the chat template that is in use."""
    tokenizer, template = served.tokenizer, served.template
    return {
        "model": served.name,
        "tokenizer_class": tokenizer.class_name or USUAL_CLASS,
        **{name: tokenizer.special_tokens.get(name) for name in NAMED_TOKENS},
        "additional_special_tokens": list(tokenizer.extra_special_tokens),
        "model_max_length": served.info.max_model_len,
        "vocab_size": served.info.vocab_size,
        "chat_template": template.usual if template is not None else None,
    }
