"""vllm.grpc.engine.VllmEngine, called with the stubs of the package that gateways use: what it gives is what berth.v1
gives, and what berth.v1 lacks is refused by name."""

import hashlib
import io
import json
import os
import re
import zipfile

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2 as pb, vllm_engine_pb2_grpc

from gateway_server import DEMO, BerthServer
from berth_server import ENDLESS_FLAGS, ENDLESS_LIMIT, ENDLESS_TOKENS, api, generate_request, too_late, wait_until

QUESTION = "What is 23 + 45?"
STORY = "Tell me a story about a fox."


@pytest.fixture(scope="module")
def server():
    # The last flag: what is found in the cache changes no bit of the logprobs.
    with BerthServer(DEMO, "--check_integrity", "--poison_cache", *ENDLESS_FLAGS, "--chunk_invariant_scans") as server:
        yield server


@pytest.fixture(scope="module")
def engine(server):
    return vllm_engine_pb2_grpc.VllmEngineStub(server.channel)


@pytest.fixture(autouse=True)
def idle_afterwards(server):
    yield
    server.wait_idle()


def chat_ids(server, text):
    pb2 = api().inference_pb2
    chat = pb2.Chat(messages=[pb2.ChatMessage(role="user", content=text)])
    return list(server.inference.Tokenize(pb2.TokenizeRequest(chat=chat), timeout=60).token_ids)


def text_of(server, ids):
    return server.inference.Detokenize(api().inference_pb2.DetokenizeRequest(token_ids=ids), timeout=60).text


def request(ids, stream=False, request_id="", **sampling):
    sampling.setdefault("temperature", 0)
    return pb.GenerateRequest(request_id=request_id, tokenized=pb.TokenizedInput(input_ids=ids), stream=stream,
                              sampling_params=pb.SamplingParams(skip_special_tokens=True, **sampling))


def generate(engine, message):
    return list(engine.Generate(message, timeout=300))


def complete(engine, ids, **sampling):
    (answer,) = generate(engine, request(ids, **sampling))
    return answer.complete


def error(engine, message):
    with pytest.raises(grpc.RpcError) as raised:
        generate(engine, message)
    return raised.value.code(), raised.value.details()


def refused(engine, ids, **sampling):
    code, details = error(engine, request(ids, **sampling))
    assert code == grpc.StatusCode.INVALID_ARGUMENT, details
    return details


def test_embed_is_berths_last_state_normalised(server, engine):
    ids = chat_ids(server, STORY)
    answer = engine.Embed(pb.EmbedRequest(request_id="e", tokenized=pb.TokenizedInput(input_ids=ids)), timeout=60)
    pb2 = api().inference_pb2
    own = server.inference.Embed(pb2.EmbedRequest(token_ids=pb2.TokenIds(ids=ids)), timeout=60)
    assert answer.embedding == own.embedding and answer.embedding_dim == len(own.embedding) > 0
    assert answer.prompt_tokens == len(ids)
    for message, details in [
        (pb.EmbedRequest(), "tokenized: not set; at least 1 token is needed"),
        (pb.EmbedRequest(tokenized=pb.TokenizedInput()), "input: 0 tokens; at least 1 is needed"),
        (pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=[4_000_000_000])), "tokenized.input_ids[0]: token id"),
    ]:
        with pytest.raises(grpc.RpcError) as error:
            engine.Embed(message, timeout=60)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.value.details().startswith(details)


