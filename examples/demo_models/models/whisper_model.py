"""The demo Whisper before it learns anything, and the folder of it when it has."""

from __future__ import annotations

from pathlib import Path

import torch
from data.speech.utterances import SECONDS
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

from models.whisper_tokenizer import END, ENGLISH, MELS, NO_TIMES, PREVIOUS, START, STEP, TRANSCRIBE, TRANSLATE, ids_of

CONTEXT = 64


def new_model(processor: WhisperProcessor) -> WhisperForConditionalGeneration:
    """Whisper's architecture, with a short window."""
    start, end = ids_of(processor.tokenizer, [START, END])
    config = WhisperConfig(
        vocab_size=len(processor.tokenizer),
        num_mel_bins=MELS,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=320,
        decoder_ffn_dim=320,
        max_source_positions=round(SECONDS / STEP),
        max_target_positions=CONTEXT,
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        attn_implementation="eager",
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config = how_to_generate(processor.tokenizer)
    return model


def how_to_generate(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """What `generate` must know of the tokens."""
    start, end, previous, no_times, english, transcribe, translate = ids_of(
        tokenizer, [START, END, PREVIOUS, NO_TIMES, ENGLISH, TRANSCRIBE, TRANSLATE]
    )
    return GenerationConfig(
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        prev_sot_token_id=previous,
        no_timestamps_token_id=no_times,
        max_initial_timestamp_index=round(1.5 / STEP),
        is_multilingual=True,
        lang_to_id={ENGLISH: english},
        task_to_id={"transcribe": transcribe, "translate": translate},
        return_timestamps=False,
        max_length=CONTEXT,
    )


def save_model(model: WhisperForConditionalGeneration, processor: WhisperProcessor, folder: Path) -> None:
    """Write the model as bfloat16 in Hugging Face format, with what it needs to hear and to write."""
    shipped = WhisperForConditionalGeneration(model.config)
    shipped.load_state_dict(model.state_dict())
    shipped.generation_config = model.generation_config
    shipped.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    # Where feature extractors looked before processors had a file of their own.
    processor.feature_extractor.save_pretrained(folder)
