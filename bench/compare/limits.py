"""The least time a forward can take: what it reads at the memory's bandwidth, or what it computes at the
processor's rates, whichever is longer. Perfect overlap of the two, and weights at the rate of the 4-bit loop."""

import dataclasses
import math

from . import Failure


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a forward of one row reads and computes, by depth."""
    weight_bytes: int     # of all tensors that a token reads
    weight_macs: int      # multiply-adds with matrices
    head_macs: int        # those among them of the output head
    kv_bytes: float       # of one row of the cache
    attention_macs: int   # with one row of the cache


@dataclasses.dataclass(frozen=True)
class Machine:
    """Measured: bytes a second of all threads together, operations a second and core; threads as asked."""
    bandwidth: float
    int8: float
    fp32: float
    threads: int


def bytes_read(shape, depth):
    return shape.weight_bytes + shape.kv_bytes * depth


def memory_ms(shape, machine, depth):
    return bytes_read(shape, depth) / machine.bandwidth * 1e3


def compute_ms(shape, machine, depth, rows, head_rows=None):
    """head_rows: rows whose logits are asked for, all by default."""
    head_rows = rows if head_rows is None else head_rows
    macs = (shape.weight_macs - shape.head_macs) * rows + shape.head_macs * head_rows
    weights = 2 * macs / (machine.int8 * machine.threads)
    attention = 2 * shape.attention_macs * depth * rows / (machine.fp32 * machine.threads)
    return (weights + attention) * 1e3


def limit_ms(shape, machine, depth, rows):
    return max(memory_ms(shape, machine, depth), compute_ms(shape, machine, depth, rows))


def prefill_limit(shape, machine, tokens):
    """Tokens a second: rows see half of the prompt on average, and only the last one's logits count."""
    ms = max(memory_ms(shape, machine, tokens), compute_ms(shape, machine, tokens / 2, tokens, 1))
    return tokens / ms * 1e3


def gguf_shape(path, kv_element_bytes=2):
    """Of a GGUF file's tensors and settings. The embedding counts only where it is the output head too."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise Failure("the Python package gguf is not installed (pip install gguf)") from None
    try:
        file = GGUFReader(path)
        arch = file.fields["general.architecture"].contents()
        fields = {name[len(arch) + 1:]: field for name, field in file.fields.items() if name.startswith(arch + ".")}

        def setting(name, default=None):
            return int(fields[name].contents()) if name in fields else default

        layers, heads = setting("block_count"), setting("attention.head_count")
        kv_heads = setting("attention.head_count_kv", heads)
        dim = setting("attention.key_length") or setting("embedding_length") // heads
        sizes = {t.name: (int(t.n_bytes), [int(d) for d in t.shape]) for t in file.tensors}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path} cannot be read as a GGUF file: {error}") from None
    head = "output.weight" if "output.weight" in sizes else "token_embd.weight"
    total = macs = head_macs = 0
    for name, (size, shape) in sizes.items():
        if name == "token_embd.weight" and name != head:
            continue
        total += size
        if len(shape) > 1:
            count = math.prod(shape)
            macs += count
            head_macs += count if name == head else 0
    return Shape(total, macs, head_macs, layers * kv_heads * dim * 2 * kv_element_bytes, layers * heads * dim * 2)
