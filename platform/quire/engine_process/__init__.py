"""The engine process, which runs all loaded models, and the client of it in the API process.

In the API process, `client.EngineClient` sends requests and receives deltas; `supervisor` starts the engine process,
watches it (`watchdog`) and restarts it after a crash. `inflight`, `pending_calls` and `adapter_directory` hold what
must outlive one engine process.

In the engine process, `process` handles messages and runs the `step_loop`, in which `time_slicing` decides which model
steps next; `engine_builder` builds engines, `model_summary` describes them for the log, and `adapter_messages` loads
and unloads adapters.

`wire` is the socket and the messages between the two. Requests go in as `Submit`; every step sends one `StepOutputs`.
"""
