"""Pages in the layout of the C++ ops, read in Python."""
