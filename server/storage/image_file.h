// A cache image with a header, as one file with checksums, and back: the frame of session files and prefix files.
// Thread-compatible; what touches the disk blocks.
//
//   8 bytes  magic: what the header and the image are
//   u32      version of the header's form; another is refused
//   u32      0
//   u64      bytes of the header        (integers are little-endian)
//   u64      bytes of the image
//   16 bytes XXH3-128 of the header
//   header
//   image    the units of the CacheImage
//   16 bytes XXH3-128 of all before
#ifndef BERTH_SERVER_STORAGE_IMAGE_FILE_H_
#define BERTH_SERVER_STORAGE_IMAGE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/image.h"
#include "server/storage/content_hash.h"
#include "server/storage/disk_file.h"

namespace berth {

struct ImageFormat {
  absl::string_view magic;  // 8 bytes
  uint32_t version = 0;
  absl::string_view what;  // in messages: "session", "prefix"
};

// Bytes on the disk.
int64_t ImageFileBytes(int64_t header_bytes, int64_t image_bytes);

// Writes and syncs `path`. RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE for other failures; both name the cause,
// and leave no file.
absl::Status WriteImageFile(const std::string& path, const ImageFormat& format, absl::string_view header,
                            const CacheImage& image);

class ImageFile {
 public:
  // Opens `path`, reads its header and checks that. NOT_FOUND; FAILED_PRECONDITION: another version; DATA_LOSS: torn or
  // damaged; UNAVAILABLE: cannot be read; all name the reason.
  static absl::StatusOr<ImageFile> Open(const std::string& path, const ImageFormat& format);

  const std::string& header() const { return header_; }
  int64_t image_bytes() const { return image_bytes_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Gives `image`, which is laid out, its bytes, and checks all of the file. DATA_LOSS: damaged, or the image is not of
  // image_bytes(). To be called at most once.
  absl::Status ReadImage(CacheImage* image);
  // DATA_LOSS naming the file: what is in the header cannot be.
  absl::Status Torn(absl::string_view how) const;

 private:
  ImageFile(std::string path, absl::string_view what);

  std::string path_;
  absl::string_view what_;
  std::unique_ptr<File> file_;
  ContentHash hash_;  // of what was read
  std::string header_;
  int64_t image_bytes_ = 0;
  int64_t size_bytes_ = 0;
};

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_IMAGE_FILE_H_