def test_tokens_and_logprobs_are_those_of_berth_v1(server, engine):
    ids = chat_ids(server, STORY)
    expected = server.inference.Complete(generate_request(ids=ids, logprobs=3), timeout=120)
    whole = complete(engine, ids, logprobs=3)
    assert list(whole.output_ids) == list(expected.token_ids)
    assert whole.finish_reason == "stop" and not whole.HasField("matched_stop")
    assert (whole.prompt_tokens, whole.completion_tokens) == (len(ids), len(expected.token_ids))
    assert list(whole.output_logprobs.token_ids) == list(expected.token_ids)
    assert list(whole.output_logprobs.token_logprobs) == [entry.logprob for entry in expected.logprobs]
    for top, entry in zip(whole.output_logprobs.top_logprobs, expected.logprobs, strict=True):
        assert list(zip(top.token_ids, top.values)) == [(likely.token_id, likely.logprob) for likely in entry.top]

    *chunks, last = generate(engine, request(ids, stream=True, logprobs=3))
    chunks = [message.chunk for message in chunks]
    assert [token for chunk in chunks for token in chunk.token_ids] == list(expected.token_ids)
    assert [lp for chunk in chunks for lp in chunk.output_logprobs.token_logprobs] == \
        list(whole.output_logprobs.token_logprobs)
    assert all(chunk.completion_tokens == len(chunk.token_ids) and chunk.prompt_tokens == len(ids) for chunk in chunks)
    assert last.complete.finish_reason == "stop" and last.complete.completion_tokens == whole.completion_tokens
    assert not last.complete.output_ids


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_logprobs_are_those_of_berth_v1(server, engine, stream):
    ids = chat_ids(server, STORY)
    same = generate_request(ids=ids, max_tokens=2)
    same.prompt_logprobs = 2
    expected = server.inference.Complete(same, timeout=120).prompt_logprobs
    messages = generate(engine, request(ids, stream=stream, prompt_logprobs=2, max_tokens=2, n=2))
    parts = [message.chunk if message.HasField("chunk") else message.complete for message in messages]
    (first,) = [part for part in parts if part.HasField("input_logprobs")]
    assert first.index == 0
    found = first.input_logprobs
    assert list(found.token_ids) == ids and not found.token_logprobs[0].HasField("value")
    assert [entry.value for entry in found.token_logprobs[1:]] == [entry.logprob for entry in expected]
    for top, entry in zip(found.top_logprobs[1:], expected, strict=True):
        assert list(zip(top.token_ids, top.values)) == [(likely.token_id, likely.logprob) for likely in entry.top]


def test_every_message_counts_the_cached_tokens(server, engine):
    ids = chat_ids(server, "Count what is cached. " * 20)
    complete(engine, ids, max_tokens=2)
    complete(engine, ids, max_tokens=2)
    messages = generate(engine, request(ids, stream=True, max_tokens=4))
    counts = {message.chunk.cached_tokens or message.complete.cached_tokens for message in messages}
    assert len(counts) == 1 and counts.pop() > len(ids) // 2


def test_text_is_tokenised(server, engine):
    (answer,) = generate(engine, pb.GenerateRequest(text="Once upon", sampling_params=pb.SamplingParams(
        temperature=0, max_tokens=5)))
    expected = server.inference.Complete(generate_request(prompt="Once upon", max_tokens=5), timeout=120)
    assert list(answer.complete.output_ids) == list(expected.token_ids)
    assert answer.complete.finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_several_outputs_are_those_of_their_seeds(server, engine, stream):
    ids = chat_ids(server, STORY)
    sampling = {"temperature": 1.0, "seed": 7, "max_tokens": 20, "n": 3}
    outputs = {0: [], 1: [], 2: []}
    ends = {}
    for message in generate(engine, request(ids, stream=stream, **sampling)):
        if message.HasField("chunk"):
            outputs[message.chunk.index] += message.chunk.token_ids
        else:
            outputs[message.complete.index] += message.complete.output_ids
            assert message.complete.index not in ends
            ends[message.complete.index] = message.complete
    for index, tokens in outputs.items():
        alone = complete(engine, ids, **{**sampling, "seed": 7 + index, "n": 1})
        assert tokens == list(alone.output_ids)
        assert ends[index].completion_tokens == len(tokens)
    assert len({tuple(tokens) for tokens in outputs.values()}) > 1


def test_zero_is_absent(server, engine):
    ids = chat_ids(server, STORY)
    zeros = pb.SamplingParams(temperature=0.9, seed=3, top_p=0, top_k=0, min_p=0, repetition_penalty=0, n=0)
    (answer,) = generate(engine, pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=ids), sampling_params=zeros))
    with open(os.path.join(DEMO, "generation_config.json"), encoding="utf-8") as file:
        top_p = json.load(file)["top_p"]
    expected = generate_request(ids=ids, temperature=0.9)
    expected.sampling.MergeFrom(api().inference_pb2.Sampling(seed=3, top_p=top_p))
    assert list(answer.complete.output_ids) == list(server.inference.Complete(expected, timeout=120).token_ids)
    no_parameters = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=ids))
    assert generate(engine, no_parameters)[0].complete.output_ids


