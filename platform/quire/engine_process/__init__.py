"""The engine process, which runs all loaded models, and the client of it in the API process.

In the API process, `client.EngineClient` sends requests and receives deltas; `supervisor` starts the engine process,
watches it (`watchdog`) and restarts it after a crash. `inflight`, `pending_calls`, `engine_models` and
`adapter_directory` hold what must outlive one engine process.

In the engine process, `process` handles messages and runs the `step_loop`, in which `pacing` decides which model steps
next; `engine_builder` builds engines, `model_summary` describes them for the log, `model_messages` loads and unloads
models, and `adapter_messages` adapters.

`wire` is the socket and the messages between the two. Requests go in as `Submit`; every step sends one `StepOutputs`.
"""
