"""State of layers, such as convolutions and linear attention, between Quire's slots and transformers' cache class.

cache       transformers' cache, in which only the state is kept
tracing     which module keeps which state
rows        runs such a module for each row of a step, with the state from the row's slot
time_steps  limits of Mamba-2's time steps, which transformers leaves out in one of two ways to compute them
"""
