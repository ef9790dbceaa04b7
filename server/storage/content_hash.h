// A 128-bit hash of a content (XXH3), to tell it from another and from a damaged copy; not against forgers.
#ifndef BERTH_SERVER_STORAGE_CONTENT_HASH_H_
#define BERTH_SERVER_STORAGE_CONTENT_HASH_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace berth {

class ContentHash {
 public:
  using Digest = std::array<char, 16>;  // the same bytes on any machine

  ContentHash();
  void Add(const void* data, size_t size);
  // Adds the text and its length, so that adding "ab" and "c" differs from adding "a" and "bc".
  void AddText(absl::string_view text);
  // Returns the hash of all that was added so far.
  Digest digest() const;
  std::string Hex() const;

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;  // the library's own: its header renames what it declares
};

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_CONTENT_HASH_H_
