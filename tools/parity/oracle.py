"""Makes a case's checkpoint and asks transformers what it generates. Kept by the hash of all that decides it."""

import copy
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys

import numpy as np

from cases import CASES, NEW_TOKENS, PROMPT_LENGTHS, VOCAB

TRANSFORMERS = "5.24.0"
# Steps of each output whose whole distribution is kept.
LOGIT_STEPS = [0, 1, 20, 63]
# Fewer different tokens than this in an output, on average, and the case could hardly fail.
MIN_VARIETY = 12


def cache_folder(name):
    sources = [pathlib.Path(__file__).read_bytes(), repr(CASES[name]).encode(), TRANSFORMERS.encode(),
               repr((PROMPT_LENGTHS, NEW_TOKENS)).encode()]
    digest = hashlib.sha256(b"\0".join(sources)).hexdigest()[:16]
    root = os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))
    return pathlib.Path(root) / "parity" / f"{name}-{digest}"


def stand_in_for_timm():
    """gemma3n's vision tower is timm's, a large package that text asks nothing of: a tower of one matrix instead."""
    import torch
    import transformers

    class Tower(transformers.PreTrainedModel):
        config_class = transformers.Gemma3nVisionConfig

        def __init__(self, config):
            super().__init__(config)
            self.matrix = torch.nn.Linear(config.hidden_size, config.hidden_size)
            self.post_init()

    transformers.AutoModel.register(Tower.config_class, Tower, exist_ok=True)


def mend_llama4():
    """Lets llama4 run in its wrapper, which asks the text model's output for a field that it does not have."""
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast

    MoeCausalLMOutputWithPast.image_outputs = None


def limit_attention(model, case):
    """Lets layers that see all tokens see those of the case's window and its sinks only, by their mask."""
    from transformers import masking_utils

    module = sys.modules[type(model).__module__]
    if case.window:
        def visible(batch, head, query, key):
            return (key < case.sinks) | (query - key < case.window)

        module.create_causal_mask = functools.partial(masking_utils.create_causal_mask, and_mask_function=visible)
    elif hasattr(module, "create_causal_mask"):
        module.create_causal_mask = masking_utils.create_causal_mask


def make_model(case):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    torch.set_num_threads(1)  # faster than more for models this small
    torch.manual_seed(0)
    stand_in_for_timm()
    mend_llama4()
    config = getattr(transformers, case.config)(**case.fields)
    multimodal = hasattr(config, "vision_config")
    kind = (transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else
            transformers.AutoModelForImageTextToText if multimodal else transformers.AutoModelForCausalLM)
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    limit_attention(model, case)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        # Norms and biases start as ones and zeros: a port that forgot them would pass.
        if (parameter.dim() == 1 or name.endswith("bias")) and not name.endswith("A_log"):
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for ending, shift in case.shifts.items():
            if name.endswith(ending):
                parameter.data.add_(shift)
    for name, buffer in model.named_buffers():
        if name.endswith(("expert_bias", "e_score_correction_bias")):  # of a router's choice
            buffer.add_(torch.randn(buffer.shape, generator=generator) * 0.3)
    model.get_input_embeddings().weight.data.mul_(case.embedding_scale)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=0.2, generator=generator)
    for field, value in case.generation.items():
        setattr(model.generation_config, field, value)
    for name, parameter in model.named_parameters():
        for part, factor in case.scales:
            if part in name:
                parameter.data.mul_(factor)
    if case.own_head:
        weight = torch.randn(model.lm_head.weight.shape, generator=generator)
        model.lm_head.weight = torch.nn.Parameter(weight * weight.shape[1] ** -0.5)
    return model


def draw_mxfp4(model, generator):
    """Gives the experts weights that MXFP4 holds exactly. Returns what a checkpoint stores of them."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed = {}
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = parameter.shape  # transposed
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(122, 126, (experts, rows, columns // 32), generator=generator, dtype=torch.uint8)
            parameter.data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            packed[name] = {"_blocks": blocks, "_scales": scales}
    return packed


def store_mxfp4(folder, packed):
    """Replaces the matrices of a saved checkpoint by their packed form."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    for name, parts in packed.items():
        del tensors[name]
        tensors.update({name + suffix: tensor for suffix, tensor in parts.items()})
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))


def request_fields(case):
    """What every request of the case says beside its prompt."""
    fields = {}
    if case.forced_bos is not None:
        fields["forced_bos_token_id"] = case.forced_bos
    if case.decoder_tokens:
        fields["decoder_token_ids"] = {"ids": list(case.decoder_tokens)}
    return fields


