"""The process that has the GPU.

To read how one step is computed while the next is queued: device.py (the picture), pipeline.py (the idea), process.py
(the loop around it), session.py, staging.py (a plan's columns), runner.py (carry-over: a step's tokens are the last
one's), then paged_steps.py (the same by kernels and CUDA graphs), and cuda_device.py beside cpu_device.py. The rest
loads models (building.py), measures memory (kv_sizing.py), or is a kernel.
"""
