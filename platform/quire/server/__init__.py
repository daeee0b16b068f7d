"""The HTTP server: OpenAI-shaped routes over a client of the host process. It knows no model and no engine."""
