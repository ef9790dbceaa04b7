"""The types of options and answers."""

# Written by clients/python/generate.py from proto/. Do not edit.

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypedDict


class SchemaModel(Protocol):
    """A class that knows its JSON schema, such as a pydantic model."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...


# JSON as text, or as the object that is written as that text.
Json: TypeAlias = str | Mapping[str, Any] | Sequence[Any]


class CallOptions(TypedDict, total=False):
    """Options of every call."""

    timeout: float | None
    """Seconds until the call ends with DeadlineExceededError, retries included. None: no limit. Default: the client's."""
    metadata: Mapping[str, str]
    """Metadata of this call, beside the client's."""


Whitespace: TypeAlias = Literal["flexible", "compact", "spaced"]
UnknownKeywords: TypeAlias = Literal["ignore", "refuse"]
PropertyOrder: TypeAlias = Literal["schema", "any"]
EarlyStopping: TypeAlias = Literal["false", "true", "never"]
FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]
Pooling: TypeAlias = Literal["last", "mean"]


class _ChatMessageRequired(TypedDict):
    role: str
    """"system", "user", "assistant", "tool", or another role that the template handles."""
    content: str


class ChatMessage(_ChatMessageRequired, total=False):
    """A turn of a chat."""

    extra_json: Json
    """A JSON object of more keys of the message (name, tool_calls, ...)."""


