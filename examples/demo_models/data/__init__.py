"""What the demo models are trained and evaluated on, generated from seeds.

One package for each model: `chat` (also facts and wordings that others use), `retrieval`, `images`, `speech`, `tools`.
Each yields examples for training and held-out examples, which never overlap.
"""
