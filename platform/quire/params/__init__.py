"""Parameters of requests, validated on construction: sampling, beam search, pooling, and constraints on the output.

Names and rules are those of vLLM. The server and the `LLM` class build these objects from request fields, and the
engine receives them unchanged as `Request.params`. A wrong value raises `BadRequest`, which names the field.
"""
