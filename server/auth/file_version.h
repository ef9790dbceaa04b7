// Tells whether a file has changed since it was looked at: by its inode and times, through symbolic links. Kubernetes
// replaces mounted files by such a link, so watching one inode would miss it. Thread-compatible.
#ifndef BERTH_SERVER_AUTH_FILE_VERSION_H_
#define BERTH_SERVER_AUTH_FILE_VERSION_H_

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace berth {

struct FileVersion {
  // All zero: there is no file.
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size_bytes = 0;
  int64_t modified_nanos = 0;  // of the contents
  int64_t changed_nanos = 0;   // of contents, owner or name

  static FileVersion Of(const std::string& path) {
    struct stat info = {};
    if (::stat(path.c_str(), &info) != 0) return {};
    return {.device = info.st_dev,
            .inode = info.st_ino,
            .size_bytes = info.st_size,
            .modified_nanos = Nanos(info.st_mtim),
            .changed_nanos = Nanos(info.st_ctim)};
  }
  friend bool operator==(const FileVersion&, const FileVersion&) = default;

 private:
  static int64_t Nanos(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }
};

}  // namespace berth

#endif  // BERTH_SERVER_AUTH_FILE_VERSION_H_
