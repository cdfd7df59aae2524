#!/usr/bin/env python3
"""Makes the same llama-family model in another weight format, for tests and comparisons.

    convert_model.py SRC.gguf --to Q4_0 OUT.gguf      (also Q8_0, Q5_0, Q5_1, Q4_1, F16, BF16, F32)
    convert_model.py SRC.gguf --to mlx4 OUT_FOLDER    (MLX affine, 4 bits, groups of 64; mlx8 likewise)

GGUF targets: every 2-D tensor stored as blocks is requantised (a tied embedding stays Q8_0, as in the
source, unless the target is a float type). MLX folders get config.json, tokenizer.json, a chat template
and model.safetensors. Needs: pip install gguf numpy safetensors."""
import argparse
import json
import pathlib
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

FLOATS = {"F16", "BF16", "F32"}


def values(tensor):
    if tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return np.asarray(tensor.data, dtype=np.float32)
    return dequantize(tensor.data, tensor.tensor_type)


def field(reader, key, default=None):
    f = reader.fields.get(key)
    return default if f is None else f.contents()


def to_gguf(reader, target, out):
    kind = GGMLQuantizationType[target]
    arch = field(reader, "general.architecture")
    writer = GGUFWriter(out, arch)
    for key, f in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        main = f.types[0]
        writer.add_key_value(key, f.contents(), main, f.types[-1] if len(f.types) > 1 else None)
    for t in reader.tensors:
        blocks = t.tensor_type not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        if not blocks or (t.name == "token_embd.weight" and target not in FLOATS):
            writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
            continue
        data = quantize(values(t), kind)
        writer.add_tensor(t.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def affine(w, bits, group=64):
    """MLX's affine quantiser: the extreme of larger magnitude is kept exactly, scales may be negative."""
    rows, cols = w.shape
    g = w.reshape(rows, cols // group, group).astype(np.float32)
    top = np.float32(2**bits - 1)
    lo, hi = g.min(-1), g.max(-1)
    scale = np.maximum((hi - lo) / top, np.float32(1e-7))
    low_side = np.abs(lo) > np.abs(hi)
    edge = np.where(low_side, lo, hi)
    scale = np.where(low_side, scale, -scale)
    q0 = np.rint(edge / scale)
    scale = np.where(q0 != 0, edge / np.where(q0 == 0, 1, q0), scale).astype(np.float32)
    bias = np.where(q0 != 0, edge, 0).astype(np.float32)
    scale, bias = scale.astype(np.float16), bias.astype(np.float16)
    s = scale.astype(np.float32)
    s = np.where(s == 0, np.float32(1e-7), s)
    codes = np.clip(np.rint((g - bias.astype(np.float32)[..., None]) / s[..., None]), 0, top).astype(np.uint32)
    per = 32 // bits
    words = codes.reshape(rows, cols // per, per) << (np.arange(per, dtype=np.uint32) * bits)
    return np.bitwise_or.reduce(words, axis=-1).astype(np.uint32), scale, bias


NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(name):
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return TOP[stem]
    _, layer, rest = stem.split(".", 2)
    return f"model.layers.{layer}.{NAMES[rest]}"


def tokenizer_json(reader):
    pre = field(reader, "tokenizer.ggml.pre")
    if field(reader, "tokenizer.ggml.model") != "gpt2" or pre != "smollm":
        sys.exit(f"tokenizer pre '{pre}': only 'smollm' can be written as tokenizer.json by this tool")
    tokens = field(reader, "tokenizer.ggml.tokens")
    types = field(reader, "tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, (t, k) in enumerate(zip(tokens, types)) if k == 3],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": field(reader, "tokenizer.ggml.merges")},
    }


def to_mlx(reader, bits, out):
    from safetensors.numpy import save_file

    arch = field(reader, "general.architecture")
    if arch != "llama":
        sys.exit(f"architecture '{arch}': only llama can be written as an MLX folder by this tool")
    get = lambda key, default=None: field(reader, f"{arch}.{key}", default)
    heads, kv_heads = get("attention.head_count"), get("attention.head_count_kv")
    hidden = get("embedding_length")
    tensors, tied = {}, True
    for t in reader.tensors:
        name, w = hf_name(t.name), values(t)
        tied &= name != "lm_head"
        if w.ndim == 1:
            tensors[name + ".weight"] = w.astype(np.float32)
            continue
        if name.endswith(("q_proj", "k_proj")):  # rows of GGUF are ordered for interleaved pairs
            n = heads if name.endswith("q_proj") else kv_heads
            w = w.reshape(n, w.shape[0] // n // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        words, scales, biases = affine(w, bits)
        tensors |= {name + ".weight": words, name + ".scales": scales, name + ".biases": biases}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "num_hidden_layers": get("block_count"), "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": hidden // heads,
        "rms_norm_eps": float(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(get("rope.freq_base", 10000.0)), "max_position_embeddings": get("context_length"),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")), "tie_word_embeddings": bool(tied),
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "quantization": {"group_size": 64, "bits": bits},
    }
    tokens = field(reader, "tokenizer.ggml.tokens")
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "mlx"})
    (out / "config.json").write_text(json.dumps(config, indent=1))
    (out / "tokenizer.json").write_text(json.dumps(tokenizer_json(reader), ensure_ascii=False))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": tokens[config["bos_token_id"]], "eos_token": tokens[config["eos_token_id"]],
        "chat_template": field(reader, "tokenizer.chat_template")}, indent=1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source")
    p.add_argument("--to", required=True)
    p.add_argument("out")
    a = p.parse_args()
    reader = GGUFReader(a.source)
    if a.to in ("mlx4", "mlx8"):
        to_mlx(reader, int(a.to[3:]), a.out)
    elif a.to in FLOATS | {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}:
        to_gguf(reader, a.to, a.out)
    else:
        sys.exit(f"--to {a.to}: not one of Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 F16 BF16 F32 mlx4 mlx8")


if __name__ == "__main__":
    main()
