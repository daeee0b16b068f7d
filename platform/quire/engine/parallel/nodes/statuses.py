"""How the process of a rank ends that has joined the first one."""

REFUSED = 2
"""It cannot be one of the group; it has logged why."""

LOST = 75
"""The first rank is gone, or a step has failed here: a new process may join again. EX_TEMPFAIL of sysexits.h."""
