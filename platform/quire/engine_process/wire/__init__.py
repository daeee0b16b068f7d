"""The connection between the API process and the engine process.

`spawn` starts the program of the engine process with a socket pair; `connection` is the API process's end of it,
`transport` the other end and the framing. `protocol` lists the messages of both directions and encodes them with
msgpack; `media` and `error_info` are the forms in which media and errors are sent.
"""