class GenerateOptions(CallOptions, total=False):
    """Options of generate and stream."""

    request_id: str
    """Names the request for Abort and the logs. 1 to 128 characters, unique among running requests. Default: the server
    makes one."""
    add_special_tokens: bool
    """Add BOS and other special tokens to `prompt`. Default: true."""
    temperature: float
    """Divide the logits by this. 0: always choose the most likely token. Range [0, 100]. Default: the model's
    generation_config.json, else 1."""
    top_k: int
    """Sample from the k most likely tokens. 0: from all. Default: the model's, else 0."""
    top_p: float
    """Sample from the most likely tokens whose probabilities add up to p. Range (0, 1]. Default: the model's, else
    1."""
    min_p: float
    """Exclude tokens less likely than p times the most likely one. Range [0, 1]. Default: the model's, else 0."""
    repetition_penalty: float
    """Divide positive logits of tokens that occurred before, and multiply negative ones. Above 1, these tokens become
    less likely. Range [0.01, 100]. Default: the model's, else 1."""
    presence_penalty: float
    """Subtract this from the logit of each token generated before. Range [-2, 2]. Default: 0."""
    frequency_penalty: float
    """Subtract this from the logit of a token once for each time it was generated. Range [-2, 2]. Default: 0."""
    logit_bias: Mapping[int, float]
    """Add a bias to the logit of each of these token ids. Biases are in [-100, 100]; at most 1024 entries."""
    seed: int
    """Seed of the sampler. On a CPU, equal seeds, prompts and parameters give equal tokens, whatever else the server
    runs; docs/numerics.md has the exceptions. Default: random."""
    no_repeat_ngram_size: int
    """Choose no token that would end a sequence of this many tokens that prompt or output have already. 0: any may come
    again. Range [0, 1048576]. Default: the model's, else 0."""
    max_tokens: int
    """Maximum number of tokens to generate. At that length the model's forced end token comes last, if it has one.
    Default: all that the model's limit leaves after the prompt, or after decoder_token_ids, but at most the server's
    default_max_tokens and the model's max_new_tokens or max_length."""
    min_tokens: int
    """Minimum number of tokens before an end token. A stop string that ends in the text of these tokens does not count.
    Default: the model's min_new_tokens or min_length, else 0."""
    stop: Sequence[str]
    """End the text before the first of these strings. The name of a special token ends it at that token. At most 16,
    each of 1 to 256 bytes. Default: the model's stop_strings, unless ignore_eos is set."""
    stop_token_ids: Sequence[int]
    """End after one of these tokens. At most 64."""
    ignore_eos: bool
    """Continue past the model's own end tokens. Default: false."""
    include_stop: bool
    """Include the stop string in the text, or the text of the end token or stop token. Default: false."""
    logprobs: int
    """Return the log-probability of each output token and of the n most likely tokens at its position. 0: of the output
    token only. At most the server's max_logprobs. Default: none."""
    prompt_logprobs: int
    """Return the log-probability of each prompt token but the first, and of the n most likely tokens at its position.
    0: of the prompt token only. At most the server's max_logprobs. The whole prompt is then computed, whatever the
    cache holds of it. With an encoder: of the tokens that the decoder starts from. Default: none."""
    skip_special_tokens: bool
    """Leave special tokens out of the text. Default: true."""
    return_prompt_token_ids: bool
    """Return the prompt's token ids in the first message. Default: false."""
    decoder_token_ids: Sequence[int]
    """The tokens that the decoder starts from, at least 1. Only for encoder-decoder models. The model's
    decoder_start_token_id is put before them unless they begin with it. Default: decoder_start_token_id."""
    forced_bos_token_id: int
    """The first generated token, such as the target language of a translation. Only for encoder-decoder models whose
    decoder starts from one token. Default: the model's generation_config.json, else none."""
    share_prefix: bool
    """Share prefixes: use what the cache holds of the prompt's beginning, and let other requests use what this one
    computes. The tokens are the same either way; docs/numerics.md has the exceptions. Default: true, if the server
    shares prefixes."""
    cache_salt: str
    """Share prefixes only with requests of the same salt. One salt for each tenant keeps tenants from learning each
    other's prompts by timing. At most 128 characters. Default: empty, which is a salt too."""
    priority: int
    """Order the request among those of its tenant (cache_salt). Higher goes first; vLLM's priority has the opposite
    sign. Each second of waiting counts as much as 1. Has no effect on other tenants, or with --scheduling=fcfs. Range
    [-100, 100]. Default: 0."""
    draft_tokens: int
    """Check at most this many draft tokens per step; 0: none. Prompt lookup finds them in the text so far. The output
    is the same with and without them. Has no effect on requests that sample, have penalties or no_repeat_ngram_size,
    ask for logprobs, or have several outputs, nor with some models (docs/api.md). Range [0, 16]. Default: the server's
    draft_tokens."""
    session_id: str
    """Keep the request as a session of this name, which Sessions.Resume continues (sessions.proto). 1 to 128 of A-Z a-z
    0-9 . _ -, not beginning with a dot. Its tenant is cache_salt. Default: no session."""
    autosave_tokens: int
    """Save the session each time it has this many more output tokens. A save takes its time, during which tokens are
    delivered. So a crash loses the tokens since the last save that has ended, the first included: then there is no
    session. Only with session_id. Default: 0, which saves at the end and on Sessions.Save only."""
    deliver_saved_only: bool
    """Deliver a token only when a save that has it is on the disk. After a crash, Resume continues at or after the last
    token delivered. If a save fails, the request ends with that error. Requires autosave_tokens. Default: false."""
    n: int
    """Number of outputs: samples with seed, seed + 1, and so on, or the best beams. Each sample is what a request with
    its seed gives alone; all share the prompt's cache. At most the server's max_outputs, or num_beams. Default: 1."""
    best_of: int
    """Generate this many outputs, and return the n with the highest mean logprob, best first. Range: n to the server's
    max_outputs. Values above n cannot be streamed. Default: n."""
    num_beams: int
    """Use beam search with this many beams. Range: 2 to the server's max_outputs. Default: the model's num_beams;
    required without one."""
    length_penalty: float
    """Divide the sum of an ended beam's logprobs by its length to the power of this. Above 0: favour long beams. Range
    [-10, 10]. Default: the model's, else 1."""
    early_stopping: EarlyStopping | bool
    """When to stop once num_beams beams have ended: see EarlyStopping. Default: the model's, else false."""
    json_schema: Json | type[SchemaModel]
    """A JSON value of this JSON Schema, of draft 2020-12 or of the draft that its $schema names, from draft-04 on. A
    keyword of the draft that is not supported is refused."""
    json_object: bool
    """Any JSON object. Only true is accepted."""
    regex: str
    """A text that this regular expression matches as a whole. The syntax is JavaScript's, without look-around,
    backreferences and word boundaries."""
    choice: Sequence[str]
    """One of these texts."""
    lark: str
    """A text of this grammar, in llguidance's variant of Lark."""
    structural_tag: Json
    """Free text that may enter tagged regions, each with a schema of its own. It is JSON, as vLLM takes it: {"type":
    "structural_tag", "structures": [{"begin": ..., "schema": ..., "end": ...}], "triggers": [...]}."""
    whitespace: Whitespace
    """The whitespace between the tokens of JSON: flexible (any), compact (none), or spaced (one space after each comma
    and colon). Default: flexible."""
    unknown_keywords: UnknownKeywords
    """What becomes of keywords and formats that the schema's draft does not know. The draft says that they constrain
    nothing. Default: ignore, with a warning in the first message."""
    property_order: PropertyOrder
    """The order of an object's properties: schema (the order in which the schema lists them) or any. Default:
    schema."""
    begin_after_token: int
    """Begin after the first token of this id."""
    begin_after_text: str
    """Begin after the first occurrence of this text, such as the end of a model's reasoning. 1 to 256 bytes."""
    logprobs_after_mask: bool
    """With a structure, give log-probabilities among the tokens that it allows, instead of among all tokens. Default:
    false."""


