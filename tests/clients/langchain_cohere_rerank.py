"""langchain-cohere: `CohereRerank`, which sends null for what it leaves open. Arguments: URL."""

import sys

from langchain_cohere import CohereRerank

documents = ["The ferry leaves at noon.", "Bread is baked from flour."]
reranker = CohereRerank(base_url=sys.argv[1], cohere_api_key="none", model="demo-rerank", top_n=1)
(best,) = reranker.rerank(documents, "How is bread made?")
assert best["index"] in (0, 1), best
print(best)