def test_stops_are_named(server, engine):
    ids = chat_ids(server, STORY)
    tokens = list(complete(engine, ids).output_ids)
    by_string = complete(engine, ids, stop=["fox"])
    assert by_string.matched_stop_str == "fox" and by_string.finish_reason == "stop"
    assert "fox" in text_of(server, by_string.output_ids)
    by_token = complete(engine, ids, stop_token_ids=[tokens[3]])
    assert by_token.matched_token_id == tokens[3] and list(by_token.output_ids) == tokens[:4]
    past_end = complete(engine, ids, ignore_eos=True, max_tokens=len(tokens) + 5)
    assert len(past_end.output_ids) == len(tokens) + 5
    least = complete(engine, ids, stop_token_ids=[tokens[3]], min_tokens=10)
    assert least.completion_tokens >= 10


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"],
          "additionalProperties": False}
# The story that is asked for has a fox.
TAG = {"type": "structural_tag", "triggers": ["fox"], "structures": [
    {"begin": "fox", "schema": {"type": "boolean"}, "end": "</t>"}]}
CONSTRAINTS = [
    ({"json_schema": json.dumps(SCHEMA)}, lambda text: set(json.loads(text)) == {"n"}),
    ({"regex": "[0-9]{3}-[0-9]{4}"}, lambda text: len(text) == 8 and text[3] == "-"),
    ({"grammar": "root ::= \"sum: \" num \" + \" num\nnum ::= [0-9]{2}"}, lambda text: len(text) == 12),
    ({"grammar": "start: \"yes\" | \"no\""}, lambda text: text in ("yes", "no")),
    ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    ({"choice": pb.ChoiceConstraint(choices=["fox", "owl"])}, lambda text: text in ("fox", "owl")),
    ({"structural_tag": json.dumps(TAG)}, lambda text: 0 < text.count("fox") == len(re.findall(
        r"fox\s*(?:true|false)\s*</t>", text))),
]


def holds(fits, text):
    try:
        return fits(text)
    except json.JSONDecodeError:
        return False


@pytest.mark.parametrize("constraint, fits", CONSTRAINTS, ids=[next(iter(entry[0])) for entry in CONSTRAINTS])
def test_every_constraint_holds(server, engine, constraint, fits):
    # The free answer is a story, which fits none of them.
    ids = chat_ids(server, STORY)
    assert not holds(fits, text_of(server, complete(engine, ids, max_tokens=400, frequency_penalty=1).output_ids))
    # The demo model fills JSON that it was not trained on with spaces; the penalty ends them.
    answer = complete(engine, ids, max_tokens=400, frequency_penalty=1, **constraint)
    assert answer.finish_reason == "stop"
    assert fits(text_of(server, answer.output_ids))


def test_constraints_are_refused_by_their_names(server, engine):
    ids = chat_ids(server, QUESTION)
    assert refused(engine, ids, regex="(").startswith("sampling_params.regex: ")
    assert refused(engine, ids, json_schema="{").startswith("sampling_params.json_schema: ")
    assert refused(engine, ids, grammar="root ::= other") == \
        "sampling_params.grammar: line 1: there is no rule other"
    assert refused(engine, ids, grammar="root ::= (= \"a\")") == \
        "sampling_params.grammar: line 1: there is no construct \"=\""
    assert refused(engine, ids, grammar="start: other").startswith("sampling_params.grammar: ")
    assert refused(engine, ids, choice=pb.ChoiceConstraint()).startswith("sampling_params.choice.choices: ")
    assert refused(engine, ids, json_object=False).startswith("sampling_params.json_object: ")
    assert refused(engine, ids, structural_tag="{}").startswith("sampling_params.structural_tag: ")