class EmbedOptions(CallOptions, total=False):
    """Options of embed."""

    request_id: str
    """Names the request for Abort and the logs, as in GenerateRequest. Default: the server makes one."""
    add_special_tokens: bool
    """Add BOS and other special tokens to `prompt`. Default: true."""
    pooling: Pooling
    """Choose the hidden states that make the embedding: last or mean. Default: last."""
    normalize: bool
    """Divide the embedding by its Euclidean norm. Default: true."""
    share_prefix: bool
    """Share prefixes, as in GenerateRequest. The mean needs every position, so it uses no prefix but leaves one.
    Default: true, if the server shares prefixes."""
    cache_salt: str
    """Share prefixes only with requests of the same salt, which names the tenant. At most 128 characters. Default:
    empty."""
    priority: int
    """Order the request among those of its tenant, as in GenerateRequest. Range [-100, 100]. Default: 0."""


class TemplateOptions(CallOptions, total=False):
    """Options of tokenize_chat: those of the chat template."""

    add_generation_prompt: bool
    """Append the text that opens the assistant's turn. Default: true."""
    tools_json: Json
    """A JSON array of tool definitions, which the template reads as `tools`."""
    template_variables_json: Json
    """A JSON object of more variables for the template."""


class TokenizeOptions(CallOptions, total=False):
    """Options of tokenize."""

    add_special_tokens: bool
    """Add BOS and other special tokens to `text`. Default: true."""


class DetokenizeOptions(CallOptions, total=False):
    """Options of detokenize."""

    skip_special_tokens: bool
    """Leave special tokens out of the text. Default: true."""


class SessionOptions(CallOptions, total=False):
    """Options of calls about sessions."""

    tenant: str


class ResumeOptions(CallOptions, total=False):
    """Options of resume_session."""

    tenant: str
    request_id: str
    """Names the resumed request, as in GenerateRequest."""
    received_tokens: int
    """Number of output tokens that the client has; they are not sent again. Default: 0."""


class AbortOptions(CallOptions, total=False):
    """Options of abort."""

    tenant: str
    """Whose requests. Only an operator may name another tenant than its own (PERMISSION_DENIED). Default: the caller's
    tenant; without authentication, any."""
    all: bool
    """End all requests of the tenant. request_ids must be empty. Without authentication, `tenant` must be set."""


class StepsOptions(CallOptions, total=False):
    """Options of steps."""

    last: int
    """The most steps to return, the newest ones; 0: all."""


class FlushOptions(CallOptions, total=False):
    """Options of flush_cache."""

    tenant: str
    """Whose prefixes; absent: those of all tenants."""


class EraseOptions(CallOptions, total=False):
    """Options of erase_tenant."""

    tenant: str
    """Must be set."""


class ChatOptions(GenerateOptions, TemplateOptions, total=False):
    """Options of chat, stream_chat and parse."""


@dataclass(slots=True, kw_only=True)
class TopLogprob:

    token_id: int = 0
    logprob: float = 0.0
    text: str = ""
    """As in TokenLogprobs."""
    bytes: builtins.bytes | None = None


