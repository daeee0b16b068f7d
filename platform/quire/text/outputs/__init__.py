"""Output increments of the engine (`SeqDelta`) to the outputs of requests.

A `Collector` (outputs) takes the deltas of one request. It passes the tokens of each sequence to a `SeqDetokenizer`
(detokenizer), which decodes them and stops at stop strings, and adds the texts of tokens to log-probabilities
(logprobs). It returns a `TextDelta` for streaming and, at the end, a `RequestOutput`; `beams` converts those of beam
searches. `pooling_outputs` does the same for pooling requests, and `scoring` compares their vectors.
"""