def test_what_is_wrong_or_missing_is_refused_by_name(server, engine):
    ids = chat_ids(server, QUESTION)
    for sampling, details in [
            ({"temperature": 101}, "sampling_params.temperature: 101 is outside [0, 100]"),
            ({"top_p": 1.5}, "sampling_params.top_p: 1.5 is outside (0, 1]"),
            ({"n": 1000}, "sampling_params.n: 1000 is outside [1, 16]"),
            ({"logprobs": -1}, "sampling_params.logprobs: -1 is outside [0, 20]"),
            ({"logprobs": 21}, "sampling_params.logprobs: 21 is outside [0, 20]"),
            ({"max_tokens": 0}, f"sampling_params.max_tokens: 0 is outside [1, {ENDLESS_LIMIT - 1}]"),
            ({"stop_token_ids": [4294967295]}, "sampling_params.stop_token_ids[0]: token id 4294967295 is outside [0, 1023]"),
            ({"logit_bias": {5000: 1}}, "sampling_params.logit_bias: token id 5000 is outside [0, 1023]"),
            ({"prompt_logprobs": -1}, "sampling_params.prompt_logprobs: -1 is outside [0, 20]"),
            ({"truncate_prompt_tokens": 1}, "sampling_params.truncate_prompt_tokens: not supported; this server "
                                            "truncates no prompt; send the tokens that it is to read")]:
        assert refused(engine, ids, **sampling) == details
    assert refused(engine, [4294967295]) == "tokenized.input_ids[0]: token id 4294967295 is outside [0, 1023]"
    assert refused(engine, []).startswith("input: 0 tokens")
    for name, value in [("mm_inputs", pb.MultimodalInputs()), ("media_refs", pb.MediaRefs()),
                        ("kv_transfer_params", pb.KvTransferParams()), ("kv_transfer_params_json", "{}"),
                        ("extra_mm_inputs", [pb.MultimodalInputs()]), ("data_parallel_rank", 1)]:
        message = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=ids), **{name: value})
        code, details = error(engine, message)
        assert code == grpc.StatusCode.INVALID_ARGUMENT and details.startswith(f"{name}: "), details
    code, details = error(engine, pb.GenerateRequest())
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "input: none of tokenized, text is set")


def test_a_flush_drops_what_is_cached(server, engine):
    ids = chat_ids(server, "Drop what is cached. " * 20)
    complete(engine, ids, max_tokens=2)
    assert complete(engine, ids, max_tokens=2).cached_tokens > len(ids) // 2
    flushed = engine.FlushCache(common_pb2.FlushCacheRequest(timeout_s=5), timeout=60)
    assert flushed.success and flushed.message.startswith("dropped ") and "dropped 0 bytes" not in flushed.message
    assert complete(engine, ids, max_tokens=2).cached_tokens == 0
    for seconds in (-1, float("nan")):
        with pytest.raises(grpc.RpcError) as raised:
            engine.FlushCache(common_pb2.FlushCacheRequest(timeout_s=seconds), timeout=60)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert raised.value.details().startswith("timeout_s: ")


def stored(stream, blocks, until):
    """Applies the events of `stream` to `blocks`, the tokens by hash, until they fulfil `until`."""
    while not until(blocks):
        for event in next(stream).events:
            kind = event.WhichOneof("data")
            if kind == "cleared":
                blocks.clear()
            for block in event.stored.blocks:
                assert len(block.token_ids) == block.block_size == 16
                blocks[block.block_hash] = list(block.token_ids)
            for block_hash in event.removed.block_hashes:
                del blocks[block_hash]


def test_events_tell_what_a_request_would_find(server, engine):
    engine.FlushCache(common_pb2.FlushCacheRequest(), timeout=60)
    stream = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=600)
    snapshot = next(stream)
    assert snapshot.snapshot.count == 1 and snapshot.snapshot.blocks == 0
    assert [event.WhichOneof("data") for event in snapshot.events] == ["cleared"]
    ids = chat_ids(server, "Tell what is cached. " * 20)
    complete(engine, ids, max_tokens=1)
    blocks = {}
    stored(stream, blocks, lambda blocks: len(blocks) == len(ids) // 16)
    assert [token for block in blocks.values() for token in block] == ids[:len(ids) // 16 * 16]
    assert complete(engine, ids + [5], max_tokens=1).cached_tokens // 16 == len(blocks)
    late = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=600)
    same = {}
    stored(late, same, lambda same: len(same) >= len(blocks))
    assert blocks.items() <= same.items()
    engine.FlushCache(common_pb2.FlushCacheRequest(), timeout=60)
    stored(stream, blocks, lambda blocks: not blocks)
    lost = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=7), timeout=600)
    with pytest.raises(grpc.RpcError) as raised:
        next(lost)
    assert raised.value.code() == grpc.StatusCode.OUT_OF_RANGE
    for call in (stream, late):
        call.cancel()


