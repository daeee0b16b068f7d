"""`platform bench profile`: where the time of an engine's steps goes, beside the roofline of the machine.

`step_profiler` records the phases of each step, `op_times` the time of each operation. `device_roofline` measures the
bandwidth and FLOPs of the machine (`cpu_peak` those of a CPU, in registers), `roofline` computes the least time the
same steps could take, `tables` prints them together.
"""
