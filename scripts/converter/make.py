"""Makes small models of the classes of transformers with random weights, has llama.cpp's converter convert them, and computes their logits.

    python make.py LLAMA_CPP FOLDER [NAME...]

LLAMA_CPP is the folder with convert_hf_to_gguf.py. FOLDER gets, for each of models.py: NAME.gguf (F32), NAME.json (its tokens) and NAME.logits (for
every token, the little-endian F32 logits of transformers, whose cache is rounded to F16 as glimt's is). Seeds are fixed.

Two programs that round differently choose other experts where the last chosen one and the first of the rest are nearly tied. So a token whose
choices are nearly tied in any layer is not taken, and another is drawn.
"""

import json
import logging
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

# The libraries of stubs.py find no card, which these two would take for a fault.
torch.cuda.is_current_stream_capturing = lambda: False
import transformers

transformers.utils.import_utils.is_cuda_stream_capturing = lambda *_: False
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from models import INSIDE_KIMI_VL, MODELS, VOCABULARY

TOKENS = 40
# The least distance of the last chosen expert from the next, in standard deviations of a token's scores. Errors are some 3e-4.
TIE = 1e-2
# Most of the tokens drawn for one that is taken.
DRAWS = 10

SPECIAL = ["<s>", "</s>", "<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"]


class RoundedCache(DynamicCache):
    """A cache whose values are those of F16."""

    def update(self, keys, values, *arguments, **named):
        return super().update(keys.half().float(), values.half().float(), *arguments, **named)


def write_tokenizer(folder):
    """A vocabulary of VOCABULARY tokens: special ones, all bytes, and pairs of letters. Tests of published vocabularies are scripts/test --real's."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    pieces = [chr(byte) for byte in printable] + [chr(256 + at) for at in range(len(others))]
    letters = "etaoinshrdlcumwfg"
    merges = [[left, right] for left in letters for right in letters][: VOCABULARY - len(SPECIAL) - len(pieces)]
    names = SPECIAL + pieces + [left + right for left, right in merges]
    bytes_of_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": at, "content": name, **added} for at, name in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": bytes_of_text,
        "post_processor": None,
        "decoder": bytes_of_text,
        "model": {"type": "BPE", "vocab": {name: at for at, name in enumerate(names)}, "merges": merges},
    }
    write_json(folder / "tokenizer.json", tokenizer)
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(folder / "tokenizer_config.json", tokens)


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def fill(model, config, generator):
    """Random weights that keep the stream and the logits of the size that trained ones have."""
    depth = 1.2 / (2 * config["num_hidden_layers"]) ** 0.5
    tied = config["tie_word_embeddings"]
    gains = {
        "o_proj.weight": 1.5 * depth,
        "down_proj.weight": 1.5 * depth,
        "experts.down_proj": 1.5 * depth / min(config.get("routed_scaling_factor", 1.0), 4.0),
        "embed_tokens.weight": (0.15 if tied else 0.7) * config["hidden_size"] ** 0.5,
        "lm_head.weight": 2.5,
    }
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        random = torch.randn(tensor.shape, generator=generator)
        if name.endswith("norm.weight"):
            tensor.data.copy_(0.6 + 0.8 * torch.rand(tensor.shape, generator=generator))
        elif name.endswith("e_score_correction_bias"):
            tensor.data.copy_(0.15 * random)
        elif name.endswith(".bias"):
            tensor.data.copy_(0.5 * random)
        elif tensor.dim() >= 2:
            gain = next((gain for end, gain in gains.items() if name.endswith(end)), 1.4)
            tensor.data.copy_(random * gain / tensor.shape[-1] ** 0.5)


def watch_ties(model, chosen):
    """Returns a list to which every layer with experts appends how near its last token's choice is to another."""
    margins = []

    def note(router, inputs, _):
        scores = torch.nn.functional.linear(inputs[0].reshape(-1, inputs[0].shape[-1])[-1].float(), router.weight.float())
        bias = getattr(router, "e_score_correction_bias", None)
        if bias is not None:
            scores = scores.sigmoid() + bias
        best = scores.sort(descending=True).values
        margins.append(float((best[chosen - 1] - best[chosen]) / scores.std()))

    for layer in model.model.layers:
        if (router := getattr(layer.mlp, "gate", None)) is not None:
            router.register_forward_hook(note)
    return margins


def draw(model, config, generator):
    """Draws tokens without near ties, one after the other. Returns them and the number of those that were not taken."""
    margins = watch_ties(model, config.get("num_experts_per_tok", 0))
    experts = config["num_hidden_layers"] - config.get("first_k_dense_replace", 0) if "num_experts_per_tok" in config else 0
    tokens, rejected = [], 0
    while len(tokens) < TOKENS:
        token = int(torch.randint(len(SPECIAL), VOCABULARY, (1,), generator=generator))
        margins.clear()
        rounded_logits(model, [*tokens, token])
        if len(margins) != experts:
            raise SystemExit(f"{len(margins)} layers chose experts, {experts} should")
        if all(margin >= TIE for margin in margins):
            tokens.append(token)
        else:
            rejected += 1
        if rejected > DRAWS * TOKENS:
            raise SystemExit("most tokens have near ties of experts: something is wrong with the weights")
    return tokens, rejected


def rounded_logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), cache=RoundedCache(config=model.config), use_cache=True).logits[0].float()


def put_into_kimi_vl(folder, config):
    """Makes a saved text part that of Kimi-VL."""
    outside = {"architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "text_config": config, "vision_config": {}}
    write_json(folder / "config.json", outside)
    path = folder / "model.safetensors"
    save_file({f"language_model.{name}": tensor for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})


def convert(folder, file, pre):
    """Runs llama.cpp's converter. It knows a pre-tokenizer by what its published vocabulary makes of a text, so here it is told."""
    import convert_hf_to_gguf
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda *_: pre
    before, sys.argv = sys.argv, ["convert_hf_to_gguf.py", str(folder), "--outtype", "f32", "--outfile", str(file)]
    try:
        convert_hf_to_gguf.main()
    finally:
        sys.argv = before


def make(name, folder):
    config, pre = MODELS[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    saved = folder / name
    shutil.rmtree(saved, ignore_errors=True)
    saved.mkdir(parents=True)
    write_json(saved / "config.json", config)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(saved), dtype=torch.float32, attn_implementation="eager").eval()
    if type(model).__name__ != config["architectures"][0]:
        raise SystemExit(f"{name}: transformers made a {type(model).__name__}")
    fill(model, config, generator)
    tokens, rejected = draw(model, config, generator)
    logits = rounded_logits(model, tokens)
    model.save_pretrained(saved)
    # The saved configuration has transformers' own keys, where publishers' have older ones.
    write_json(saved / "config.json", config)
    if name == INSIDE_KIMI_VL:
        put_into_kimi_vl(saved, config)
    write_tokenizer(saved)
    convert(saved, folder / f"{name}.gguf", pre)
    logits.numpy().astype("<f4").tofile(folder / f"{name}.logits")
    write_json(folder / f"{name}.json", {"tokens": tokens})
    shutil.rmtree(saved)
    print(f"{name}: logits' standard deviation {float(logits.std()):.2f}, {rejected} tokens with near ties of experts not taken", flush=True)


def main(llama_cpp, folder, *names):
    sys.path[:0] = [llama_cpp, f"{llama_cpp}/gguf-py"]
    logging.basicConfig(level=logging.WARNING, force=True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in names or MODELS:
        make(name, pathlib.Path(folder))


main(*sys.argv[1:])
