"""Structured output: grammars that constrain what a sequence may generate.

`grammars` compiles the constraints of requests in worker threads and caches them. `compilers` holds the back ends that
plugins bring; back ends that cannot bound their work compile in a killable process (`compiler_process`), with a
`deadline` that does not count the start of that process.

`constraint_tracker` follows each sequence in its grammar: before the forward a thread starts filling bit masks, they
are applied to the logits, and the chosen tokens advance the matchers. `start_trigger` keeps a grammar inactive until a
text, such as the end of the reasoning, was generated.
"""