@dataclass(slots=True, kw_only=True)
class TokenLogprobs:

    token_id: int = 0
    logprob: float = 0.0
    text: str = ""
    """What the token adds to the text, with U+FFFD for parts of characters. Special tokens have their names."""
    top: list[TopLogprob] = field(default_factory=list)
    """Most likely first."""
    bytes: builtins.bytes | None = None
    """The token's bytes, if it has a part of a character. Joined, the bytes of all tokens give the output, with `text`
    where a token has no bytes."""


@dataclass(slots=True, kw_only=True)
class Usage:

    prompt_tokens: int = 0
    """With an encoder: its tokens and those that the decoder starts from."""
    completion_tokens: int = 0
    """All generated outputs, but only the returned ones of a beam search."""
    cached_tokens: int = 0
    """Prompt tokens that were in the cache already."""


@dataclass(slots=True, kw_only=True)
class Timings:

    queue_seconds: float = 0.0
    """Arrival to first step."""
    prefill_seconds: float = 0.0
    """First step to first token, or to the embedding."""
    decode_seconds: float = 0.0
    """First token to end."""
    preemptions: int = 0


@dataclass(slots=True, kw_only=True)
class GenerateResponse:
    """One message of a stream, or the only one of Complete. A stream of several outputs has messages of each, in any
    order. "First" and "last" below are those of one output. request_id and prompt_token_ids come once for all
    outputs."""

    request_id: str = ""
    """In the first message of a stream; "" afterwards."""
    text: str = ""
    """New text, in whole characters. May be "" while a character or a possible stop string is incomplete."""
    token_ids: list[int] = field(default_factory=list)
    """The tokens since the last message."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each token of token_ids, if requested."""
    prompt_token_ids: list[int] = field(default_factory=list)
    """In the first message, if requested."""
    usage: Usage | None = None
    """So far; in every message."""
    finish_reason: FinishReason | None = None
    """In the last message only."""
    stop_string: str | None = None
    stop_token_id: int | None = None
    timings: Timings | None = None
    index: int = 0
    """The output's number, from 0. With best_of and beam_search, 0 is the best."""
    cumulative_logprob: float | None = None
    """The sum of the logprobs of the output's tokens, in its last message. Set with `logprobs`, with best_of above n,
    and with beam search."""
    other_outputs: list[GenerateResponse] = field(default_factory=list)
    """When Complete has several outputs: those after the first. Each has its own text, token_ids, logprobs,
    finish_reason, stopped_by, index and cumulative_logprob."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """In the first message of the first output, if requested: one for each prompt token but the first, which no token
    precedes. Not in a resumed session."""
    warnings: list[str] = field(default_factory=list)
    """In the first message: what the request's schema has that constrains nothing, such as a misspelt keyword."""


@dataclass(slots=True, kw_only=True)
class EmbedResponse:
    """The embedding of one request."""

    request_id: str = ""
    embedding: list[float] = field(default_factory=list)
    """As many numbers as the model's hidden_size. Other requests and chunks change its bits only where they change
    those of a token: docs/numerics.md."""
    usage: Usage | None = None
    """Without completion_tokens."""
    timings: Timings | None = None


@dataclass(slots=True, kw_only=True)
class TokenizeResponse:

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    """The tokenised text: the rendered chat, or the text itself."""


@dataclass(slots=True, kw_only=True)
class CacheGroup:
    """Layers whose cache has the same form. They share one pool."""

    kind: str = ""
    """"static", "sliding", "chunked", "recurrent", "cross", "checkpoint"."""
    layers: list[int] = field(default_factory=list)
    unit_bytes: int = 0
    """Size of a block of block_tokens tokens, of a sequence's states, or of a checkpoint."""
    bytes_per_token: int = 0
    """Scales included; 0 for states; for "cross": per token of the encoder."""
    bytes_per_sequence: int = 0
    """Size of the states; 0 for keys and values, and for checkpoints."""
    window: int = 0
    """Number of newest tokens that a query sees; 0: all."""
    block_tokens: int = 0
    """0 for states."""
    chunk: int = 0
    """Tokens per attention chunk; a query sees its own chunk; 0: no chunks."""
    dtype: str = ""
    """"float32", "bfloat16", "int8", "int4"; "" for states."""
    sink_tokens: int = 0
    """Number of first tokens that a query sees beside its window."""


