"""Models that say one token for ever, whatever the prompt: answers show which model gave them."""

import torch

from quire_testing import byte_tokenizer
from quire_testing.tiny import reference_model, save


@torch.no_grad()
def one_token_llama(folder, token, **sizes):
    """A Llama that only says this token, in a folder with a tokenizer of bytes.

    All embeddings are ones and no branch adds anything, so the hidden state is ones, and only the row of `token` in the
    last matrix is not 0.
    """
    model = reference_model("LlamaForCausalLM", tie_word_embeddings=False, **sizes)
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
            weight.zero_()
        elif "norm" in name or "embed_tokens" in name:
            weight.fill_(1)
    model.lm_head.weight[token] = 1
    save(model, folder)
    return byte_tokenizer(folder)
