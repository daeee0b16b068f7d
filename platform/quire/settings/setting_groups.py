"""The headings under which `--help` and docs/serving.md list the settings; unlisted settings are under the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

GROUPS: Mapping[str, tuple[str, ...]] = {
    "model": (
        *(
            "model",
            "served_model_name",
            "model_aliases",
            "tokenizer",
            "tokenizer_mode",
            "revision",
            "tokenizer_revision",
            "hub",
            "download_dir",
        ),
        "model_root",
        *("load_format", "dtype", "quantization", "quantization_group_size", "quantization_ignore", "activation_bits"),
        *("weights_cache", "weights_cache_bytes"),
        *("device", "max_model_len", "task", "seed"),
        *("trust_remote_code", "model_impl"),
        *("chat_template", "response_role", "generation_config", "override_generation_config"),
    ),
    "HTTP": (
        *("host", "port", "root_path", "allowed_origins", "allowed_methods", "allowed_headers", "allow_credentials"),
        *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ui", "disable_fastapi_docs", "enable_request_id_headers"),
        *("enable_tokenizer_info_endpoint", "metrics_prefix", "shutdown_timeout_s", "engine_timeout_s", "max_restarts"),
    ),
    "keys and limits": (
        *("api_key", "admin_api_key", "metrics_require_key", "prefix_cache_scope"),
        *("max_body_bytes", "max_pooling_inputs", "template_timeout_s"),
        *("trust_request_chat_template", "max_logprobs", "max_response_bytes", "max_text_chars", "max_json_values"),
        *("max_connections", "max_connections_per_address", "max_headers", "max_header_bytes"),
        *("header_timeout_s", "body_timeout_s", "keep_alive_timeout_s"),
        *("plugin_max_faults", "gate_timeout_s", "gate_threads"),
    ),
    "logging and usage": (
        *("log_level", "log_format", "disable_access_log", "disable_log_stats", "otlp_traces_endpoint"),
        *("usage_db", "usage_days", "usage_max_rows", "audit_log", "metrics_max_tenants"),
        "stream_interval",
        *("enable_prompt_tokens_details", "enable_force_include_usage"),
    ),
    "several ranks": (
        *("tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel"),
        "distributed_executor_backend",
        *("nnodes", "node_rank", "master_addr", "master_port", "distributed_timeout_s"),
    ),
    "scheduling": (
        *("max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs", "enable_chunked_prefill"),
        *("scheduling_policy", "preemption", "batch_invariant", "enforce_eager", "attention_backend"),
    ),
    "several engine processes": ("data_parallel_size", "data_parallel_routing", "kv_events_config"),
    "speculative decoding": (
        *("speculative_config", "speculative_method", "speculative_model", "num_speculative_tokens"),
        *("ngram_prompt_lookup_max", "ngram_prompt_lookup_min", "spec_acceptance", "speculative_lora"),
    ),
    "memory": (
        *("kv_cache_memory_bytes", "gpu_memory_utilization", "kv_cache_dtype", "num_pages", "page_size"),
        *("num_state_checkpoints", "state_checkpoint_interval"),
        *("memory_budget", "load", "keep_alive", "pinned", "max_model_waiters", "model_wait_timeout_s"),
        *("enable_prefix_caching", "swap_space", "encoder_cache_bytes", "max_num_encoder_tokens"),
    ),
    "adapters": (
        *(
            "lora_modules",
            "lora_root",
            "lora_cache_dir",
            "max_loras",
            "max_lora_rank",
            "max_cpu_loras",
            "default_mm_loras",
            "lora_load_timeout_s",
        ),
    ),
    "tools, reasoning and structured output": (
        *("enable_auto_tool_choice", "tool_call_parser", "exclude_tools_when_tool_choice_none", "reasoning_parser"),
        *("structured_outputs_backend", "structured_outputs_timeout_s"),
        *("structured_outputs_token_time_s", "structured_outputs_cache_bytes"),
    ),
    "embeddings": ("pooling", "matryoshka"),
    "images, video and audio": (
        *("limit_mm_per_prompt", "allowed_local_media_path", "allowed_media_domains"),
        *("allow_private_media_addresses", "max_media_bytes", "max_image_pixels", "max_media_seconds"),
        *("max_video_frames", "max_prompt_pixels", "media_timeout_s", "media_decode_timeout_s", "max_media_redirects"),
    ),
    "other": (),
}


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort names under their headings, in the order of `GROUPS`, without empty headings."""
    heading = {name: title for title, listed in GROUPS.items() for name in listed}
    found: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name in names:
        found[heading.get(name, "other")].append(name)
    return {title: members for title, members in found.items() if members}
