#!/usr/bin/env python3
"""Writes the generated files of the package from proto/: descriptors.py and types.py.

    clients/python/generate.py            writes them (./dev docs)
    clients/python/generate.py --check    exits with 1 if they are not what it would write

Needs protoc and the package protobuf. Comments of the protos become the docstrings of the types.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
PACKAGE = FOLDER / "src/berth_client"
sys.path.insert(0, str(PACKAGE))

import _fields  # noqa: E402

PROTOS = ["berth/v1/inference.proto", "berth/v1/control.proto", "berth/v1/sessions.proto", "google/rpc/status.proto",
          "google/rpc/error_details.proto"]
WIDTH = 120

# The answers that a client returns as objects. What they hold follows from their fields.
ANSWERS = ["GenerateResponse", "EmbedResponse", "TokenizeResponse", "GetModelInfoResponse", "GetServerInfoResponse", "GetLoadResponse",
           "DrainResponse", "FlushCacheResponse", "EraseTenantResponse",
           "StepRecord", "Session"]
# The options of calls: a name, the message whose fields they are, those of its fields that are not options, the type
# that they extend, and a description.
OPTIONS = [
    ("GenerateOptions", "GenerateRequest", _fields.INPUTS, "CallOptions", "Options of generate and stream."),
    ("EmbedOptions", "EmbedRequest", _fields.INPUTS, "CallOptions", "Options of embed."),
    ("TemplateOptions", "Chat", ("messages",), "CallOptions", "Options of tokenize_chat: those of the chat template."),
    ("TokenizeOptions", "TokenizeRequest", ("text", "chat"), "CallOptions", "Options of tokenize."),
    ("DetokenizeOptions", "DetokenizeRequest", ("token_ids",), "CallOptions", "Options of detokenize."),
    ("SessionOptions", "ListSessionsRequest", (), "CallOptions", "Options of calls about sessions."),
    ("ResumeOptions", "ResumeSessionRequest", ("session_id",), "CallOptions", "Options of resume_session."),
    ("AbortOptions", "AbortRequest", ("request_ids",), "CallOptions", "Options of abort."),
    ("StepsOptions", "GetStepsRequest", (), "CallOptions", "Options of steps."),
    ("FlushOptions", "FlushCacheRequest", (), "CallOptions", "Options of flush_cache."),
    ("EraseOptions", "EraseTenantRequest", (), "CallOptions", "Options of erase_tenant."),
]

HEAD = '"""{}"""\n\n# Written by clients/python/generate.py from proto/. Do not edit.\n\n'

TYPES_HEAD = """from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypedDict


class SchemaModel(Protocol):
    \"\"\"A class that knows its JSON schema, such as a pydantic model.\"\"\"

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...


# JSON as text, or as the object that is written as that text.
Json: TypeAlias = str | Mapping[str, Any] | Sequence[Any]


class CallOptions(TypedDict, total=False):
    \"\"\"Options of every call.\"\"\"

    timeout: float | None
    \"\"\"Seconds until the call ends with DeadlineExceededError, retries included. None: no limit. Default: the client's.\"\"\"
    metadata: Mapping[str, str]
    \"\"\"Metadata of this call, beside the client's.\"\"\"
