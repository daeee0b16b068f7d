"""Records for several processes: where the ranks of a model run, how requests are divided among replicas, and what
routers outside learn of the cache.
"""
