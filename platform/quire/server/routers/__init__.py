"""What the server gives to the routers of plugins.

`context` makes the `RouterContext` of a plugin. `answers` begins the answers of `chat` and `complete` and gives their
deltas; `route_calls` sends a body to another route of the application.
"""
