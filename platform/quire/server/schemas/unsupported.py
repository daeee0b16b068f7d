"""The fields of other servers that this server refuses, because ignoring them would change the answer silently.

Each field has the values that have no effect; these are accepted, as is null. Fields that never change the answer
(`user`, `store`, `service_tier`, …) are not listed; they are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = tuple[Any, ...]

UNSUPPORTED_FIELDS: Mapping[str, Values] = {
    # OpenAI
    "suffix": ("",),
    "audio": (),
    "modalities": (["text"], []),
    "functions": ([],),
    "function_call": ("none",),
    "web_search_options": (),
    # vLLM
    "prompt_embeds": (),
    "logprob_token_ids": ([],),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "repetition_detection": ({},),
    "watermarking": (False,),
    "return_token_offsets": (False,),
    "routed_experts_prompt_start": (0,),
    "early_stopping": (False,),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "instruction": ("",),
    "images": ([],),
    "multi_modal_data": ({},),
    # SGLang
    "input_embeds": ([],),
    "image_data": ([], ""),
    "audio_data": ([], ""),
    "video_data": ([], ""),
    "lora_path": ("",),
    "session_params": ({},),
    "custom_logit_processor": ("",),
    "custom_params": ({},),
    "stop_regex": ([], ""),
    "structural_tag": ("",),
    "no_stop_trim": (False,),
    "return_logprob": (False,),
    "top_logprobs_num": (0,),
    "token_ids_logprob": ([],),
    "return_hidden_states": (False,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    # TGI and LoRAX
    "watermark": (False,),
    "typical_p": (1, 1.0),
    "adapter_id": ("",),
    "adapter_source": ("",),
    "merged_adapters": ({},),
    "do_sample": (True,),
    "max_new_tokens": (),
    "top_n_tokens": (0,),
    "decoder_input_details": (False,),
    "return_full_text": (False,),
    "stop_sequences": ([],),
    # llama.cpp
    "n_predict": (),
    "n_probs": (0,),
    "repeat_penalty": (1, 1.0),
    "dynatemp_range": (0, 0.0),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "xtc_probability": (0, 0.0),
    "dry_multiplier": (0, 0.0),
    "top_n_sigma": (-1, -1.0, 0, 0.0),
    "tfs": (1, 1.0),
    "tfs_z": (1, 1.0),
    "samplers": (),
    "lora": ([],),
    "t_max_predict_ms": (0,),
    # transformers
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1, 1.0),
    "exponential_decay_length_penalty": (),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0, 0.0),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "top_a": (0, 0.0),
    "guidance_scale": (1, 1.0),
    "negative_prompt": ("",),
    # the APIs of Qwen and Mistral
    "enable_thinking": (),
    "random_seed": (),
    "safe_prompt": (False,),
    # Cohere, Jina, Text Embeddings Inference
    "rank_fields": ([],),
    "max_chunks_per_doc": (),
    "late_chunking": (False,),
    "normalized": (True,),
    "embedding_type": ("float",),
    "prompt_name": ("",),
    "raw_scores": (False,),
}

REPLACEMENTS: Mapping[str, str] = {
    "functions": "tools",
    "function_call": "tool_choice",
    "lora_path": "model` or `adapters",
    "lora": "model` or `adapters",
    "adapter_id": "model` or `adapters",
    "merged_adapters": "adapters",
    "structural_tag": "structured_outputs",
    "return_logprob": "logprobs",
    "top_logprobs_num": "logprobs",
    "n_probs": "logprobs",
    "top_n_tokens": "logprobs",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "stop_sequences": "stop",
    "no_stop_trim": "include_stop_str_in_output",
    "do_sample": "temperature",
    "repeat_penalty": "repetition_penalty",
    "num_beams": "use_beam_search` and `n",
    "num_return_sequences": "n",
    "enable_thinking": "chat_template_kwargs",
    "random_seed": "seed",
    "max_chunks_per_doc": "max_tokens_per_doc",
    "normalized": "use_activation",
    "embedding_type": "encoding_format",
}
"""The fields of this server to use instead."""
