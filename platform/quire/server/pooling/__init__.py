"""The endpoints of pooling models: embeddings, classification, pooler outputs, scores, reranking, Cohere's embed API.

A route (`routes`) parses the body and calls `prepare`, which makes one engine request per input and returns a
`PoolingCall`; running the call returns the response. `embedding_format` encodes numbers as JSON, base64 or bytes.
"""
