// Messages as JSON: field names as in the .proto, numbers as numbers (the canonical mapping would quote 64-bit ones),
// enums by name; absent `optional`, oneof and message fields are left out, every other field is written. Thread-safe.
#ifndef BERTH_CLIENT_PROTO_JSON_H_
#define BERTH_CLIENT_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace berth::cli {

// REQUIRES: no map and no bytes field (berth.v1's responses have none).
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_PROTO_JSON_H_
