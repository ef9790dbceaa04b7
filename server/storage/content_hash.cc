#include "server/storage/content_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"

namespace berth {

// On the heap, by its own allocator: it asks for more alignment than a stack under AddressSanitizer has.
ContentHash::ContentHash() : state_(XXH3_createState()) {
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void ContentHash::Free::operator()(void* state) const { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }

void ContentHash::Add(const void* data, size_t size) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_.get()), data, size);
}

void ContentHash::AddText(absl::string_view text) {
  const uint64_t size = text.size();
  Add(&size, sizeof(size));
  Add(text.data(), text.size());
}

ContentHash::Digest ContentHash::digest() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(static_cast<XXH3_state_t*>(state_.get())));
  Digest digest;
  static_assert(sizeof(digest) == sizeof(canonical.digest));
  std::memcpy(digest.data(), canonical.digest, sizeof(digest));
  return digest;
}

std::string ContentHash::Hex() const {
  const Digest bytes = digest();
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

}  // namespace berth
