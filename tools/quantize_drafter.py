#!/usr/bin/env python3
"""Makes a 4-bit copy of a DSpark drafter: python3 tools/quantize_drafter.py SOURCE TARGET

SOURCE is a drafter folder in DeepSpec layout with unquantised weights (bf16, fp16 or fp32). TARGET gets
config.json with a `quantization` block and one model.safetensors in which every matrix of the drafter
(fc, projections, MLP, Markov tables, own embedding and head) is stored as MLX affine groups: packed codes
(.weight, U32), .scales and .biases in fp16, chosen for the least squared error. Norms, biases, the confidence head and matrices
whose width is not a multiple of the group stay as they are. The result is read back and compared.

Needs numpy."""
import argparse
import json
import pathlib
import sys

import numpy as np

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U32": 4, "BOOL": 1}
MATRICES = ("fc", "embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
            "down_proj", "joint_proj", "markov_w1", "markov_w2")


def read_file(path):
    """Tensors of a safetensors file: name -> (type, shape, bytes)."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if end - begin != SIZES[entry["dtype"]] * int(np.prod(entry["shape"], dtype=np.int64)):
            sys.exit(f"{path}: {name}: wrong number of bytes")
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), body[begin:end])
    return tensors


def write_file(path, tensors):
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    names = sorted(tensors, key=lambda n: (-SIZES[tensors[n][0]], n))  # wide types first: all stay aligned
    for name in names:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            out.write(tensors[name][2])


def to_floats(dtype, shape, data):
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32).reshape(shape)


def from_floats(dtype, x):
    if dtype == "BF16":  # to nearest, ties to even
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return x.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def rounded(x):
    """Scales and biases as the file keeps them."""
    return x.astype(np.float16).astype(np.float32)


def assign(g, scale, bias, top):
    safe = np.where(scale == 0, np.float32(1), scale)
    codes = np.clip(np.rint((g - bias[..., None]) / safe[..., None]), 0, top)
    return codes, ((scale[..., None] * codes + bias[..., None] - g) ** 2).sum(-1)


def refit(g, codes, scale, bias):
    """The scale and bias that fit these codes best (least squares a group)."""
    n = g.shape[-1]
    mean_c, mean_g = codes.mean(-1, keepdims=True), g.mean(-1, keepdims=True)
    spread = ((codes - mean_c) ** 2).sum(-1)
    slope = ((codes - mean_c) * (g - mean_g)).sum(-1) / np.where(spread == 0, 1, spread)
    ok = (spread > 0) & (slope != 0)
    scale = np.where(ok, slope, scale)
    return scale, np.where(ok, mean_g[..., 0] - scale * mean_c[..., 0], bias)


def quantize(w, bits, group):
    """Codes [rows, cols] and scales and biases [rows, cols / group]: per group the least squared error over
    ranges that leave out up to 30 % at either end, each refitted by least squares."""
    top = np.float32(2**bits - 1)
    all_codes, scales, biases = [], [], []
    for rows in np.array_split(w, max(1, w.size // (1 << 20))):
        g = rows.reshape(rows.shape[0], -1, group)
        low, high = g.min(-1), g.max(-1)
        best = None
        for cut_low in (0.0, 0.1, 0.2, 0.3):
            for cut_high in (0.0, 0.1, 0.2, 0.3):
                lo, hi = low * np.float32(1 - cut_low), high * np.float32(1 - cut_high)
                scale, bias = np.maximum((hi - lo) / top, np.float32(1e-6)), lo
                for _ in range(2):
                    codes, _ = assign(g, scale, bias, top)
                    scale, bias = refit(g, codes, scale, bias)
                scale, bias = rounded(scale), rounded(bias)
                codes, error = assign(g, scale, bias, top)
                if best is None:
                    best = [codes, scale, bias, error]
                    continue
                better = error < best[3]
                best = [np.where(better[..., None] if new.ndim == 3 else better, new, old)
                        for new, old in zip((codes, scale, bias, error), best)]
        all_codes.append(best[0].astype(np.uint8).reshape(rows.shape))
        scales.append(best[1])
        biases.append(best[2])
    return np.concatenate(all_codes), np.concatenate(scales), np.concatenate(biases)


def pack(codes, bits):
    """One little-endian bit stream a row."""
    stream = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(stream.reshape(codes.shape[0], -1), axis=-1, bitorder="little")


def unpack(words, bits, cols):
    stream = np.unpackbits(words, axis=-1, bitorder="little").reshape(words.shape[0], cols, bits)
    return np.packbits(stream, axis=-1, bitorder="little")[..., 0]


def is_matrix(name, shape, group):
    parts = name.split(".")
    return (parts[-1] == "weight" and len(parts) > 1 and parts[-2] in MATRICES and len(shape) == 2
            and shape[1] % group == 0)


def bits_of(path, args):
    """8 where the module's name is listed, else the general width."""
    return 8 if path.split(".")[-1] in args.wide else args.bits


