"""A model in stages (`quire_models.sharding.stages`): which rank has which, and the runners of their ranks.

    plan ─┬──────────────▶ the last stage: the leader and the other ranks of its stage
          ├─▶ first stage ─ hidden states ─▶ … ─┘
          └─▶ …

The leader is at the last stage, so that hidden states arrive where tokens are sampled, and nothing but plans goes the
other way.
"""
