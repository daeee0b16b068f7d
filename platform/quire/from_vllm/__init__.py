"""What users of vLLM bring along: arguments, flags and environment variables that are no settings here.

docs/from_vllm.md is made from it. Settings with another name here are in `quire.near_names`.
"""
