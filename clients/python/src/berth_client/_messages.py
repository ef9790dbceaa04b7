"""Builds requests from options, and objects from answers. By the descriptors: no field is named here.

The messages live in a pool of their own. So stubs that a program has generated itself never clash with them, and any
supported version of protobuf reads them.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from . import _fields
from ._descriptors import FILES
from .types import ANSWER_TYPES


def _load() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(FILES).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _load()
_RANGES = {FieldDescriptor.CPPTYPE_INT32: "an integer in [-2147483648, 2147483647]",
           FieldDescriptor.CPPTYPE_UINT32: "an integer in [0, 4294967295]",
           FieldDescriptor.CPPTYPE_INT64: "an integer of 64 bits",
           FieldDescriptor.CPPTYPE_UINT64: "an integer in [0, 18446744073709551615]",
           FieldDescriptor.CPPTYPE_FLOAT: "a number", FieldDescriptor.CPPTYPE_DOUBLE: "a number",
           FieldDescriptor.CPPTYPE_BOOL: "True or False", FieldDescriptor.CPPTYPE_STRING: "a text"}


@functools.cache
def message_class(name: str) -> type[Message]:
    """By its full name, such as berth.v1.GenerateRequest."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def service(name: str) -> ServiceDescriptor:
    return POOL.FindServiceByName(f"berth.v1.{name}")


def _convert(name: str, field: FieldDescriptor, value: Any) -> Any:
    """One value of a field. TypeError or ValueError names the option, the value and what it may be."""
    if field.enum_type is not None:
        word = str(value).lower() if isinstance(value, bool) else value
        for known in field.enum_type.values:
            if _fields.word(known.name) == word:
                return known.number
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(_fields.words(field.enum_type))}")
    if field.name in _fields.JSON_FIELDS:
        if isinstance(value, type) and hasattr(value, "model_json_schema"):
            value = value.model_json_schema()
        if isinstance(value, (Mapping, list, tuple)):
            return json.dumps(value)
    is_bool = field.cpp_type == FieldDescriptor.CPPTYPE_BOOL
    if isinstance(value, bool) != is_bool:
        raise TypeError(f"{name}: {value!r} is not {_RANGES[field.cpp_type]}")
    return value


def _description(field: FieldDescriptor) -> str:
    """What a field takes."""
    if field.message_type is not None and _fields.is_map(field):
        key, value = field.message_type.fields
        return f"a map from {_RANGES[key.cpp_type]} to {_RANGES[value.cpp_type]}"
    one = _RANGES[field.cpp_type]
    return f"a list, each {one}" if _fields.is_repeated(field) else one


def _extend(values: Any, name: str, field: FieldDescriptor, given: Any) -> None:
    """Appends to a list. An error names the place in it, not the whole list, which may be a long prompt."""
    if isinstance(given, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{name}: {given!r} is a text; give a list")
    for index, one in enumerate(given):
        try:
            values.append(_convert(name, field, one))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name}[{index}]: {one!r} is not {_RANGES[field.cpp_type]}") from error


def _set(message: Message, name: str, field: FieldDescriptor, value: Any) -> None:
    if inner := _fields.list_of(field.message_type):
        message = getattr(message, field.name)
        message.SetInParent()
        field = inner
    try:
        if _fields.is_map(field):
            getattr(message, field.name).update(value)
        elif _fields.is_repeated(field):
            _extend(getattr(message, field.name), name, field, value)
        else:
            setattr(message, field.name, _convert(name, field, value))
    except (TypeError, ValueError) as error:
        if str(error).startswith((f"{name}: ", f"{name}[")):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {value!r} is not {_description(field)}") from error


@functools.cache
def options_of(message: Descriptor) -> dict[str, tuple[FieldDescriptor, ...]]:
    left_out = {"GenerateRequest": _fields.INPUTS, "EmbedRequest": _fields.INPUTS, "Chat": ("messages",)}
    return _fields.option_fields(message, left_out.get(message.name, ()))


def _option_error(name: str, known: Sequence[str]) -> TypeError:
    close = difflib.get_close_matches(name, known, 1)
    return TypeError(f"{name}: there is no option of this name" + (f"; did you mean {close[0]}?" if close else ""))


def set_options(message: Message, options: Mapping[str, Any]) -> None:
    """Sets the fields that the options name, those of inner messages included. An option that is None stays absent."""
    known = options_of(message.DESCRIPTOR)
    groups: dict[str, str] = {}
    for name, value in options.items():
        if name not in known:
            raise _option_error(name, list(known))
        if value is None:
            continue
        *outer, field = known[name]
        oneof = field.containing_oneof
        if oneof is not None and groups.setdefault(oneof.full_name, name) != name:
            raise TypeError(f"{name}: cannot be combined with {groups[oneof.full_name]}")
        target = message
        for group in outer:
            target = getattr(target, group.name)
        target.SetInParent()
        _set(target, name, field, value)


def set_field(message: Message, name: str, value: Any) -> None:
    """Sets a field of the message itself. It need not be an option."""
    field: Any = message.DESCRIPTOR.fields_by_name[name]
    _set(message, name, field, value)


def _reader(field: FieldDescriptor) -> Callable[[Message], Any]:
    """Reads one attribute of an answer."""
    name = field.name
    if field.message_type is not None:
        one: Callable[[Any], Any] = read
    elif field.enum_type is not None:
        names = {value.number: _fields.word(value.name) for value in field.enum_type.values}

        def one(number: Any) -> Any:
            return names.get(number, str(number))
    else:
        one = _same
    if _fields.is_repeated(field):
        if one is _same:
            return lambda message: list(getattr(message, name))
        return lambda message: [one(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    return lambda message: one(getattr(message, name))


def _same(value: Any) -> Any:
    return value


@functools.cache
def _readers(full_name: str) -> list[tuple[str, Callable[[Message], Any]]]:
    return [(field.name, _reader(field)) for field in POOL.FindMessageTypeByName(full_name).fields]


def read(message: Message) -> Any:
    """The object of types.py for an answer."""
    name = message.DESCRIPTOR.full_name
    return ANSWER_TYPES[name](**{field: value(message) for field, value in _readers(name)})
