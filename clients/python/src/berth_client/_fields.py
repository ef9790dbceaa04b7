"""How the fields of berth.v1 appear in Python: as options of a call, as attributes of an answer, and as words.

Everything follows from the descriptors. The client applies these rules when it runs, and generate.py writes the types
of types.py by the same rules. This module therefore imports nothing else of the package.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

# The fields of GenerateRequest and EmbedRequest that are not options.
INPUTS = ("prompt", "chat", "token_ids")
# Texts that hold JSON. They may be given as objects, too.
JSON_FIELDS = {"extra_json", "json_schema", "structural_tag", "template_variables_json", "tools_json"}


def is_repeated(field: FieldDescriptor) -> bool:
    """Lists and maps. protobuf 7 has no `label`, and protobuf 5 no `is_repeated`."""
    repeated = getattr(field, "is_repeated", None)
    if repeated is None:
        repeated = getattr(field, "label") == FieldDescriptor.LABEL_REPEATED
    return bool(repeated)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def list_of(message: Descriptor | None) -> FieldDescriptor | None:
    """The list of a message like TokenIds, which holds nothing else: in Python it is the list itself."""
    if message is None or len(message.fields) != 1 or not is_repeated(message.fields[0]):
        return None
    return message.fields[0]


def is_group(field: FieldDescriptor) -> bool:
    """Whether the fields of this message are options themselves, as those of Sampling are."""
    return field.message_type is not None and not is_repeated(field) and list_of(field.message_type) is None


def option_fields(request: Descriptor, left_out: tuple[str, ...] = ()) -> dict[str, tuple[FieldDescriptor, ...]]:
    """The options of a request by name: each is the path to a field. Names are unique over all groups."""
    options: dict[str, tuple[FieldDescriptor, ...]] = {}

    def add(message: Descriptor, path: tuple[FieldDescriptor, ...]) -> None:
        for field in message.fields:
            if not path and field.name in left_out:
                continue
            if field.message_type is not None and is_group(field):
                add(field.message_type, (*path, field))
                continue
            if field.name in options:
                raise ValueError(f"two fields have the name {field.name}")
            options[field.name] = (*path, field)

    add(request, ())
    return options


def word(value_name: str) -> str | None:
    """The word for an enum's value: "stop" for FINISH_REASON_STOP. None stands for "not set"."""
    last = value_name.rsplit("_", 1)[-1].lower()
    return None if last == "unspecified" else last


def words(enum: EnumDescriptor) -> list[str]:
    return [name for value in enum.values if (name := word(value.name)) is not None]
