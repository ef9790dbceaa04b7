"""Part B of check.py: what the kernels take against the machine's ceilings, and the server end to end beside its peer.

A kernel's share is the larger of its bytes and its operations a second, each over the ceiling that was measured on the
machine before. The server is measured by the load test of berth-cli: one stream, many streams, and the time
to the first token of long prompts. The peer, transformers, generates the same numbers of tokens from the same
checkpoints. The figures of both are in speed.json.
"""

import json
import pathlib
import re
import shutil
import subprocess
import time
import urllib.request

from correctness import machine, server_of
from stages import BIN, Skip, Stage, find_tool, run_program, watched

# Random weights are drawn on the GPU and kept in memory where that has room for all.
CHECKPOINTS = pathlib.Path("/dev/shm/berth-gpu-check")
CHECKPOINT_BYTES = 40e9
STREAMS = (1, 64)
PROMPT, OUTPUT = 128, 128  # tokens
LONG_PROMPTS = (2048, 8192)
LONG_CONTEXTS = (4000, 32000)  # before the decoded tokens


def shapes(setup):
    """Published shapes. The qwen3_next has 4 of 48 layers, three gated delta nets and one with attention: 14 GB."""
    from models import COMMON, LLAMA, MODELS, PeerModel, tiny

    if setup.small:
        return {"llama-1.1b": tiny("llama-1.1b"), "falcon_h1-1.5b": tiny("falcon_h1-350m")}
    long = dict(max_position_embeddings=65536)
    return {
        "llama-1.1b": PeerModel("LlamaConfig", dict(MODELS["llama-1.1b"].fields, **long), {}),
        "llama-8b": PeerModel("LlamaConfig", dict(
            LLAMA, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
            intermediate_size=14336) | long | dict(vocab_size=128256), {}),
        "falcon_h1-1.5b": PeerModel("FalconH1Config", dict(
            MODELS["falcon_h1-350m"].fields, hidden_size=2048, num_hidden_layers=24, head_dim=128, intermediate_size=4096,
            mamba_d_ssm=3072, mamba_n_heads=48, mamba_d_state=256, mamba_chunk_size=128) | long, {}),
        "qwen3_next-4-layers": PeerModel("Qwen3NextConfig", dict(
            COMMON, hidden_size=2048, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
            intermediate_size=5120, moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts=512,
            num_experts_per_tok=10, norm_topk_prob=True, linear_num_key_heads=16, linear_num_value_heads=32,
            linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4) | long, {}),
    }


def folder_of(setup, name):
    in_memory = not setup.small and (CHECKPOINTS.exists() or shutil.disk_usage("/dev/shm").free > CHECKPOINT_BYTES)
    return (CHECKPOINTS if in_memory else setup.out / "checkpoints") / name


def checkpoints(setup):
    """Writes what is not there yet."""
    from models import make_checkpoint

    made = []
    for name, shape in shapes(setup).items():
        folder = folder_of(setup, name)
        if (folder / "complete").exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make_checkpoint(shape, folder, setup.device)
        (folder / "complete").touch()
        made.append(name)
    return f"made {', '.join(made) or 'nothing new'}"


