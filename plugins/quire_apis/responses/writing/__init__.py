"""Writes the output of a response.

`output` decides which item a part of an answer belongs to, `output_items` writes items and their events, and
`custom_input` reads the text of a custom tool's call while it is generated.
"""
