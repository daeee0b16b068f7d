"""The connection between the API process and the engine process.

`connection` starts the engine process and holds the API process's end of a socket pair; `transport` is the other end
and the framing. `protocol` lists the messages of both directions and encodes them with msgpack; `media` and
`error_info` are the forms in which media and errors are sent.
"""
