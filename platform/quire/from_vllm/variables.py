"""Environment variables of vLLM and their replacements here, for a warning at the start and for docs/from_vllm.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SETTINGS: Mapping[str, str] = {
    "VLLM_API_KEY": "QUIRE_API_KEY",
    "VLLM_ATTENTION_BACKEND": "QUIRE_ATTENTION_BACKEND",
    "VLLM_BATCH_INVARIANT": "QUIRE_BATCH_INVARIANT",
    "VLLM_CPU_KVCACHE_SPACE": "QUIRE_KV_CACHE_MEMORY_BYTES",
    "VLLM_LOGGING_LEVEL": "QUIRE_LOG_LEVEL",
    "VLLM_AUDIO_FETCH_TIMEOUT": "QUIRE_MEDIA_TIMEOUT_S",
    "VLLM_IMAGE_FETCH_TIMEOUT": "QUIRE_MEDIA_TIMEOUT_S",
    "VLLM_VIDEO_FETCH_TIMEOUT": "QUIRE_MEDIA_TIMEOUT_S",
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "QUIRE_MAX_MEDIA_BYTES",
    "VLLM_MAX_AUDIO_DECODE_DURATION_S": "QUIRE_MAX_MEDIA_SECONDS",
    "VLLM_MAX_IMAGE_PIXELS": "QUIRE_MAX_IMAGE_PIXELS",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "QUIRE_MAX_MEDIA_REDIRECTS",
    "VLLM_PLUGINS": "QUIRE_PLUGINS",
    "VLLM_REGEX_COMPILATION_TIMEOUT_S": "QUIRE_STRUCTURED_OUTPUTS_TIMEOUT_S",
    "VLLM_USE_MODELSCOPE": "QUIRE_HUB",
}
"""vLLM's variable → the variable of the same setting here. Units may differ; the help of the flag names them."""

VALUES: Mapping[str, str] = {
    "VLLM_ATTENTION_BACKEND": "flash-attn",
    "VLLM_BATCH_INVARIANT": "true",
    "VLLM_CPU_KVCACHE_SPACE": "4G",
    "VLLM_LOGGING_LEVEL": "debug",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    "VLLM_PLUGINS": "llama,tools",
    "VLLM_USE_MODELSCOPE": "modelscope",
}
"""vLLM's variable → an example value of the variable here, if values differ."""

ELSEWHERE: Mapping[str, str] = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "with --enable-lora requests may load adapters; "
    "--admin-api-key and --lora-root restrict which keys and which folders",
    "VLLM_CACHE_ROOT": "see --download-dir; the default is the hub's cache",
    "VLLM_CPU_OMP_THREADS_BIND": "set OMP_NUM_THREADS, and start the server under taskset",
    "VLLM_DO_NOT_TRACK": "Quire sends no usage data",
    "VLLM_HOST_IP": "see --host",
    "VLLM_LORA_RESOLVER_CACHE_DIR": "see --lora-folder.path of the plugin lora-folder",
    "VLLM_LORA_RESOLVER_HF_REPO_LIST": "see --lora-hub.allow of the plugin lora-hub",
    "VLLM_NO_USAGE_STATS": "Quire sends no usage data",
    "VLLM_PORT": "see --port",
    "VLLM_SERVER_DEV_MODE": "there is no such mode",
    "VLLM_USE_V1": "there is one engine",
    "VLLM_WORKER_MULTIPROC_METHOD": "one engine process runs all models",
}
"""vLLM's variable → the alternative here, if no variable replaces it."""

HARMLESS = frozenset({"VLLM_DO_NOT_TRACK", "VLLM_NO_USAGE_STATS", "VLLM_USE_V1", "VLLM_WORKER_MULTIPROC_METHOD"})
"""Variables whose request is fulfilled anyway, so that no warning is logged."""


def replacement(name: str) -> str:
    """The replacement of a variable of vLLM: our variable with an example value, or a clause that explains."""
    if name in SETTINGS:
        value = VALUES.get(name)
        return SETTINGS[name] + (f"={value}" if value else "")
    return ELSEWHERE[name]


def unread_variables(environment: Iterable[str]) -> list[str]:
    """A warning for each variable of vLLM that is set and has no effect, in the order of their names."""
    names = sorted({*SETTINGS, *ELSEWHERE}.difference(HARMLESS).intersection(environment))
    return [
        f"The variable {name} is not read; {'use ' if name in SETTINGS else ''}{replacement(name)} (docs/from_vllm.md)."
        for name in names
    ]
