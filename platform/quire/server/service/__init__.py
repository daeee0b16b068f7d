"""What the endpoints share: models, adapters, request gates, request fields, prompts.

`Service.parse_request` is the first step of every route: it reads the body, passes the gates of plugins, refuses
unsupported fields, validates, and finds the model and its adapters. `request_fields` and `structured_fields` turn the
fields into sampling parameters, `prompts` turns texts into engine requests, and `answers` limits the size of an answer
and runs a job to its end.
"""