@dataclass(slots=True, kw_only=True)
class Limits:

    max_sequence_tokens: int = 0
    """Prompt + output; in an encoder-decoder model the tokens of the decoder."""
    max_running: int = 0
    """Sequences that run at once."""
    max_queue: int = 0
    """Requests that wait for their first step."""
    max_step_tokens: int = 0
    """Tokens computed in one step."""
    prefill_chunk_tokens: int = 0
    """Tokens of one prompt computed in one step."""
    max_logprobs: int = 0
    default_max_tokens: int = 0
    """Max_tokens of a request that sets none."""
    max_encoder_tokens: int = 0
    """Prompt of an encoder-decoder model; 0: the model has no encoder."""
    max_outputs: int = 0
    """N, best_of and num_beams of one request."""


@dataclass(slots=True, kw_only=True)
class ModelInfo:

    name: str = ""
    model_type: str = ""
    dtype: str = ""
    """Data type of the weights: "float32", "bfloat16"."""
    device: str = ""
    """"cpu", "cuda"."""
    vocab_size: int = 0
    num_layers: int = 0
    hidden_size: int = 0
    num_parameters: int = 0
    weight_bytes: int = 0
    eos_token_ids: list[int] = field(default_factory=list)
    has_chat_template: bool = False
    cache_groups: list[CacheGroup] = field(default_factory=list)
    limits: Limits | None = None


@dataclass(slots=True, kw_only=True)
class ServerInfo:
    """A user sees version, draining and services only; an operator, and everybody without authentication, sees all."""

    version: str = ""
    uptime_seconds: float = 0.0
    draining: bool = False
    services: list[str] = field(default_factory=list)
    libtorch_version: str = ""
    cpu_capability: str = ""
    """Instruction set of the CPU kernels."""
    num_threads: int = 0


@dataclass(slots=True, kw_only=True)
class PoolOccupancy:
    """Units of one pool by holder. A unit is a block of tokens or the recurrent states of one sequence."""

    kind: str = ""
    """As in CacheGroup."""
    unit_bytes: int = 0
    live_units: int = 0
    """Held by one sequence."""
    free_units: int = 0
    """Not held."""
    live_bytes: int = 0
    free_bytes: int = 0
    live_tokens: int = 0
    """Tokens that sequences hold; for states: sequences."""
    shared_units: int = 0
    """Held by several sequences."""
    cached_units: int = 0
    """Held by the prefix cache alone, and evicted when a sequence needs the bytes."""
    shared_bytes: int = 0
    cached_bytes: int = 0
    cached_tokens: int = 0
    """For states: their number."""
    evicted_units: int = 0
    """Evicted since start."""
    compacted_bytes: int = 0
    """Moved since start, to join free pieces of the arena."""


@dataclass(slots=True, kw_only=True)
class CacheOccupancy:
    """Bytes of the arena. They add up exactly: free_bytes, overhead_bytes, and all pools' live_bytes, shared_bytes,
    cached_bytes and free_bytes make arena_bytes."""

    arena_bytes: int = 0
    free_bytes: int = 0
    """Bytes of no pool."""
    overhead_bytes: int = 0
    """End of the arena that alignment makes unusable."""
    pools: list[PoolOccupancy] = field(default_factory=list)
    num_leases: int = 0
    """Sequences that hold cache."""
    largest_admissible_tokens: int = 0
    """Length of the longest new sequence that fits now."""
    largest_hole_bytes: int = 0
    """Largest free piece."""


@dataclass(slots=True, kw_only=True)
class TenantShare:
    """What a tenant gets. Fair shares are described in docs/operations.md."""

    tenant: str = ""
    """"": of requests that name none."""
    share: float = 0.0
    """Of what all tenants were charged lately."""
    deficit_tokens: float = 0.0
    """Behind the waiting tenant that got most, after weights; 0: it does not wait."""
    wait_seconds: float = 0.0
    """Since something of it was admitted, while it waits."""


