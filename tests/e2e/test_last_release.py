"""Clients of the last release work with today's server: no field of berth.v1 changes, and recorded requests are answered.

Stored files of the last release are read by tests/server/storage/stored_files_test.cc.
"""

import copy
import json
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import release_api  # noqa: E402
from release_api import ROOT, STATE  # noqa: E402

with open(release_api.RECORDED, encoding="utf-8") as recorded:
    RECORDED = json.load(recorded)

# Names that have changed since; on the wire there are only numbers. Everything of a renamed message is looked for in
# the new one. The first is the only one that a client sees, in `berth-cli status --json` and the like.
RENAMED = {
    "GetLoadResponse.suspensions": "GetLoadResponse.swap_outs",
    "SessionFile.ImageGroup": "SessionFile.SnapshotGroup",
    "SessionFile.ImageGroup.left_blocks": "SessionFile.SnapshotGroup.expired_blocks",
    "SessionFile.image_tokens": "SessionFile.snapshot_tokens",
    "SessionFile.image_cross_tokens": "SessionFile.snapshot_cross_tokens",
    "SessionFile.image_groups": "SessionFile.snapshot_groups",
}
# For encoder-decoder models, which the demo is not.
NOT_RECORDED = {"GenerateRequest.decoder_token_ids", "GenerateRequest.forced_bos_token_id"}


def messages_of(files):
    """Every message by its name without the package."""

    def nested(message, prefix):
        name = prefix + message.name
        yield name, message
        for inner in message.nested_type:
            yield from nested(inner, f"{name}.")

    return dict(pair for file in files.file for message in file.message_type for pair in nested(message, ""))


def enums_of(files):
    enums = {enum.name: enum for file in files.file for enum in file.enum_type}
    for name, message in messages_of(files).items():
        enums.update({f"{name}.{enum.name}": enum for enum in message.enum_type})
    return enums


def methods_of(files):
    return {(service.name, method.name): (method.input_type, method.output_type, method.client_streaming,
                                          method.server_streaming)
            for file in files.file for service in file.service for method in service.method}


def shape_of(field, message, renamed):
    """What the wire and generated code depend on, apart from number and name."""
    kind = field.type_name.removeprefix(".berth.v1.")
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
    return field.type, field.label, renamed.get(kind, kind), oneof if not field.proto3_optional else "optional"


def reserved(message, number):
    return any(part.start <= number < part.end for part in message.reserved_range)


def broken_fields(before, after, renamed):
    """What a client of `before` would miss in `after`, or misread."""
    broken, now = [], messages_of(after)
    for name, message in messages_of(before).items():
        new_name = renamed.get(name, name)
        if new_name not in now:
            broken.append(f"{name} is gone")
            continue
        fields = {field.number: field for field in now[new_name].field}
        for field in message.field:
            full_name = f"{name}.{field.name}"
            if field.number not in fields:
                if not reserved(now[new_name], field.number):
                    broken.append(f"{full_name} is gone, and its number {field.number} is not reserved")
                continue
            new = fields[field.number]
            if f"{new_name}.{new.name}" != renamed.get(full_name, f"{new_name}.{field.name}"):
                broken.append(f"{full_name} has another name: {new.name}")
            if shape_of(new, now[new_name], {}) != shape_of(field, message, renamed):
                broken.append(f"{full_name} has another type")
    return broken


def broken_enums_and_methods(before, after):
    enums, methods = enums_of(after), methods_of(after)
    values = {name: {(value.name, value.number) for value in enum.value} for name, enum in enums.items()}
    broken = [f"{name}.{value.name} is gone or has another number" for name, enum in enums_of(before).items()
              for value in enum.value if (value.name, value.number) not in values.get(name, ())]
    return broken + [f"{name} is gone or has other messages" for name, types in methods_of(before).items()
                     if methods.get(name) != types]


BEFORE = release_api.descriptors(release_api.FOLDER)
AFTER = release_api.descriptors(os.path.join(ROOT, "proto"))


def test_no_field_is_changed_or_removed_unless_it_is_reserved():
    assert broken_fields(BEFORE, AFTER, RENAMED) == []


