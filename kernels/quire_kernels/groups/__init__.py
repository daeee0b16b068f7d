"""Groups of ranks that compute one model together, and how they exchange numbers: through shared memory or sockets."""