@dataclass(slots=True, kw_only=True)
class Load:
    """`berth-cli status` shows the fields by their names, in this order."""

    draining: bool = False
    cache: CacheOccupancy | None = None
    running: int = 0
    """Now."""
    waiting: int = 0
    """Sequences that wait for cache, preempted ones included."""
    paused: int = 0
    """Sequences that neither run nor wait, because their clients do not read."""
    queued: int = 0
    """Waiting sequences that never ran; --max_queue limits them."""
    waiting_tokens: int = 0
    """Tokens that the waiting sequences have to prefill."""
    predicted_wait_ms: int = 0
    """Of a request for its first step, if it went behind all that wait."""
    predicted_wait_new_tenant_ms: int = 0
    """The same if nothing else of its tenant waited."""
    tenants: int = 0
    """With a request that waits or runs."""
    tenant_shares: list[TenantShare] = field(default_factory=list)
    """Of those with the largest shares, the largest first."""
    texts_waiting: int = 0
    """Prompts and chats that no thread has begun to tokenise or render."""
    text_waiting_bytes: int = 0
    """Bytes of texts_waiting."""
    texts_running: int = 0
    """That a thread works on."""
    connections: int = 0
    """Open connections of the gRPC port."""
    connections_limit: int = 0
    """0: none."""
    grammars_waiting: int = 0
    """Requests whose grammar is not compiled yet; they are not in the queue."""
    grammar_cache_bytes: int = 0
    """Compiled grammars."""
    grammar_cache_limit_bytes: int = 0
    """Limit of grammar_cache_bytes."""
    host_tier_bytes: int = 0
    """Swapped-out caches, and caches of resumed sessions that wait."""
    host_tier_prefix_bytes: int = 0
    """Copies of prefixes."""
    host_tier_limit_bytes: int = 0
    """Limit of both together; 0: no host tier."""
    disk_tier_bytes: int = 0
    """Files of prefixes."""
    disk_tier_limit_bytes: int = 0
    """Limit of disk_tier_bytes; 0: no disk tier."""
    session_bytes: int = 0
    """Files of sessions."""
    session_limit_bytes: int = 0
    """Limit of session_bytes; 0: sessions are off."""
    undelivered_bytes: int = 0
    """Messages that clients have not taken yet, also of requests that have ended."""
    undelivered_limit_bytes: int = 0
    """Limit of undelivered_bytes."""
    steps: int = 0
    """Since start."""
    failed_steps: int = 0
    """Steps that failed."""
    retried_steps: int = 0
    """Steps that computed one request again, alone, after a step of several failed."""
    graph_launches: int = 0
    """Steps launched as CUDA graphs."""
    graph_refusals: int = 0
    """Failed attempts to record one; after the first, steps run without graphs."""
    device_allocations: int = 0
    """GPU memory allocations; constant after warm-up."""
    prompt_tokens: int = 0
    """Computed or found in the cache; recomputation after a preemption not counted."""
    generation_tokens: int = 0
    """Tokens generated."""
    draft_tokens: int = 0
    """Draft tokens checked."""
    accepted_draft_tokens: int = 0
    """Draft tokens accepted."""
    forced_tokens: int = 0
    """Tokens that a structured output had to continue with; each saved a step."""
    grammars_compiled: int = 0
    """Grammars of structured outputs compiled."""
    grammars_failed: int = 0
    """Refused, or stopped by --grammar_timeout."""
    grammars_cancelled: int = 0
    """Compilations stopped because their requests had ended."""
    grammar_cache_hits: int = 0
    """Requests whose grammar was compiled already, or was being compiled."""
    unread_requests_ended: int = 0
    """Requests ended because their clients did not read what was sent."""
    pauses: int = 0
    """Pauses of requests whose clients did not read."""
    preemptions: int = 0
    """Preemptions."""
    swap_outs: int = 0
    """Preemptions that swapped the cache out to the host tier."""
    recomputes: int = 0
    """Preemptions that dropped the cache."""
    prefix_queried_tokens: int = 0
    """Prompt tokens of requests that looked for a cached prefix."""
    prefix_hit_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    prefix_replayed_tokens: int = 0
    """Tokens of a cached prefix that ran again, from the last kept recurrent state."""
    tier_hits: int = 0
    """Prefixes copied back to the arena from host memory."""
    tier_disk_reads: int = 0
    """Prefixes read from disk to host memory."""
    tier_restored_tokens: int = 0
    """Tokens of restored prefixes that the arena no longer held."""
    tier_prefixes_lost: int = 0
    """Prefixes evicted from the arena before they were copied to a tier."""
    tier_host_evictions: int = 0
    """Prefixes dropped from host memory for others."""
    tier_disk_evictions: int = 0
    """Files of prefixes deleted for others."""
    tier_file_errors: int = 0
    """Files of prefixes that could not be written, read or used."""
    texts_done: int = 0
    """Texts that were tokenised, detokenised or rendered."""
    texts_refused: int = 0
    """Texts refused because too many waited."""
    connections_refused: int = 0
    """Connections closed at once because too many were open."""
    session_saves: int = 0
    """Session files written."""
    failed_session_saves: int = 0
    """Session files that could not be written."""


