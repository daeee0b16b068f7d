"""The runner: plan in, `StepResult` out. The only package of the engine core that touches the device.

    Plan ─▶ InputBatch.build_inputs ─▶ StepInputs (arrays of a step)
         ─▶ ForwardExecutor ─▶ hidden states of the selected tokens
         ─▶ logits ─▶ Sampler ─▶ samples; prompt logprobs; pooled vectors

`ModelRunner.run` is the whole of it. `InputBatch` keeps a row per live sequence between steps, with its page table.
`SelectedTokens` says which tokens' hidden states a step needs. Which sequences run is decided by the scheduler.
"""
