"""Which model steps next, and how many tokens its step has: `time_slicing` shares the device among the models, and
`background` holds back clients in the background. `loading_threads` gives the load of a model threads.
"""
