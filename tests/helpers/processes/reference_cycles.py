"""Finds objects that only the garbage collector can free."""

import contextlib
import gc


@contextlib.contextmanager
def cyclic(*packages):
    """A set that at the end has the names of the classes in `packages` whose objects were left in reference cycles."""
    found = set()
    gc.collect()
    gc.freeze()  # what was there before and is left only now is not counted
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = (type(one) for one in gc.garbage)
        found.update(f"{kind.__module__}.{kind.__name__}" for kind in kinds if kind.__module__.startswith(packages))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
