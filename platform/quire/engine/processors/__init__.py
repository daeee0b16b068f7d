"""Code of others that changes logits: processors of plugins, and functions of an in-process caller.

The sampler calls it for the rows that ask for it, and for no others.
"""
