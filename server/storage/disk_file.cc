#include "server/storage/disk_file.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace berth {

File::File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

bool File::Write(const void* data, size_t size) const {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t written = write(fd_, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

bool File::Read(void* data, size_t size) const {
  for (char* at = static_cast<char*>(data); size > 0;) {
    const ssize_t got = read(fd_, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

absl::Status MakePrivateFolder(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (error) return absl::FailedPreconditionError(error.message());
  const std::filesystem::path parents = (path.has_filename() ? path : path.parent_path()).parent_path();
  // Not create_directories: with a umask of 0 everybody could then replace the folder.
  std::filesystem::path parent;
  for (const std::filesystem::path& part : parents) {
    parent /= part;
    if (mkdir(parent.c_str(), 0755) != 0 && errno != EEXIST) return absl::FailedPreconditionError(std::strerror(errno));
  }
  if (mkdir(folder.c_str(), 0700) == 0) return absl::OkStatus();
  struct stat there = {};
  if (errno != EEXIST || stat(folder.c_str(), &there) != 0) return absl::FailedPreconditionError(std::strerror(errno));
  if (!S_ISDIR(there.st_mode)) return absl::FailedPreconditionError(std::strerror(ENOTDIR));
  if ((there.st_mode & 0077) != 0) {
    spdlog::warn("{}: others than the owner may use the folder; chmod 700 keeps them out", folder);
  }
  return absl::OkStatus();
}

absl::Status DiskError(absl::string_view what, const std::string& path) {
  const int cause = errno;
  const std::string message = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(cause));
  if (cause == ENOSPC || cause == EDQUOT || cause == EFBIG) return absl::ResourceExhaustedError(message);
  if (cause == ENOENT) return absl::NotFoundError(message);
  return absl::UnavailableError(message);
}

absl::Status RenameOnDisk(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return SyncFolder(to.substr(0, to.rfind('/')));
  const std::string cause = std::strerror(errno);
  unlink(from.c_str());
  return absl::UnavailableError(absl::StrCat("cannot rename ", from, ": ", cause));
}

absl::Status SyncFolder(const std::string& folder) {
  const File in(folder, O_RDONLY | O_DIRECTORY);
  if (in.fd() >= 0 && fsync(in.fd()) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot sync ", folder, ": ", std::strerror(errno)));
}

}  // namespace berth
