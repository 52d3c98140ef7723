#!/usr/bin/env python3
"""Writes tests/data/quant-golden.json: random blocks of every tensor type and the f32 values gguf-py gives for them,
and random weights with what gguf-py makes of them in the types whose quantisation is a fixed formula.

Needs numpy and gguf (pip install numpy gguf). Blocks and values are little-endian bytes in hexadecimal.
"""

import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

# Where the f16 scales lie in a block; everything else may be any byte.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0],
}
FLOATS = {T.F32: "<u4", T.F16: "<u2", T.BF16: "<u2"}
EXPONENT = {T.F32: 0x7F800000, T.F16: 0x7C00, T.BF16: 0x7F80}

rng = np.random.default_rng(20260730)


def finite_bits(count: int, ty: T) -> np.ndarray:
    """Random bit patterns of `ty` (subnormals too) that are neither infinite nor NaN."""
    exponent = EXPONENT[ty]
    bits = rng.integers(0, 1 << (8 * np.dtype(FLOATS[ty]).itemsize), count, dtype=np.uint64)
    bits = np.where(bits & exponent == exponent, bits & ~np.uint64(exponent), bits)
    return bits.astype(FLOATS[ty])


golden = {}
for ty in [*FLOATS, *SCALES]:
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[ty]
    if ty in FLOATS:
        blocks = finite_bits(64, ty).view(np.uint8)
        if ty == T.F32:
            values = blocks.view("<f4")
        elif ty == T.F16:
            values = blocks.view("<f2").astype("<f4")
        else:
            values = gguf.quants.dequantize(blocks, ty)
    else:
        blocks = rng.integers(0, 256, (4 if block_len == 32 else 2, block_bytes), dtype=np.uint8)
        for offset in SCALES[ty]:
            blocks[:, offset:offset + 2] = finite_bits(len(blocks), T.F16).view(np.uint8).reshape(-1, 2)
        # The first block of every type gets subnormal scales: Q6_K files are full of them.
        for offset in SCALES[ty]:
            blocks[0, offset + 1] &= 0x83
        values = gguf.quants.dequantize(blocks.reshape(-1), ty)
    assert np.isfinite(values).all(), ty
    golden[ty.name] = {
        "blocks": blocks.tobytes().hex(),
        "values": values.astype("<f4").tobytes().hex(),
    }

weights = (rng.standard_normal(256) * 0.02).astype("<f4")
weights[64:96] = 0
golden["weights"] = weights.tobytes().hex()
for ty in [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]:
    golden[ty.name]["quantized"] = gguf.quants.quantize(weights, ty).tobytes().hex()

# The types below 4 bits and MXFP4, from a generator of their own, so that what stands above keeps its bytes.
rng = np.random.default_rng(20261127)
D_FIRST = [T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S, T.IQ1_S]
for ty in [*D_FIRST, T.IQ1_M, T.MXFP4]:
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[ty]
    count = 7 if ty == T.MXFP4 else 2
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    # The first block has a subnormal scale.
    if ty in D_FIRST:
        blocks[:, 0:2] = finite_bits(len(blocks), T.F16).view(np.uint8).reshape(-1, 2)
        blocks[0, 1] &= 0x83
    elif ty == T.IQ1_M:
        # The nibbles of the f16 are the upper ones of bytes 49, 51, 53 and 55, lowest first.
        blocks[:, 55] &= 0xBF
        blocks[0, 53] &= 0x3F
        blocks[0, 55] &= 0x8F
    else:
        # 255 is no number in the standard, and the power behind 254 for GGML. Most values times these powers are infinite.
        blocks[:, 0] = [0, 1, 2, 130, 253, 254, 255]
    with np.errstate(over="ignore"):
        values = gguf.quants.dequantize(blocks.reshape(-1), ty)
    assert np.isfinite(values).all() or ty == T.MXFP4, ty
    golden[ty.name] = {
        "blocks": blocks.tobytes().hex(),
        "values": values.astype("<f4").tobytes().hex(),
    }
golden["MXFP4"]["quantized"] = gguf.quants.quantize(weights, T.MXFP4).tobytes().hex()

path = pathlib.Path(__file__).parent.parent / "tests" / "data" / "quant-golden.json"
path.write_text(json.dumps(golden, indent=1) + "\n")