ENDLESS = {"ignore_eos": True, "max_tokens": ENDLESS_TOKENS}


def test_abort_ends_a_request_with_what_there_is(server, engine):
    stream = engine.Generate(request(chat_ids(server, STORY), stream=True, request_id="one", **ENDLESS), timeout=600)
    assert next(stream).chunk.token_ids
    code, details = error(engine, request([5], request_id="one"))
    assert code == grpc.StatusCode.ALREADY_EXISTS, details
    engine.Abort(pb.AbortRequest(request_ids=["one", "unknown", ""]), timeout=60)
    *_, last = stream
    assert last.complete.finish_reason == "abort" and last.complete.completion_tokens > 0
    engine.Abort(pb.AbortRequest(request_ids=["one"]), timeout=60)
    with pytest.raises(grpc.RpcError) as raised:
        engine.Abort(pb.AbortRequest(request_ids=["x"] * 1025), timeout=60)
    assert raised.value.details() == "request_ids: 1025 entries are over the limit of 1024"


def test_a_client_that_leaves_gives_its_cache_back(server, engine):
    stream = engine.Generate(request(chat_ids(server, STORY), stream=True, n=4, **ENDLESS), timeout=600)
    next(stream)
    assert server.load().running > 0
    stream.cancel()
    server.wait_idle()


def test_a_late_request_ends_with_its_deadline(server, engine):
    with pytest.raises(grpc.RpcError) as raised:
        list(engine.Generate(request(chat_ids(server, STORY), **ENDLESS), timeout=1))
    assert too_late(raised.value), raised.value


def test_the_model_describes_itself(server, engine):
    info = engine.GetModelInfo(pb.GetModelInfoRequest(), timeout=60)
    assert info.served_model_name == "falcon_h1-demo" and info.model_type == "falcon_h1"
    assert list(info.architectures) == ["FalconH1ForCausalLM"] and list(info.eos_token_ids) == [2]
    assert info.vocab_size == 1024
    assert (info.max_context_length, info.max_req_input_len) == (ENDLESS_LIMIT, ENDLESS_LIMIT - 1)
    assert info.is_generation and not info.supports_vision
    assert json.loads(info.default_sampling_params_json) == {"temperature": 0.7, "top_p": 0.95}
    assert not os.path.isabs(info.model_path) and not os.path.isabs(info.tokenizer_path)
    health = engine.HealthCheck(pb.HealthCheckRequest(), timeout=60)
    assert health.healthy and not health.message
    about = engine.GetServerInfo(pb.GetServerInfoRequest(), timeout=60)
    assert about.server_type == "berth" and about.data_parallel_size == 1 and about.block_size == 16
    assert about.uptime_seconds > 0 and about.active_requests == 0 and about.model_dtype == "float32"
    assert about.kv_cache_dtype == "float32" and about.max_num_seqs > 1 and not about.is_paused


