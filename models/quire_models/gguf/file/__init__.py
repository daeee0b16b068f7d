"""The file format: from the bytes of one or several files to metadata and the places of tensors.

`cursor` reads the values of a header under limits, `reader` a whole header, which it checks against the size of the
file; `types` lists the types of tensors. `parts` finds the files of a model, `metadata` gives typed access to its keys.
"""
