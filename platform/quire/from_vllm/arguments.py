"""Arguments of vLLM that are not settings here, for `LLM(...)`, the command line and YAML files.

A value that asks for no missing feature is accepted, so that existing scripts, commands and manifests run unchanged.
Other values are refused with a sentence that names the alternative.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The accepted values of an argument.

    values: () = any value. why: the alternative here, or the reason why any value is accepted.
    """

    values: tuple[Any, ...] = ()
    why: str

    @property
    def is_switch(self) -> bool:
        """Whether the argument is boolean."""
        return any(isinstance(value, bool) for value in self.values)


ONE_DEVICE = "a model runs on one device"
NO_RAY = "models run in one process on this machine, without Ray"
ONE_DRAFTER = "a drafter runs on the device of its model"
ADAPTIVE_DRAFTS = "drafts get shorter, and stop, where they cost more time than they save (docs/speculation.md)"
NO_GRAPHS = "no CUDA graphs are captured of drafters"
ALL_LENGTHS = "CUDA graphs are captured for sequences of any length; --enforce-eager captures none"
NO_LOGGED_PROMPTS = "prompts and answers are never logged; --disable-access-log turns off the log line of each request"
NO_STEP_TRACES = "traces have the queueing, prefill and decoding of each request, and no parts of the engine's steps"
NO_TRANSFER = "keys and values stay in this process"
EDIT_CONFIG = "edit config.json in a copy of the model's folder"
CHOSEN_OPS = (
    "the fastest operation that the device supports is used, of Quire or of a plugin; "
    "`platform doctor` lists the choice"
)
ONE_SCHEDULER = "the scheduler runs before every step"
PROMPT_ADAPTERS = "--enable-lora runs prompt tuning, P-tuning and prefix tuning too; such adapters load like LoRA"


def _only(why: str, *values: Any) -> Accepted:
    return Accepted(values=values, why=why)


def _switch(why: str) -> Accepted:
    return Accepted(values=(False, True), why=why)


def _any(why: str) -> Accepted:
    return Accepted(why=why)


ARGUMENTS: Mapping[str, Accepted] = {
    "worker_use_ray": _only(NO_RAY, False),
    "engine_use_ray": _only(NO_RAY, False),
    "ray_workers_use_nsight": _only(NO_RAY, False),
    "disable_custom_all_reduce": _switch(ONE_DEVICE),
    "max_parallel_loading_workers": _any(ONE_DEVICE),
    "api_server_count": _only("one process answers HTTP", 1),
    "headless": _only("of --nnodes, all but the first answer no HTTP without a flag", False),
    "grpc": _only("the server speaks HTTP", False),
    "speculative_draft_tensor_parallel_size": _only(ONE_DRAFTER, None, 1),
    "speculative_max_model_len": _only("a drafter drafts up to the end of the context", None),
    "speculative_disable_by_batch_size": _any(ADAPTIVE_DRAFTS),
    "speculative_disable_mqa_scorer": _switch("drafts are verified in the same step as all other tokens"),
    "disable_logprobs_during_spec_decoding": _switch("log-probabilities are the same with drafts"),
    "cpu_offload_gb": _only("weights stay on the model's device; --swap-space holds pages of the KV cache", 0),
    "kv_offloading_backend": _only("--swap-space holds pages in host memory", None, "native"),
    "kv_transfer_config": _only(NO_TRANSFER, None),
    "max_context_len_to_capture": _any(ALL_LENGTHS),
    "max_seq_len_to_capture": _any(ALL_LENGTHS),
    "compilation_config": _only(CHOSEN_OPS, None),
    "attention_config": _only(CHOSEN_OPS, None),
    "disable_log_requests": _switch(NO_LOGGED_PROMPTS),
    "enable_log_requests": _only(NO_LOGGED_PROMPTS, False),
    "enable_log_outputs": _only(NO_LOGGED_PROMPTS, False),
    "max_log_len": _any(NO_LOGGED_PROMPTS),
    "collect_detailed_traces": _only(NO_STEP_TRACES, None),
    "use_v2_block_manager": _switch(ONE_SCHEDULER),
    "num_scheduler_steps": _only(ONE_SCHEDULER, 1),
    "multi_step_stream_outputs": _switch(ONE_SCHEDULER),
    "scheduler_delay_factor": _only("waiting requests start as soon as there are free pages", 0),
    "async_scheduling": _switch(ONE_SCHEDULER),
    "disable_async_output_proc": _switch(ONE_SCHEDULER),
    "prefix_caching_hash_algo": _any("pages are always found by a cryptographic hash"),
    "skip_tokenizer_init": _only("prompts and stop strings need the tokenizer", False),
    "chat_template_content_format": _only("a template gets the form that it needs", "auto"),
    "hf_token": _only("set the variable HF_TOKEN, or log in with `hf auth login`", None),
    "hf_overrides": _only(EDIT_CONFIG, None, {}),
    "hf_config_path": _only(EDIT_CONFIG, None),
    "rope_scaling": _only(EDIT_CONFIG, None, {}),
    "rope_theta": _only(EDIT_CONFIG, None),
    "config_format": _only("config.json is read", "auto", "hf"),
    "disable_sliding_window": _only("windows are those of the model", False),
    "use_tqdm_on_load": _switch("loading shows no progress"),
    "code_revision": _only("code of a checkpoint is that of --revision", None),
    "quantization_param_path": _only("scales of the KV cache are computed as it is written", None),
    "model_loader_extra_config": _only("see --load-format", None, {}),
    "enable_sleep_mode": _switch("every model can sleep: POST /sleep and /wake_up, or LLM.sleep and LLM.wake_up"),
    "mm_processor_kwargs": _only("plugins have options for this (platform serve --help)", None, {}),
    "mm_processor_cache_gb": _only("--encoder-cache-bytes bounds what is kept of media", 0),
    "disable_mm_preprocessor_cache": _switch("--encoder-cache-bytes bounds what is kept of media"),
    "lora_dtype": _only("adapters have the model's data type", None, "auto"),
    "lora_extra_vocab_size": _any("adapters use the model's vocabulary"),
    "long_lora_scaling_factors": _only("adapters for longer contexts are not supported", None),
    "fully_sharded_loras": _switch(ONE_DEVICE),
    "enable_tower_connector_lora": _switch("adapters work on towers and projectors too, without a switch"),
    "enable_prompt_adapter": _only(PROMPT_ADAPTERS, False),
    "max_prompt_adapters": _only(PROMPT_ADAPTERS, None, 1),
}