@dataclass(slots=True, kw_only=True)
class DrainResponse:

    requests: int = 0
    """Under way."""
    grace_seconds: float = 0.0
    """That they have to end."""


@dataclass(slots=True, kw_only=True)
class FlushCacheResponse:

    arena_bytes: int = 0
    """That became free; what running requests hold stays."""
    host_tier_bytes: int = 0
    """Copies of prefixes."""
    disk_tier_bytes: int = 0
    """Files of prefixes."""
    grammar_bytes: int = 0
    """Compiled grammars, which all tenants share; 0 with a tenant."""


@dataclass(slots=True, kw_only=True)
class EraseTenantResponse:

    requests: int = 0
    """Ended."""
    sessions: int = 0
    """Deleted."""
    session_bytes: int = 0
    arena_bytes: int = 0
    """These three as in FlushCacheResponse."""
    host_tier_bytes: int = 0
    disk_tier_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """One step of the engine. berth-cli trace draws them."""

    number: int = 0
    """Since start, failed steps included."""
    start_us: int = 0
    """Since 1970, by a clock that is not set after the start."""
    plan_us: int = 0
    """Choosing what to compute."""
    run_us: int = 0
    """The model's step."""
    commit_us: int = 0
    """Taking in the results and handing out tokens."""
    rows: int = 0
    """Sequences in the step."""
    decode_rows: int = 0
    """Of them, those that computed one token of their output."""
    tokens: int = 0
    """Computed."""
    running: int = 0
    """Sequences that held cache when it began."""
    waiting: int = 0
    """Sequences that waited then."""
    preemptions: int = 0
    """Requests preempted for it."""
    swap_outs: int = 0
    """Caches that had been copied to host memory by its end."""
    evicted_units: int = 0
    """Units evicted from the prefix cache."""
    free_bytes: int = 0
    """Of the arena, after it."""
    failed: int = 0
    """1: the step failed."""


@dataclass(slots=True, kw_only=True)
class Session:

    session_id: str = ""
    size_bytes: int = 0
    output_tokens: int = 0
    """Saved so far."""
    ended: bool = False
    """The request has ended; Resume only repeats its output."""
    running: bool = False
    """A request is running that saves it."""
    damaged: bool = False
    """Its file is torn and cannot be resumed."""


# The type of each message of an answer.
ANSWER_TYPES: dict[str, type[Any]] = {
    "berth.v1.TopLogprob": TopLogprob,
    "berth.v1.TokenLogprobs": TokenLogprobs,
    "berth.v1.Usage": Usage,
    "berth.v1.Timings": Timings,
    "berth.v1.GenerateResponse": GenerateResponse,
    "berth.v1.EmbedResponse": EmbedResponse,
    "berth.v1.TokenizeResponse": TokenizeResponse,
    "berth.v1.CacheGroup": CacheGroup,
    "berth.v1.Limits": Limits,
    "berth.v1.GetModelInfoResponse": ModelInfo,
    "berth.v1.GetServerInfoResponse": ServerInfo,
    "berth.v1.PoolOccupancy": PoolOccupancy,
    "berth.v1.CacheOccupancy": CacheOccupancy,
    "berth.v1.TenantShare": TenantShare,
    "berth.v1.GetLoadResponse": Load,
    "berth.v1.DrainResponse": DrainResponse,
    "berth.v1.FlushCacheResponse": FlushCacheResponse,
    "berth.v1.EraseTenantResponse": EraseTenantResponse,
    "berth.v1.StepRecord": StepRecord,
    "berth.v1.Session": Session,
}
