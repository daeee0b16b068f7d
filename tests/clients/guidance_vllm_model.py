"""guidance: `VLLMModel`, which sends one grammar by vLLM's old and by its new name. Arguments: URL."""

import re
import sys

from guidance import assistant, gen, json, select, user
from guidance.models.experimental import VLLMModel

model = VLLMModel("demo-chat", base_url=f"{sys.argv[1]}/v1", api_key="none", echo=False)
with user():
    model += "What is the capital of Arvia?"
with assistant():
    digits = model + gen("a", regex="[0-9]{3}", max_tokens=20)
    choice = model + select(["Belcast", "Dorun"], name="a")
    value = model + json(
        name="a", schema={"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
    )
assert re.fullmatch("[0-9]{3}", digits["a"]), digits["a"]
assert choice["a"] in ("Belcast", "Dorun"), choice["a"]
assert '"n"' in value["a"], value["a"]
print(digits["a"], choice["a"], value["a"])
