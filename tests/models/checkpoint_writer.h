// Writes a checkpoint of one safetensors file, for tests of what loads it. Thread-compatible.
#ifndef BERTH_TESTS_MODELS_CHECKPOINT_WRITER_H_
#define BERTH_TESTS_MODELS_CHECKPOINT_WRITER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace berth {

class CheckpointWriter {
 public:
  // `dtype`: of `values`, in the file's words.
  void Add(const std::string& name, const char* dtype, const std::vector<int64_t>& shape, const at::Tensor& values) {
    const at::Tensor dense = values.contiguous();
    const size_t begin = data_.size();
    data_.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
    entries_.push_back(absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", absl::StrJoin(shape, ","),
                                    "],\"data_offsets\":[", begin, ",", data_.size(), "]}"));
  }

  // In place of the folder `dir`. `padding` spaces after the header decide how the data is aligned.
  void Write(const std::filesystem::path& dir, size_t padding = 0) const {
    std::string header = absl::StrCat("{", absl::StrJoin(entries_, ","), "}");
    while (header.size() % 8 != 0) header.push_back(' ');
    header.append(padding, ' ');
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    std::ofstream file(dir / "model.safetensors", std::ios::binary);
    const uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << header << data_;
  }

 private:
  std::string data_;
  std::vector<std::string> entries_;
};

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_CHECKPOINT_WRITER_H_
