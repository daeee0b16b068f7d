"""Running the engine requests of one HTTP request.

A job sends its engine requests to the engine client, gets the deltas of each step, and gives text (`generation`) or
pooled numbers (`pooling`). `active` knows all jobs, so that a shutdown can wait for them or end them. `stream_encoder`
connects a job to a stream of server-sent events.
"""