def kernels(setup):
    """The table of kernels, each in percent of the ceiling that limits it. Kept in kernels.txt."""
    ceilings = json.loads((setup.out / "ceilings.json").read_text())
    models = setup.size(["llama-1b", "llama-8b"], ["tiny"])
    rows = []
    for model in models:
        environment = {"BERTH_TEST_DEVICE": setup.device} if setup.on_gpu else {}
        log = run_program(BIN / "bench/kernel_bench", model, setup.size(20, 3), **environment)
        rows += [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    lines = [f"{'model':10}{'kernel':26}{'rows':>5}{'context':>8}{'us':>10}{'GB/s':>9}{'TFLOP/s':>9}{'% of ceiling':>14}"]
    for row in rows:
        gb_s, tflop_s = (row[what] / row["seconds"] / unit for what, unit in (("bytes", 1e9), ("flops", 1e12)))
        row["share"] = 100 * max(gb_s / ceilings["gb_s"], tflop_s / ceilings["tflop_s"])
        lines.append(f"{row['model']:10}{row['kernel']:26}{row['rows']:5}{row['context']:8}{row['seconds'] * 1e6:10.1f}"
                     f"{gb_s:9.1f}{tflop_s:9.2f}{row['share']:14.1f}")
    table = "\n".join(lines)
    print(table)
    (setup.out / "kernels.txt").write_text(table + "\n")
    attention = [row["share"] for row in rows if row["kernel"].startswith("decode attention") and "write" not in row["kernel"]]
    return f"{len(rows)} rows in kernels.txt; decode attention at {min(attention):.0f} to {max(attention):.0f} % of the ceiling"


def load(setup, server, streams, requests, prompt=PROMPT, output=OUTPUT):
    report = setup.out / "load.json"
    run_program(BIN / "client/berth-cli", "load", f"--server={server.address}", f"--concurrency={streams}",
                f"--requests={requests}", f"--prompt_tokens=fixed:{prompt}", f"--output_tokens=fixed:{output}",
                f"--json_out={report}")
    return json.loads(report.read_text())


def step_seconds(server):
    """{phase: mean seconds of a step}, since the start."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = {(kind, phase): float(value) for kind, phase, value in
             re.findall(r'^berth_step_seconds_(sum|count)\{[^}]*phase="(\w+)"[^}]*\} (\S+)', text, re.MULTILINE)}
    return {phase: found["sum", phase] / count for (kind, phase), count in found.items() if kind == "count" and count}


def serve(setup, name, *flags):
    """Tokens a second of 1 and many streams, and the time to the first token of long prompts."""
    output = setup.size(OUTPUT, 8)
    longest = setup.size(LONG_PROMPTS[-1], 80)
    figures = {}
    limits = [f"--max_sequence_tokens={longest + PROMPT + OUTPUT}", "--dtype=bfloat16", "--share_prefixes=false",
              *([] if setup.on_gpu else ["--arena=64MiB", "--packed_weights=none"])]
    with server_of(folder_of(setup, name), [*limits, *flags], setup.device) as server:
        for streams in setup.size(STREAMS, (1, 4)):
            load(setup, server, streams, streams, output=8)  # warm
            report = load(setup, server, streams, 2 * streams, prompt=setup.size(PROMPT, 16), output=output)
            figures[f"{streams} streams, tokens/s"] = report["throughput"]["output_tokens_per_second"]
            figures[f"{streams} streams, ms a token"] = 1e3 * report["latency_seconds"]["tpot"]["p50"]
        for prompt in setup.size(LONG_PROMPTS, (longest,)):
            report = load(setup, server, 1, 3, prompt=prompt, output=1)
            figures[f"TTFT of {prompt} tokens, ms"] = 1e3 * report["latency_seconds"]["ttft"]["p50"]
        figures |= {f"{phase} step, ms": 1e3 * seconds for phase, seconds in step_seconds(server).items()}
        if setup.on_gpu and "--cuda_graphs=false" not in flags:
            assert server.load().graph_launches > 0, f"no graph was launched: {server.log()}"
    return keep(setup, " ".join(["berth", name, *flags]), figures)


def long_contexts(setup):
    """Decoding with many keys before it, by one stream."""
    contexts, output = setup.size(LONG_CONTEXTS, (40, 90)), setup.size(64, 4)
    figures = {}
    limits = [f"--max_sequence_tokens={contexts[-1] + 2 * output}", "--dtype=bfloat16", "--share_prefixes=false",
              *([] if setup.on_gpu else ["--arena=64MiB", "--packed_weights=none"])]
    with server_of(folder_of(setup, "llama-1.1b"), limits, setup.device) as server:
        for context in contexts:
            report = load(setup, server, 1, 2, prompt=context, output=output)
            figures[f"after {context} tokens, ms a token"] = 1e3 * report["latency_seconds"]["tpot"]["p50"]
    return keep(setup, "berth llama-1.1b, long contexts", figures)


def keep(setup, what, figures):
    """Adds the figures to speed.json, and returns them in a line."""
    path = setup.out / "speed.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {what: figures}, indent=1))
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def llama_1b(setup):
    return serve(setup, "llama-1.1b")


def llama_1b_eager(setup):
    setup.need_gpu("there are no graphs to leave out")
    return serve(setup, "llama-1.1b", "--cuda_graphs=false")


def llama_1b_chunks(setup):
    return serve(setup, "llama-1.1b", "--prefill_chunk_tokens=256")


def llama_8b(setup):
    setup.need_gpu("8 billion weights are too many for a test of the stages")
    return serve(setup, "llama-8b")


def falcon_h1(setup):
    return serve(setup, "falcon_h1-1.5b")


def qwen3_next(setup):
    setup.need_gpu("512 experts are too many for a test of the stages")
    return serve(setup, "qwen3_next-4-layers")


def peer(setup, name):
    """transformers on the same checkpoint: generate(), and its continuous batching."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_num_threads(setup.size(torch.get_num_threads(), 1))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder_of(setup, name), dtype=torch.bfloat16)
    model = model.eval().to(setup.device)
    prompt, output = setup.size(PROMPT, 16), setup.size(OUTPUT, 8)
    figures = {}
    settings = transformers.GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=None, pad_token_id=2)
    for streams in setup.size(STREAMS, (1, 4)):
        prompts = torch.randint(3, model.config.vocab_size, (streams, prompt), device=setup.device)

        def generate():
            with torch.no_grad():
                model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=settings)

        def batch():
            done = model.generate_batch(prompts.tolist(), generation_config=settings, progress_bar=False)
            assert len(done) == streams, f"{len(done)} of {streams} requests came back"

        ways = {"generate": generate} | ({"continuous batching": batch} if setup.on_gpu else {})
        for way, run in ways.items():
            try:
                run()  # warm
                began = time.perf_counter()
                run()
                figures[f"{way}, {streams} streams, tokens/s"] = streams * output / (time.perf_counter() - began)
            except Exception as error:  # a fault of the peer is not Berth's
                print(f"{way} with {streams} streams: {type(error).__name__}: {error}")
                figures[f"{way}, {streams} streams, failed"] = 1
    return keep(setup, f"transformers {name}", figures)


