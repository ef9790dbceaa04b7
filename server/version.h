// Berth's version: --version, GetServerInfo, the metric build_info.
#ifndef BERTH_SERVER_VERSION_H_
#define BERTH_SERVER_VERSION_H_

namespace berth {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace berth

#endif  // BERTH_SERVER_VERSION_H_