SPECULATIVE_KEYS: Mapping[str, Accepted] = {
    "draft_tensor_parallel_size": _only(ONE_DRAFTER, 1),
    "tensor_parallel_size": _only(ONE_DRAFTER, 1),
    "enforce_eager": _switch(NO_GRAPHS),
    "disable_by_batch_size": _any(ADAPTIVE_DRAFTS),
    "num_speculative_tokens_per_batch_size": _any(ADAPTIVE_DRAFTS),
    "enable_adaptive_verification": _switch(ADAPTIVE_DRAFTS),
    "disable_mqa_scorer": _switch("drafts are verified in the same step as all other tokens"),
    "disable_logprobs": _switch("log-probabilities are the same with drafts"),
    "disable_padded_drafter_batch": _switch("batches are not padded"),
    "use_local_argmax_reduction": _switch(ONE_DRAFTER),
    "parallel_drafting": _only("no method drafts in parallel", False),
    "use_heterogeneous_vocab": _only("drafter and model must have one vocabulary", False),
    "rejection_sample_method": _only("see `acceptance`", "standard", "strict"),
    "attention_backend": _only(CHOSEN_OPS, None),
    "moe_backend": _only(CHOSEN_OPS, None),
}
"""Keys of vLLM's --speculative-config that are none here. null is accepted too."""

OTHER_NAMES: Mapping[str, str] = {
    "spec_decoding_acceptance_method": "spec_acceptance",
    "spec_method": "speculative_method",
    "spec_model": "speculative_model",
    "spec_tokens": "num_speculative_tokens",
}
"""Names of settings that vLLM has too, for Python and for the models of --models; flags have them by `also`."""


def check_argument(name: str, value: Any) -> None:
    """Raise ConfigError if the value asks for a missing feature. name: a key of `ARGUMENTS`."""
    _check(f"--{name.replace('_', '-')}", ARGUMENTS[name], value, name)


def _check(shown: str, accepted: Accepted, value: Any, param: str) -> None:
    if not accepted.values or value in accepted.values:
        return
    values = " or ".join("left out" if one is None else repr(one) for one in accepted.values if one != {})
    raise ConfigError(f"{shown} can only be {values} here, got {value!r:.80}: {accepted.why}.", param)


def without_vllm_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without the arguments of `ARGUMENTS`, with the names that they have here.

    Raises ConfigError if one asks for a missing feature.
    """
    for name in settings:
        if name in ARGUMENTS:
            check_argument(name, settings[name])
    return {OTHER_NAMES.get(name, name): value for name, value in settings.items() if name not in ARGUMENTS}


def without_vllm_keys(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """A --speculative-config without null values and without the keys of `SPECULATIVE_KEYS` that are not `known`.

    Raises ConfigError if one asks for a missing feature.
    """
    kept = {key: value for key, value in given.items() if value is not None}
    for key in kept.keys() & (SPECULATIVE_KEYS.keys() - set(known)):
        _check(f"`{key}` of --speculative-config", SPECULATIVE_KEYS[key], kept.pop(key), "speculative_config")
    return kept
