"""Conformance of what servers with several replicas use: routing policies and publishers of KV events."""
