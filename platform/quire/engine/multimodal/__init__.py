"""Multimodal inputs in the engine: from preprocessed media to embedding rows in a step.

`embeddings` finds the media that a step's tokens need, runs the model's tower for those that are not cached
(`tower_runner`), and returns their rows for the forward. `encoder_cache` keeps rows by content within a byte budget.

Models that read a medium by cross-attention (Whisper) store its rows in the KV cache instead: `cross_attention` splits
each step into encoder positions and text, and `encoder_inputs` describes and checks these inputs. `rope_positions`
computes the rotary positions of media with several axes, `media_bounds` keeps chunks from cutting media that are seen
as a whole, and `speech_tasks` derives what a model with audio can be asked for.
"""
