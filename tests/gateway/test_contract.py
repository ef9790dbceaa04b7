"""proto/vllm against the installed package smg-grpc-proto: every name, number, type and label of ours is the contract's."""

import os
import tempfile

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_tools import protoc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from gateway_server import ROOT

FILES = {"vllm/engine.proto": vllm_engine_pb2.DESCRIPTOR, "vllm/common.proto": common_pb2.DESCRIPTOR}


@pytest.fixture(scope="module")
def ours():
    """Our files by name, in a pool of their own."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "descriptors")
        paths = [os.path.join(ROOT, "proto", name) for name in FILES]
        assert protoc.main(["protoc", f"-I{ROOT}/proto", f"--descriptor_set_out={out}", "--include_imports", *paths]) == 0
        with open(out, "rb") as file:
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return {name: pool.FindFileByName(name) for name in FILES}


def shape(field):
    """All that the wire and a generated stub depend on."""
    oneof = field.containing_oneof
    return {"number": field.number, "type": field.type, "repeated": field.is_repeated, "presence": field.has_presence,
            "message": field.message_type.full_name if field.message_type else None,
            "enum": field.enum_type.full_name if field.enum_type else None,
            "oneof": oneof.name if oneof and not oneof.name.startswith("_") else None}


@pytest.mark.parametrize("name", FILES)
def test_messages_are_the_contracts(ours, name):
    theirs = FILES[name]
    assert ours[name].package == theirs.package
    fields = 0
    for message in ours[name].message_types_by_name.values():
        known = theirs.message_types_by_name[message.name]
        for field in message.fields:
            if not (field.message_type and field.message_type.GetOptions().map_entry):
                assert shape(field) == shape(known.fields_by_name[field.name]), field.full_name
            else:
                entry = known.fields_by_name[field.name].message_type
                assert field.number == known.fields_by_name[field.name].number
                assert [shape(part) for part in field.message_type.fields] == [shape(part) for part in entry.fields]
            fields += 1
    assert fields >= {"vllm/engine.proto": 95, "vllm/common.proto": 25}[name]


def test_methods_are_the_contracts(ours):
    service = ours["vllm/engine.proto"].services_by_name["VllmEngine"]
    known = FILES["vllm/engine.proto"].services_by_name["VllmEngine"]
    assert service.full_name == known.full_name
    for method in service.methods:
        theirs = known.methods_by_name[method.name]
        for name in ("input_type", "output_type"):
            assert getattr(method, name).full_name == getattr(theirs, name).full_name, method.name
        for name in ("client_streaming", "server_streaming"):
            assert getattr(method, name) == getattr(theirs, name), method.name
    assert len(service.methods) >= 9