"""


def compile_protos(*flags: str) -> bytes:
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc", "--experimental_allow_proto3_optional", "-Iproto", "--include_imports", *flags,
                        f"--descriptor_set_out={out.name}", *PROTOS], cwd=ROOT, check=True)
        return Path(out.name).read_bytes()


class Api:
    """The descriptors, and the comments of fields and messages."""

    def __init__(self) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(compile_protos("--include_source_info"))
        self.pool = descriptor_pool.DescriptorPool()
        self.comments: dict[str, str] = {}
        for file in files.file:
            self.pool.AddSerializedFile(file.SerializeToString())
            for location in file.source_code_info.location:
                text = location.leading_comments or location.trailing_comments
                if name := self.name_at(file, list(location.path)):
                    self.comments[name] = " ".join(text.split())

    @staticmethod
    def name_at(file: descriptor_pb2.FileDescriptorProto, path: list[int]) -> str:
        """The name of the message or field that a path of source_code_info leads to."""
        if len(path) == 2 and path[0] == 4:
            return f"{file.package}.{file.message_type[path[1]].name}"
        if len(path) == 4 and path[0] == 4 and path[2] == 2:
            message = file.message_type[path[1]]
            return f"{file.package}.{message.name}.{message.field[path[3]].name}"
        return ""

    def message(self, name: str) -> Descriptor:
        return self.pool.FindMessageTypeByName(f"berth.v1.{name}")

    def docstring(self, full_name: str, indent: str) -> Iterator[str]:
        text = self.comments.get(full_name, "").replace("\\", "\\\\")
        if not text:
            return
        text = text[0].upper() + text[1:]
        text = text if text.endswith(".") else text + "."
        yield textwrap.fill(f'"""{text}"""', WIDTH, initial_indent=indent, subsequent_indent=indent,
                            break_on_hyphens=False)


def scalar_type(field: FieldDescriptor) -> str:
    """Returns the type of one value."""
    if field.enum_type is not None:
        return field.enum_type.name
    if field.message_type is not None:
        return python_name(field.message_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "builtins.bytes"  # a field may have the name "bytes"
    return {FieldDescriptor.CPPTYPE_BOOL: "bool", FieldDescriptor.CPPTYPE_STRING: "str",
            FieldDescriptor.CPPTYPE_FLOAT: "float", FieldDescriptor.CPPTYPE_DOUBLE: "float"}.get(field.cpp_type, "int")


def option_type(field: FieldDescriptor) -> str:
    if _fields.is_map(field):
        key, value = field.message_type.fields
        return f"Mapping[{scalar_type(key)}, {scalar_type(value)}]"
    if inner := _fields.list_of(field.message_type):
        return f"Sequence[{scalar_type(inner)}]"
    if _fields.is_repeated(field):
        return f"Sequence[{scalar_type(field)}]"
    if field.name == "json_schema":
        return "Json | type[SchemaModel]"
    if field.enum_type is not None and {"true", "false"} <= set(_fields.words(field.enum_type)):
        return f"{scalar_type(field)} | bool"
    return "Json" if field.name in _fields.JSON_FIELDS else scalar_type(field)


def answer_type(field: FieldDescriptor) -> tuple[str, str]:
    """Type and default of an attribute."""
    if _fields.is_repeated(field):
        return f"list[{scalar_type(field)}]", "field(default_factory=list)"
    if field.has_presence or (field.enum_type is not None and _fields.word(field.enum_type.values[0].name) is None):
        return f"{scalar_type(field)} | None", "None"
    defaults = {"bool": "False", "str": '""', "float": "0.0", "int": "0"}
    return scalar_type(field), defaults[scalar_type(field)]


def python_name(message: Descriptor) -> str:
    """Load for GetLoadResponse."""
    name = message.name
    return name[3:-8] if name.startswith("Get") and name.endswith("Response") else name


def with_parts(message: Descriptor, found: list[Descriptor]) -> list[Descriptor]:
    """The message, after those that its fields hold."""
    if message in found:
        return found
    for field in message.fields:
        if field.message_type is not None and field.message_type != message:
            with_parts(field.message_type, found)
    found.append(message)
    return found


def enum_lines(enum: EnumDescriptor) -> Iterator[str]:
    values = ", ".join(f'"{word}"' for word in _fields.words(enum))
    yield f"{enum.name}: TypeAlias = Literal[{values}]"


def answer_lines(api: Api, message: Descriptor) -> Iterator[str]:
    yield "\n\n@dataclass(slots=True, kw_only=True)"
    yield f"class {python_name(message)}:"
    yield from api.docstring(message.full_name, "    ")
    yield ""
    for field in message.fields:
        kind, default = answer_type(field)
        yield f"    {field.name}: {kind} = {default}"
        yield from api.docstring(field.full_name, "    ")


def options_lines(api: Api, name: str, message: Descriptor, left_out: tuple[str, ...], base: str,
                  what: str) -> Iterator[str]:
    yield f'\n\nclass {name}({base}, total=False):\n    """{what}"""\n'
    for option, path in _fields.option_fields(message, left_out).items():
        yield f"    {option}: {option_type(path[-1])}"
        yield from api.docstring(path[-1].full_name, "    ")


def message_lines(api: Api) -> Iterator[str]:
    """The type of a turn of a chat. Only its role and content are always there."""
    message = api.message("ChatMessage")
    yield "\n\nclass _ChatMessageRequired(TypedDict):"
    for field in (f for f in message.fields if not f.has_presence):
        yield f"    {field.name}: {option_type(field)}"
        yield from api.docstring(field.full_name, "    ")
    yield '\n\nclass ChatMessage(_ChatMessageRequired, total=False):\n    """A turn of a chat."""\n'
    for field in (f for f in message.fields if f.has_presence):
        yield f"    {field.name}: {option_type(field)}"
        yield from api.docstring(field.full_name, "    ")


def types_file(api: Api) -> str:
    lines = [HEAD.format("The types of options and answers.") + TYPES_HEAD + "\n"]
    for enum in api.pool.FindFileByName("berth/v1/inference.proto").enum_types_by_name.values():
        lines.extend(enum_lines(enum))
    lines.extend(message_lines(api))
    for name, message, left_out, base, what in OPTIONS:
        lines.extend(options_lines(api, name, api.message(message), left_out, base, what))
    lines.append("\n\nclass ChatOptions(GenerateOptions, TemplateOptions, total=False):\n"
                 '    """Options of chat, stream_chat and parse."""')
    found: list[Descriptor] = []
    for name in ANSWERS:
        with_parts(api.message(name), found)
    for message in found:
        lines.extend(answer_lines(api, message))
    lines.append("\n\n# The type of each message of an answer.\nANSWER_TYPES: dict[str, type[Any]] = {")
    lines.extend(f'    "{message.full_name}": {python_name(message)},' for message in found)
    lines.append("}\n")
    return "\n".join(lines)


def descriptors_file() -> str:
    text = base64.b64encode(compile_protos()).decode()
    rows = "\n".join(f'    "{row}"' for row in textwrap.wrap(text, WIDTH))
    return HEAD.format("The descriptors of berth.v1 and of the details of errors.") + (
        "import base64\n\n# A serialised google.protobuf.FileDescriptorSet.\n"
        f"FILES = base64.b64decode(\n{rows}\n)\n")


def main() -> int:
    files = {PACKAGE / "types.py": types_file(Api()), PACKAGE / "_descriptors.py": descriptors_file()}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: ./dev docs writes it")
        return 1 if stale else 0
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
