"""Refusals as a client sees them: google.rpc details that its own library reads."""

import os

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.rpc import error_details_pb2, status_pb2
from grpc_tools import protoc

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The messages of proto/google/rpc by name, in a pool of their own."""
    path = str(tmp_path_factory.mktemp("descriptors") / "set.bin")
    include = os.path.join(os.path.dirname(protoc.__file__), "_proto")
    files = [os.path.join(ROOT, "proto/google/rpc", name) for name in ("status.proto", "error_details.proto")]
    assert protoc.main(["protoc", f"-I{ROOT}/proto", f"-I{include}", "--include_imports",
                        f"--descriptor_set_out={path}", *files]) == 0
    with open(path, "rb") as file:
        descriptors = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)
    return {name: pool.FindMessageTypeByName(name)
            for name in ("google.rpc.Status", "google.rpc.ErrorInfo", "google.rpc.RetryInfo")}


def fields(message):
    """What the wire sees: number, name, type and label of each field, and the same of messages inside."""
    def inner(field):
        return fields(field.message_type) if field.message_type and field.message_type.GetOptions().map_entry else (
            field.message_type.full_name if field.message_type else None)
    return sorted((f.number, f.name, f.json_name, f.type, f.label, inner(f)) for f in message.fields)


@pytest.mark.parametrize("theirs", [status_pb2.Status, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo],
                         ids=lambda message: message.DESCRIPTOR.full_name)
def test_our_protos_are_those_of_google(ours, theirs):
    assert fields(ours[theirs.DESCRIPTOR.full_name]) == fields(theirs.DESCRIPTOR)
