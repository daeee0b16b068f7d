"""A drafter that runs a model of its own, usually a smaller one with the same vocabulary.

DraftModelLoader   loads the draft model like any other, checks that it fits, and sizes its KV pages
ModelDrafter       propose: one forward over the tokens that the draft model has not seen, then one per draft
    DraftCache     pages of each sequence, rolled back to where the output left the drafts
    DraftSampler   draws drafts with the numbers that the sampler will draw the tokens with
"""
