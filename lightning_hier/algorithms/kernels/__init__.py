"""Passes over large tensors that plain torch is too slow for: GTC's, and the loops of codecs.

:mod:`gtc` defines GTC's passes in plain torch, and those of the codecs are in
:mod:`lightning_hier.algorithms.quantisation`. :mod:`native` compiles C loops for float32 on the
CPU, :mod:`triton_backend` launches Triton kernels for GTC on CUDA.

Ranks of a group may use different ones, and must stay equal: what they decode has the same bits.
"""
