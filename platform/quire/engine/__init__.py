"""The engine: one loaded model that takes requests and returns deltas. It knows no HTTP and no text.

    class Engine:
        def step(max_tokens) -> list[SeqDelta]:
            plan = scheduler.plan(max_tokens)       # which tokens of which sequences, in which pages
            launched = runner.launch(plan)          # begin: forward, logits, samples
            result = runner.finish(launched)        # wait for it
            deltas = scheduler.commit(plan, result) # append tokens, finish sequences
            release the adapters of finished requests
            return deltas

The core, in reading order: `engine.py`, `scheduler/` (no tensors), `runner/` (the device), `sampling/` (logits to
tokens), `loading/` (a model folder becomes a module), and `build.py`, which wires an engine. Beside the core:
`adapters/`, `multimodal/`, `pooling/`, `processors/` (of logits) and `structured/` (grammars) take part in steps whose
requests need them; `memory/` sizes the KV cache.
"""
