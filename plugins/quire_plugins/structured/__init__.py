"""Grammar back ends: `choice`, llguidance, outlines, xgrammar and lm-format-enforcer.

`json_schemas`, `structural_tags` and `regexes` check a constraint and bring it into one form; a `*_grammars` module
compiles it with a library; the engine then asks the matcher of each seq for a mask per step.
"""
