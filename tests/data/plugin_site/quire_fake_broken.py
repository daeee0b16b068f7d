"""A plugin that cannot be imported."""

raise ImportError("a library it needs is missing")
