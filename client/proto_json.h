// Writes messages as JSON. Field names are those of the .proto, enums are written by name, and all numbers as numbers
// (the canonical mapping quotes 64-bit ones). Absent `optional`, oneof and message fields are left out; every other
// field is written. Thread-safe.
#ifndef BERTH_CLIENT_PROTO_JSON_H_
#define BERTH_CLIENT_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace berth::cli {

// REQUIRES: no map and no bytes field (berth.v1's responses have none).
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_PROTO_JSON_H_
