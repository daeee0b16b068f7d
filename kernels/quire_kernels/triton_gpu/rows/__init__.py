"""Ops that handle each row of numbers by itself."""
