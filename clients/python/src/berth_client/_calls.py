"""The calls of the API: each function builds what is sent, and says how the answer is read.

Client and AsyncClient have a method for each of them, with the same arguments and the same documentation.

To add a call: 1. write its function here; 2. give each of the two clients a method; 3. add its options to generate.py.
A field that is added to a request of berth.v1 needs nothing but ./dev docs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

from google.protobuf.message import Message

from ._messages import message_class, options_of, read, service, set_field, set_options
from .errors import IncompleteOutputError
from .types import (AbortOptions, CallOptions, ChatMessage, ChatOptions, DetokenizeOptions, DrainResponse,
                    EmbedOptions, EmbedResponse, EraseOptions, EraseTenantResponse, FlushCacheResponse, FlushOptions,
                    GenerateOptions, GenerateResponse, Load, ModelInfo, ResumeOptions, SchemaModel, ServerInfo, Session,
                    SessionOptions, StepRecord, StepsOptions, TemplateOptions, TokenizeOptions, TokenizeResponse)

R = TypeVar("R")


class ParsedModel(SchemaModel, Protocol):
    """A class that also reads JSON, such as a pydantic model."""

    @classmethod
    def model_validate_json(cls, json_data: str, /) -> Self: ...


M = TypeVar("M", bound=ParsedModel)


@dataclass(frozen=True, kw_only=True)
class Call(Generic[R]):
    """One call: the method, the request, and how each message of the answer is read."""

    path: str
    request: Any
    answer: type[Message]
    read: Callable[[Any], R]
    metadata: Mapping[str, str]
    has_timeout: bool  # whether `timeout` is the call's own; else the client's counts
    timeout: float | None


def _call(service_name: str, method_name: str, options: Mapping[str, Any], **named: Any) -> Call[Any]:
    """A call whose request has the options; the `named` ones are arguments of their own."""
    method = service(service_name).methods_by_name[method_name]
    own = dict(options)
    call: Call[Any] = Call(path=f"/{method.containing_service.full_name}/{method.name}",
                           request=message_class(method.input_type.full_name)(),
                           answer=message_class(method.output_type.full_name), read=read,
                           metadata=own.pop("metadata", {}), has_timeout="timeout" in own,
                           timeout=own.pop("timeout", None))
    set_options(call.request, {**own, **named})
    return call


def _with_prompt(method: str, prompt: str | Sequence[int], options: Mapping[str, Any]) -> Call[Any]:
    call = _call("Inference", method, options)
    if isinstance(prompt, (bytes, bytearray, memoryview)) or not isinstance(prompt, Iterable):
        raise TypeError(f"prompt: {type(prompt).__name__} is neither a text nor a list of token ids")
    set_field(call.request, "prompt" if isinstance(prompt, str) else "token_ids", prompt)
    return call


def _with_chat(method: str, messages: str | Sequence[ChatMessage], options: Mapping[str, Any]) -> Call[Any]:
    of_chat = options_of(message_class("berth.v1.Chat").DESCRIPTOR)
    call = _call("Inference", method, {name: value for name, value in options.items() if name not in of_chat})
    chat = call.request.chat
    set_options(chat, {name: value for name, value in options.items() if name in of_chat})
    if isinstance(messages, (Mapping, bytes, bytearray, memoryview)) or not isinstance(messages, Iterable):
        raise TypeError(f"messages: {type(messages).__name__} is neither a text nor a list of messages")
    turns: Iterable[ChatMessage] = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    for index, turn in enumerate(turns):
        if not isinstance(turn, Mapping):
            raise TypeError(f"messages[{index}]: {type(turn).__name__} is no dict with role and content")
        set_options(chat.messages.add(), turn)
    return call


def generate(prompt: str | Sequence[int], /, **options: Unpack[GenerateOptions]) -> Call[GenerateResponse]:
    """Continues a text, or token ids, and returns the whole output."""
    return _with_prompt("Complete", prompt, options)


def stream(prompt: str | Sequence[int], /, **options: Unpack[GenerateOptions]) -> Call[GenerateResponse]:
    """Continues a text, or token ids, and returns the output in pieces while it is generated."""
    return _with_prompt("Generate", prompt, options)


def chat(messages: str | Sequence[ChatMessage], /, **options: Unpack[ChatOptions]) -> Call[GenerateResponse]:
    """Answers a user's message, or a list of messages, and returns the whole answer."""
    return _with_chat("Complete", messages, options)


def stream_chat(messages: str | Sequence[ChatMessage], /, **options: Unpack[ChatOptions]) -> Call[GenerateResponse]:
    """Answers a user's message, or a list of messages, and returns the answer in pieces while it is generated."""
    return _with_chat("Generate", messages, options)


