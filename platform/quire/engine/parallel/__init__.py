"""Runs one model on several ranks: processes that each hold a part of it (`quire_models.sharding`) and take every step.

    Engine ─▶ LeadingRunner.launch(plan) ─┬─ the plan, to every follower ─▶ Follower ─▶ FollowingRunner.launch(plan)
    (rank 0)                              └─ its own part, together with them ─▶ StepResult

The scheduler, sampling, grammars and adapters' names are on rank 0 only. What a follower does arrives in one ordered
stream of commands: plans, slots of adapters, resets. Sums go through shared memory, or between machines (`nodes/`)
through sockets, not through this stream. A follower that ends or does not answer ends the group; then every step fails,
and the engine process is started anew.
"""
