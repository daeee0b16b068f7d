"""outlines: `from_sglang`, which asks for a form by SGLang's names. Arguments: URL."""

import re
import sys
from typing import Literal

import openai
import outlines
from outlines.types import CFG, Regex
from pydantic import BaseModel


class Answer(BaseModel):
    yes: bool


model = outlines.from_sglang(openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none"), "demo-chat")
ask = "What is the capital of Arvia?"
city = model(ask, Literal["Belcast", "Dorun"], max_tokens=20)
digits = model(ask, Regex("[0-9]{3}"), max_tokens=20)
number = model(ask, int, max_tokens=5, temperature=0)
answer = Answer.model_validate_json(model(ask, Answer, max_tokens=60, temperature=0))
grammar = model(ask, CFG('root ::= "yes" | "no"'), max_tokens=20)
assert city in ("Belcast", "Dorun"), city
assert re.fullmatch("[0-9]{3}", digits), digits
assert re.fullmatch("-?[0-9]*", number), number
assert grammar in ("yes", "no"), grammar
print(city, digits, number, answer, grammar)