def parse(model: type[M], messages: str | Sequence[ChatMessage], /, **options: Unpack[ChatOptions]) -> Call[M]:
    """Answers as chat does, with an object of a pydantic model.

    The output follows the model's JSON schema. IncompleteOutputError: it was cut before its end.
    """
    if options.get("n", 1) != 1:
        raise TypeError(f"n: {options.get('n')} is not 1; parse returns one object")
    options["json_schema"] = model
    call = _with_chat("Complete", messages, options)

    def read_model(message: Any) -> M:
        answer: GenerateResponse = read(message)
        if answer.finish_reason != "stop" or answer.stop_string is not None:
            raise IncompleteOutputError(
                f"the output was cut before its end (finish_reason: {answer.finish_reason})", answer.text)
        return model.model_validate_json(answer.text)

    return replace(call, read=read_model)


def embed(prompt: str | Sequence[int], /, **options: Unpack[EmbedOptions]) -> Call[EmbedResponse]:
    """Returns the embedding of a text, or of token ids."""
    return _with_prompt("Embed", prompt, options)


def tokenize(text: str, /, **options: Unpack[TokenizeOptions]) -> Call[TokenizeResponse]:
    """Returns the token ids of a text."""
    return _call("Inference", "Tokenize", options, text=text)


def tokenize_chat(messages: str | Sequence[ChatMessage], /,
                  **options: Unpack[TemplateOptions]) -> Call[TokenizeResponse]:
    """Renders messages with the model's chat template, and returns the text and its token ids."""
    return _with_chat("Tokenize", messages, options)


def detokenize(token_ids: Sequence[int], /, **options: Unpack[DetokenizeOptions]) -> Call[str]:
    """Returns the text of token ids."""
    return replace(_call("Inference", "Detokenize", options, token_ids=token_ids), read=lambda answer: answer.text)


def save_session(session_id: str, /, **options: Unpack[SessionOptions]) -> Call[Session]:
    """Saves a running request as it is after the next step, and returns when its file is on disk."""
    call = _call("Sessions", "Save", options, session_id=session_id)
    return replace(call, read=lambda answer: read(answer.session))


def resume_session(session_id: str, /, **options: Unpack[ResumeOptions]) -> Call[GenerateResponse]:
    """Continues a session, and returns its output in pieces, from token received_tokens + 1 on."""
    return _call("Sessions", "Resume", options, session_id=session_id)


def delete_session(session_id: str, /, **options: Unpack[SessionOptions]) -> Call[None]:
    """Deletes a session."""
    return replace(_call("Sessions", "Delete", options, session_id=session_id), read=lambda answer: None)


def list_sessions(**options: Unpack[SessionOptions]) -> Call[list[Session]]:
    """Returns the tenant's sessions, sorted by id."""
    call = _call("Sessions", "List", options)
    return replace(call, read=lambda answer: [read(session) for session in answer.sessions])


def model_info(**options: Unpack[CallOptions]) -> Call[ModelInfo]:
    """Describes the model, its cache and the limits of requests."""
    return _call("Control", "GetModelInfo", options)


def server_info(**options: Unpack[CallOptions]) -> Call[ServerInfo]:
    """Describes the server."""
    return _call("Control", "GetServerInfo", options)


def load(**options: Unpack[CallOptions]) -> Call[Load]:
    """Returns the load as of the last step. It is cheap."""
    return _call("Control", "GetLoad", options)


def steps(**options: Unpack[StepsOptions]) -> Call[list[StepRecord]]:
    """Returns what the last steps were and took, oldest first. For operators."""
    return replace(_call("Control", "GetSteps", options), read=lambda answer: [read(step) for step in answer.steps])


def abort(request_ids: Sequence[str] = (), /, **options: Unpack[AbortOptions]) -> Call[list[str]]:
    """Ends requests, and returns the ids of those that were running."""
    return replace(_call("Control", "Abort", options, request_ids=request_ids), read=lambda answer: list(answer.aborted))


def drain(**options: Unpack[CallOptions]) -> Call[DrainResponse]:
    """Begins to drain the server, which then ends. For operators."""
    return _call("Control", "Drain", options)


def flush_cache(**options: Unpack[FlushOptions]) -> Call[FlushCacheResponse]:
    """Drops the cached prefixes of one tenant, or of all. For operators."""
    return _call("Control", "FlushCache", options)


def erase_tenant(**options: Unpack[EraseOptions]) -> Call[EraseTenantResponse]:
    """Ends the requests of a tenant, and deletes its sessions and cached prefixes. For operators."""
    return _call("Control", "EraseTenant", options)
