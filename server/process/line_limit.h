// Bounds the log: what others can cause at will, as a refused credential or a failed handshake, gets one line in a time
// for each key, such as its address. That line says how many were left out before it. Thread-safe.
#ifndef BERTH_SERVER_PROCESS_LINE_LIMIT_H_
#define BERTH_SERVER_PROCESS_LINE_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/steady_clock.h"

namespace berth {

class LineLimit {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(10);  // between two lines of one key
    size_t max_keys = 10000;                      // that are remembered, the latest ones
    std::function<absl::Time()> now = SteadyNow;
  };

  LineLimit() : LineLimit(Options()) {}
  explicit LineLimit(Options options) : options_(std::move(options)) {}

  // What a line has to end with: "", or " unlogged_before=3". Nothing: the line is to be left out.
  std::optional<std::string> Admit(std::string key) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Key {
    std::string name;
    absl::Time last_line;
    int64_t unlogged = 0;  // since
  };

  const Options options_;
  Mutex mutex_;
  std::list<Key> keys_ ABSL_GUARDED_BY(mutex_);  // that of the earliest line first
  std::unordered_map<std::string, std::list<Key>::iterator> by_name_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_LINE_LIMIT_H_
