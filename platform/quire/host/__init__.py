"""The host process that runs every loaded model, and the client that speaks to it."""
