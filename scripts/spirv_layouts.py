"""SPIR-V without the layouts that nobody reads, for spirv-val.

naga gives layouts to types of variables in workgroup memory and in functions, which Vulkan's rule VUID-StandaloneSpirv-None-10684 forbids.
Drivers pass over them. spirv-val ends at the first, so what it would find behind it is only seen without them.
"""

import struct

TYPE_ARRAYS = (28, 29)  # OpTypeArray, OpTypeRuntimeArray
TYPE_STRUCT, TYPE_POINTER, DECORATE, MEMBER_DECORATE = 30, 32, 71, 72
ARRAY_STRIDE, OFFSET = 6, 35
# Uniform, PushConstant, StorageBuffer: memory that the host shares.
SHARED = (2, 9, 12)


def without_idle_layouts(data):
    """The module without strides and offsets of types that no pointer to shared memory reaches."""
    words = struct.unpack(f"<{len(data) // 4}I", data)
    instructions, at = [], 5
    while at < len(words):
        length = words[at] >> 16
        instructions.append(words[at : at + length])
        at += length
    operation = lambda instruction: instruction[0] & 0xFFFF
    types = {i[1]: i for i in instructions if operation(i) in (*TYPE_ARRAYS, TYPE_STRUCT, TYPE_POINTER)}
    shared, open_ = set(), [t[3] for t in types.values() if operation(t) == TYPE_POINTER and t[2] in SHARED]
    while open_:
        name = open_.pop()
        if name in types and name not in shared:
            shared.add(name)
            parts = types[name]
            open_ += parts[2:3] if operation(parts) in TYPE_ARRAYS else parts[2:] if operation(parts) == TYPE_STRUCT else ()

    def idle(instruction):
        stride = operation(instruction) == DECORATE and instruction[2] == ARRAY_STRIDE
        offset = operation(instruction) == MEMBER_DECORATE and instruction[3] == OFFSET
        return (stride or offset) and instruction[1] not in shared

    kept = [word for i in instructions if not idle(i) for word in i]
    return struct.pack(f"<{5 + len(kept)}I", *words[:5], *kept)
