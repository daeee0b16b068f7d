"""`--weights-cache`: files with the matrices of models as kernels read them, so that a model is back quickly.

`packed_weights` puts the matrices of such a file into a model in place of reading and packing its checkpoint, and has a
file written in the background after a load that found none. `identity` says which checkpoint, settings and kernels a
file is for; `cache_folder` chooses names and deletes files that were not used for longest; `format` is the layout of a
file, which `writer` writes and `reader` reads and checks.
"""
