"""Records for servers with several replicas: how requests are divided, and what routers outside learn of the cache."""