def decoder_inputs(model, case):
    """Arguments of a forward or of generate() that say what the decoder starts from."""
    import torch

    if not model.config.is_encoder_decoder:
        return {}
    return {"decoder_input_ids": torch.tensor([[model.config.decoder_start_token_id, *case.decoder_tokens]])}


def generate(model, prompt, case):
    """Greedy tokens, margins and distributions. Give it a fresh copy: "dynamic" positions remember the last length."""
    import torch

    ids = torch.tensor([prompt])
    with torch.no_grad():
        if case.whole_forward:
            steps = []
            for _ in range(NEW_TOKENS):
                steps.append(model(ids, use_cache=False).logits[0, -1].float())
                ids = torch.cat([ids, steps[-1].argmax().view(1, 1)], 1)
        else:
            out = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=2,
                                 output_logits=True, return_dict_in_generate=True, **decoder_inputs(model, case),
                                 **({} if case.forced_bos is None else {"forced_bos_token_id": case.forced_bos}))
            ids, steps = out.sequences, [step[0].float() for step in out.logits]
    logits = torch.stack(steps)  # [steps, vocab]
    best = logits.topk(2).values
    logprobs = torch.log_softmax(logits.double(), -1)
    return ids[0, -NEW_TOKENS:].tolist(), (best[:, 0] - best[:, 1]).tolist(), logprobs[LOGIT_STEPS].numpy()


def first_logprobs(model, prompts, case):
    """The distribution after each prompt, [prompts, vocab]."""
    import torch

    rows = []
    with torch.no_grad():
        for prompt in prompts:
            logits = model(torch.tensor([prompt]), **decoder_inputs(model, case)).logits[0, -1].double()
            rows.append(torch.log_softmax(logits, -1).numpy())
    return np.stack(rows)


def round_weights(model, scale):
    """Makes the matrices smaller (Case.bf16_scale) and rounds what a checkpoint stores to bfloat16. A server computes
    in float32 what the file does not store, such as the rotary frequencies. Rounded, they would turn keys that are
    hundreds of tokens away by half a radian too much or too little."""
    import torch

    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and "conv1d" not in name:
            parameter.data.mul_(scale)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(torch.bfloat16))


def make(name, folder):
    import torch

    case = CASES[name]
    model = make_model(case)
    generator = torch.Generator().manual_seed(2)
    packed = draw_mxfp4(model, generator) if CASES[name].mxfp4 else {}
    prompts = [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]
    tokens, margins, logprobs = zip(*(generate(copy.deepcopy(model), prompt, case) for prompt in prompts))
    variety = np.mean([len(set(row)) for row in tokens])
    assert variety >= MIN_VARIETY, f"{name}: {variety:.1f} different tokens per output: choose another scale"
    model.save_pretrained(folder)
    if packed:
        store_mxfp4(folder, packed)
    round_weights(model, case.bf16_scale)
    exact = first_logprobs(model, prompts, case)
    model.to(torch.bfloat16).save_pretrained(folder / "bf16")
    np.savez(folder / "oracle.npz", logprobs=np.stack(logprobs), bf16=exact)
    with open(folder / "oracle.json", "w", encoding="utf-8") as file:
        json.dump({"prompts": prompts, "tokens": tokens, "margins": margins, "variety": variety,
                   "request": request_fields(case), "forced_eos": model.generation_config.forced_eos_token_id}, file)


def lock_file(name):
    return cache_folder(name).with_name(f"{name}.lock")


def last_used(name):
    """When this machine last loaded the case, in seconds since 1970: 0 if it never did."""
    path = lock_file(name)
    return path.stat().st_mtime if path.exists() else 0


def load(name):
    """(model folder, the oracle's answers, arrays)"""
    folder = cache_folder(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_file(name), "w", encoding="utf-8") as lock:
        os.utime(lock.fileno())  # of `last_used`
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of several processes ask for the same case
        if not (folder / "oracle.json").exists():
            for old in folder.parent.glob(f"{name}-*"):
                if re.fullmatch(re.escape(name) + r"-[0-9a-f]{16}(\.tmp)?", old.name):  # not another's, like name-tied
                    shutil.rmtree(old)
            temporary = folder.with_name(folder.name + ".tmp")
            temporary.mkdir()
            make(name, temporary)
            temporary.rename(folder)
    with open(folder / "oracle.json", encoding="utf-8") as file:
        return folder, json.load(file), np.load(folder / "oracle.npz")


if __name__ == "__main__":
    for case_name in CASES:
        print(case_name, f"{load(case_name)[1]['variety']:.1f} different tokens per output", flush=True)
