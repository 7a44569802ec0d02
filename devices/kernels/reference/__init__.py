"""Readable kernels: plain torch, any device, any float type. They are what the model runs where no fast twin
exists, and what every fast twin is compared with.

Rules of this package. Functions take and return tensors, and know nothing of layers or requests. Shapes
follow from shapes, never from values, and nothing reads a value back to the host, so that a step made of
these calls can be captured in a graph. A kernel that writes in place ends in `_`.
"""
