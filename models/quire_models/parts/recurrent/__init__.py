"""Parts that keep a state of fixed size for each seq: linear attention, state space models and convolutions.

Each takes the place of a block's attention, or is the mixer of a `quire_models.parts.mixers.MixerBlock`. All their
matrices are projections, so that quantization and adapters apply to them.
"""
