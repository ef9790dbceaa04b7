// What a server said of itself, as text. Thread-safe: values in, text out.
#ifndef BERTH_CLIENT_STATUS_VIEW_H_
#define BERTH_CLIENT_STATUS_VIEW_H_

#include <cstdint>
#include <string>

#include "berth/v1/control.pb.h"

namespace berth::cli {

struct StatusView {
  std::string server;
  v1::GetModelInfoResponse model;
  v1::GetServerInfoResponse info;
  v1::GetLoadResponse load;
  std::string live;               // health of ""
  std::string ready;              // health of "readiness"
  double tokens_per_second = -1;  // generated since the last look; < 0: not known
};

// "1.5 GiB"
std::string FormatBytes(int64_t bytes);

// `width` characters for `total` bytes: '#' live, '-' held by the pool but not live, '.' the rest. What is not zero
// shows at least one character.
std::string DrawBar(int64_t live, int64_t held, int64_t total, int width);

// The whole screen.
std::string DrawStatus(const StatusView& view);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_STATUS_VIEW_H_
