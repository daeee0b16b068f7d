"""Answers of the models to held-out examples, and their scores."""
