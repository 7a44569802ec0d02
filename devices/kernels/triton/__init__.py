"""Kernels in Triton for NVIDIA devices: one launch where the reference takes dozens.

A decode step of a small model is bound by the number of kernels, a step of a large one by bytes; both are
served by doing more per launch. Triton rather than CUDA C++: no compiler at install time, one source for
every architecture, and the same kernels run on a CPU in Triton's interpreter, where their tests live.

Rules of this package. One file per family: `@triton.jit` kernels and the plain functions that launch them,
with the names, shapes and types of their reference twins. Sums are float32 and in a fixed order; no product
of float32 values goes through tf32; a row's result depends neither on its neighbours nor on how many there
are. Nothing outside this package imports it, except `selection`, when it chooses this set.
"""
