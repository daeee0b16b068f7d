"""The bodies of requests, as pydantic models that validate them, and of responses, which only document.

`base` has the rules for null and booleans in all requests, `sampling` the fields of all generating endpoints,
`unsupported` the fields of other servers that are refused. Responses are built as plain dicts elsewhere.
"""
