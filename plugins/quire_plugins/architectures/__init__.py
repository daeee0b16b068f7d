"""Text architectures: each module maps a family's `config.json` to parts and its tensor names to ours.

The engine calls `Architecture.decoder` once at loading; nothing here runs in a step.
"""
