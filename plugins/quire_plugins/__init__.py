"""The bundled plugins. pyproject.toml lists them as entry points; `platform plugins` shows what each brings.

`architectures`, `vision` and `audio` describe models; `structured` has grammar back ends, `tools` and `reasoning`
formats of answers, `int8` a quantization, `policies` the scheduling policies.
"""
