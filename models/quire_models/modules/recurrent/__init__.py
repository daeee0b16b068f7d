"""The modules that the parts in `quire_models.parts.recurrent` build."""
