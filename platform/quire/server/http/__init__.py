"""HTTP without endpoints: reading bodies and forms, errors, middleware, API keys, server-sent events, `/docs`.

A request passes the middleware (`middleware`, `auth`), a route reads its body (`body` for JSON, `forms` for multipart),
and the response leaves as JSON (`responses`), as an error (`errors`) or as a stream of events (`sse`).
"""
