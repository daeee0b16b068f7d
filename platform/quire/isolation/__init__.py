"""Worker processes and threads that can do no harm to the step loop.

`child_process` is a Python process that replies to framed requests and can be killed at any moment: one place for
the deadline, the kill and the framing. Chat templates, grammar compilers and `isolated_calls` are built on it.

`IsolatedCalls` calls a function in such a process: `isolated_calls` sends its name and arguments as JSON,
`isolated_process` is the program that runs there, and large results come back as shared memory. `plugin_calls` is the
interface that plugins see. `idle_thread` lowers the priority of a thread. `module_process` starts the processes that
compute steps.
"""