def convert(tensors, args):
    out, exact, group = {}, {}, args.group
    for name, (dtype, shape, data) in tensors.items():
        if not is_matrix(name, shape, group):
            out[name] = (dtype, shape, data)
            continue
        path = name[: -len(".weight")]
        bits = bits_of(path, args)
        codes, scale, bias = quantize(to_floats(dtype, shape, data), bits, group)
        words = pack(codes, bits)
        groups = (shape[0], shape[1] // group)
        out[name] = ("U32", (shape[0], shape[1] * bits // 32), words.tobytes())
        out[path + ".scales"] = ("F16", groups, from_floats("F16", scale))
        out[path + ".biases"] = ("F16", groups, from_floats("F16", bias))
        exact[path] = codes
    return out, exact


def verify(path, tensors, exact, args):
    """Reads the written file: codes as chosen, values near the source's. Returns the relative RMS error."""
    back, squares, total = read_file(path), 0.0, 0.0
    for name, (dtype, shape, data) in tensors.items():
        module = name[: -len(".weight")]
        if module not in exact:
            if (back[name][0], back[name][1], bytes(back[name][2])) != (dtype, shape, bytes(data)):
                sys.exit(f"{path}: {name} was not kept")
            continue
        words = np.frombuffer(back[name][2], np.uint8).reshape(shape[0], -1)
        codes = unpack(words, bits_of(module, args), shape[1])
        if not np.array_equal(codes, exact[module]):
            sys.exit(f"{path}: {name}: the packed codes do not come back")
        scale, bias = (to_floats(*back[f"{module}.{part}"])[..., None] for part in ("scales", "biases"))
        w = to_floats(dtype, shape, data).reshape(shape[0], -1, args.group)
        got = scale * codes.reshape(w.shape).astype(np.float32) + bias
        squares += float(np.sum((got - w).astype(np.float64) ** 2))
        total += float(np.sum(w.astype(np.float64) ** 2))
    error = (squares / total) ** 0.5
    if not error < 2.0**-args.bits * 2:
        sys.exit(f"{path}: the values are off by {error:.3f} (relative RMS): the file is wrong")
    return error


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("source", type=pathlib.Path)
    args.add_argument("target", type=pathlib.Path)
    args.add_argument("--bits", type=int, default=4, choices=(2, 3, 4, 5, 6, 8))
    args.add_argument("--group", type=int, default=64, choices=(32, 64, 128))
    args.add_argument("--wide", nargs="*", default=[], metavar="NAME", help="modules kept at 8 bits: fc, k_proj, ...")
    args = args.parse_args()
    config = json.loads((args.source / "config.json").read_text())
    if "quantization" in config or "block_size" not in config or "target_layer_ids" not in config:
        sys.exit(f"{args.source}: not an unquantised drafter in DeepSpec layout")
    tensors = {}
    for path in sorted(args.source.glob("*.safetensors")):
        tensors.update(read_file(path))
    if not any(is_matrix(name, shape, args.group) for name, (_, shape, _) in tensors.items()):
        sys.exit(f"{args.source}: no matrices to quantise")
    out, exact = convert(tensors, args)
    args.target.mkdir(parents=True, exist_ok=True)
    path = args.target / "model.safetensors"
    write_file(path, out)
    config["quantization"] = {"group_size": args.group, "bits": args.bits, "mode": "affine"}
    for module in sorted(exact):
        if bits_of(module, args) != args.bits:
            config["quantization"][module] = {"group_size": args.group, "bits": bits_of(module, args)}
    (args.target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    error = verify(path, tensors, exact, args)
    before = sum(len(data) for _, _, data in tensors.values())
    print(f"{path}: {len(exact)} matrices, {before / 1e6:.1f} MB -> {path.stat().st_size / 1e6:.1f} MB, "
          f"relative RMS error {error:.3f}")


if __name__ == "__main__":
    main()
