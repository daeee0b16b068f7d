"""lm-evaluation-harness: local-completions with `tokenizer_backend=remote`. Arguments: URL.

The requests are made by hand, so that nothing has to be downloaded.
"""

import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

model = LocalCompletionsAPI(
    base_url=f"{sys.argv[1]}/v1/completions",
    model="demo-chat",
    tokenizer_backend="remote",
    num_concurrent=1,
    max_length=256,
)


def instances(kind, *arguments):
    return [Instance(kind, {}, given, number) for number, given in enumerate(arguments)]


text = "The capital of Arvia is"
scores = model.loglikelihood(instances("loglikelihood", (text, " Belcast"), (text, " Dorun")), disable_tqdm=True)
until = model.generate_until(
    instances("generate_until", (text, {"until": ["."], "max_gen_toks": 8, "temperature": 0})), disable_tqdm=True
)
rolling = model.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)), disable_tqdm=True)
assert all(score < 0 for score, _ in scores), scores
assert rolling[0] < 0, rolling
assert model.tok_encode(text), "no ids"
print(scores, until, rolling, model.eot_token_id)