def test_the_load_is_told(server, engine):
    ids = chat_ids(server, "Tell what the cache gave. " * 20)
    for _ in range(2):
        complete(engine, ids, max_tokens=2)
    stream = engine.Generate(request(chat_ids(server, STORY), stream=True, **ENDLESS), timeout=600)
    next(stream)
    answer = engine.GetLoads(pb.GetLoadsRequest(include=["core"]), timeout=60)
    (load,) = answer.loads
    assert answer.dp_rank_count == 1
    assert load.num_running_reqs == load.num_total_reqs == 1 and load.num_waiting_reqs == 0
    assert 0 < load.token_usage < 1 and 0 < load.utilization < 1 and load.max_running_requests > 1
    assert load.num_waiting_uncached_tokens == 0
    own = server.load()
    assert own.prefix_hit_tokens > 0
    assert load.cache_hit_rate == pytest.approx(own.prefix_hit_tokens / own.prefix_queried_tokens)
    stream.cancel()
    with pytest.raises(grpc.RpcError) as raised:
        engine.GetLoads(pb.GetLoadsRequest(dp_rank=1), timeout=60)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_what_waits_is_told():
    with BerthServer(DEMO, *ENDLESS_FLAGS, "--max_running=1") as server:
        engine = vllm_engine_pb2_grpc.VllmEngineStub(server.channel)
        ids = chat_ids(server, STORY)
        streams = [engine.Generate(request([1, 5], stream=True, **ENDLESS), timeout=600)]
        next(streams[0])
        streams.append(engine.Generate(request(ids, stream=True, **ENDLESS)))  # a deadline could be foreseen to pass
        wait_until(lambda: server.load().waiting == 1, "a request that waits")
        (load,) = engine.GetLoads(pb.GetLoadsRequest(), timeout=60).loads
        assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (1, 1, 2)
        assert load.num_waiting_uncached_tokens == server.load().waiting_tokens == len(ids)
        assert load.utilization == load.max_running_requests == 1
        assert engine.GetServerInfo(pb.GetServerInfoRequest(), timeout=60).max_num_seqs == 1
        for stream in streams:
            stream.cancel()
        server.wait_idle()


def archive_of(server):
    engine = vllm_engine_pb2_grpc.VllmEngineStub(server.channel)
    chunks = list(engine.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=60))
    data = b"".join(chunk.data for chunk in chunks)
    assert all(0 < len(chunk.data) <= 64 << 10 for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()]
    return data, len(chunks)


def test_the_tokenizers_files_come_as_an_archive(server):
    data, _ = archive_of(server)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["chat_template.jinja", "config.json", "generation_config.json",
                                              "tokenizer.json", "tokenizer_config.json"]
        for entry in archive.infolist():
            with open(os.path.join(DEMO, entry.filename), "rb") as file:
                assert archive.read(entry) == file.read()
            assert entry.compress_type == zipfile.ZIP_STORED and entry.date_time == (1980, 1, 1, 0, 0, 0)
    assert archive_of(server)[0] == data


def test_a_large_archive_comes_in_parts(tmp_path):
    for name in os.listdir(DEMO):
        os.symlink(os.path.join(DEMO, name), tmp_path / name)
    (tmp_path / "tools.jinja").write_bytes(os.urandom(200 << 10))
    with BerthServer(str(tmp_path)) as server:
        data, num_chunks = archive_of(server)
    assert num_chunks == len(data) // (64 << 10) + 1 > 3
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("tools.jinja") == (tmp_path / "tools.jinja").read_bytes()


def test_what_is_not_served_says_so(engine):
    for call, message in [(engine.StartProfile, common_pb2.StartProfileRequest())]:
        with pytest.raises(grpc.RpcError) as raised:
            call(message, timeout=60)
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_draining_server_is_not_healthy():
    with BerthServer(DEMO, *ENDLESS_FLAGS, "--drain_grace=10m") as server:
        engine = vllm_engine_pb2_grpc.VllmEngineStub(server.channel)
        stream = engine.Generate(request([1, 5], stream=True, **ENDLESS), timeout=600)
        next(stream)
        server.process.terminate()
        wait_until(lambda: not engine.HealthCheck(pb.HealthCheckRequest(), timeout=60).healthy, "the server to drain")
        assert engine.HealthCheck(pb.HealthCheckRequest(), timeout=60).message
        assert engine.GetServerInfo(pb.GetServerInfoRequest(), timeout=60).is_paused
        code, _ = error(engine, request([1, 5]))
        assert code == grpc.StatusCode.UNAVAILABLE
        events = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=600)
        assert next(events).HasField("snapshot")
        stream.cancel()
        with pytest.raises(grpc.RpcError) as raised:
            list(events)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(timeout=300) == 0