def peer_1b(setup):
    return peer(setup, "llama-1.1b")


def peer_8b(setup):
    setup.need_gpu("8 billion weights are too many for a test of the stages")
    return peer(setup, "llama-8b")


def profile(setup):
    """Nsight Compute over a decode step's kernels: rates, occupancy."""
    setup.need_gpu("ncu reads a GPU's counters")
    ncu = find_tool("ncu", "/opt/nvidia/nsight-compute/*")
    tool = [ncu, "--target-processes", "all", "--clock-control", "none", "--set", "basic", "--launch-count", "60",
            "--kernel-name", "regex:[Aa]ttention|ByMatrices|ByLanes|[Gg]reedy|gemv|gemm|cutlass|Norm"]
    command = watched(tool, str(BIN / "bench/kernel_bench"), "llama-1b", "1", BERTH_TEST_DEVICE=setup.device)
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    print(done.stdout)
    profiled = len(re.findall(r"Section: GPU Speed Of Light", done.stdout))
    if "ERR_NVGPUCTRPERM" in done.stdout or "Failed to initialize the profiler" in done.stdout:
        raise Skip("ncu may not read the counters here")
    assert profiled, f"ncu profiled no kernel and ended with {done.returncode}"
    return f"{profiled} kernels in the log"


STAGES = [Stage(machine, 60), Stage(checkpoints, 120), Stage(kernels, 100), Stage(llama_1b, 45), Stage(llama_1b_eager, 45),
          Stage(long_contexts, 60), Stage(llama_8b, 75), Stage(falcon_h1, 60), Stage(qwen3_next, 60), Stage(peer_1b, 60),
          Stage(peer_8b, 75), Stage(profile, 60), Stage(llama_1b_chunks, 45)]
