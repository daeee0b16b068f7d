"""vLLM's arguments, flags and environment variables that are not settings of Quire.

arguments lists which values of such an argument are accepted, and why; it checks `LLM(...)`, flags and YAML files.
flags turns them into hidden command-line flags. variables maps environment variables to Quire's own.
docs/from_vllm.md is generated from these tables. Settings with another name here are in `quire.settings.near_names`.
"""
