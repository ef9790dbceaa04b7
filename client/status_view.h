// Formats what a server reports about itself as text. Pure functions; thread-safe.
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
  double tokens_per_second = -1;  // tokens generated since the last look; < 0: unknown
};

// Formats bytes with a binary unit, as in "1.5 GiB".
std::string FormatBytes(int64_t bytes);

// Draws `total` bytes as `width` characters: '#' for the first `live` bytes, '-' from there to `held`, '.' for the
// rest. A part of at least one byte has at least one character.
std::string DrawBar(int64_t live, int64_t held, int64_t total, int width);

// Formats the whole screen.
std::string DrawStatus(const StatusView& view);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_STATUS_VIEW_H_