def test_every_name_that_has_changed_is_listed():
    for name in RENAMED:
        rest = {old: new for old, new in RENAMED.items() if old != name}
        assert broken_fields(BEFORE, AFTER, rest) != [], f"{name} is listed, and has not changed"


def test_no_method_or_value_is_changed():
    assert broken_enums_and_methods(BEFORE, AFTER) == []


def field_of(files, message, name):
    return next(field for field in messages_of(files)[message].field if field.name == name)


def plant(change):
    planted = copy.deepcopy(AFTER)
    change(planted)
    return broken_fields(BEFORE, planted, RENAMED) + broken_enums_and_methods(BEFORE, planted)


def test_planted_changes_are_found():
    def of_type(files):
        field_of(files, "Usage", "cached_tokens").type = 9

    def of_number(files):
        field_of(files, "Usage", "cached_tokens").number = 77

    def of_presence(files):
        field_of(files, "GenerateRequest", "n").proto3_optional = False

    def of_a_value(files):
        enums_of(files)["FinishReason"].value[1].number = 9

    def of_a_method(files):
        service = next(service for file in files.file for service in file.service if service.name == "Inference")
        service.method[0].server_streaming = False

    assert plant(of_type) == ["Usage.cached_tokens has another type"]
    assert plant(of_number) == ["Usage.cached_tokens is gone, and its number 3 is not reserved"]
    assert plant(of_presence) == ["GenerateRequest.n has another type"]
    assert plant(of_a_value) == ["FinishReason.FINISH_REASON_STOP is gone or has another number"]
    assert plant(of_a_method) == ["('Inference', 'Generate') is gone or has other messages"]
    assert plant(lambda files: None) == []


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Today's answers to the recorded bytes, in their order."""
    with release_api.serve(tmp_path_factory.mktemp("sessions")) as server:
        got = release_api.answers_of(server, [(entry["method"], bytes.fromhex(entry["request"])) for entry in RECORDED])
        server.wait_idle()
    return got


def near(value):
    """The value with a tolerance for its numbers: processors round differently."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if isinstance(value, dict):
        return {key: near(entry) for key, entry in value.items()}
    return [near(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("number", range(len(RECORDED)),
                         ids=[f"{number} {entry['method']}" for number, entry in enumerate(RECORDED)])
def test_a_recorded_request_is_answered_as_before(answers, number):
    entry = RECORDED[number]
    before = {key: value for key, value in entry.items() if key not in ("method", "request")}
    if entry["method"] in STATE:
        assert len(before["fields"]) > 3 and set(before["fields"]) <= set(answers[number]["fields"])
    else:
        assert answers[number] == near(before)


def test_the_recorded_bytes_are_those_of_the_releases_protos():
    assert [entry["method"] for entry in RECORDED] == [name for name, _ in release_api.REQUESTS]
    assert [entry["request"] for entry in RECORDED] == [release_api.encode(*request).hex()
                                                        for request in release_api.REQUESTS]


def names_set(message):
    """The fields that the message sets, of messages within it too."""
    for field, value in message.ListFields():
        yield f"{field.containing_type.name}.{field.name}"
        if field.message_type and not field.message_type.GetOptions().map_entry:
            for inner in value if field.label == field.LABEL_REPEATED else [value]:
                yield from names_set(inner)


def names_of(kind):
    for field in kind.fields:
        yield f"{kind.name}.{field.name}"
        if field.message_type and not field.message_type.GetOptions().map_entry:
            yield from names_of(field.message_type)


def test_the_recorded_requests_set_every_field():
    sent, known = set(), set()
    for entry in RECORDED:
        kind = release_api.method_of(entry["method"]).input_type
        request = release_api.message_factory.GetMessageClass(kind).FromString(bytes.fromhex(entry["request"]))
        sent |= set(names_set(request))
        known |= set(names_of(kind))
    assert known - sent == NOT_RECORDED
    assert {entry["method"] for entry in RECORDED} == {"/".join(name) for name in methods_of(BEFORE)}
