"""TCP connections of the server, below HTTP routes.

`listen` binds the socket. uvicorn creates one `http_protocol.BoundedHttpProtocol` per connection, which enforces limits
on headers and time; `connections` counts and limits the open connections.
"""
