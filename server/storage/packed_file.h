// Where a model's packed matrices are kept from one start to the next (models/kernels/packed_weights.h). Reads the
// disk; thread-safe.
#ifndef BERTH_SERVER_STORAGE_PACKED_FILE_H_
#define BERTH_SERVER_STORAGE_PACKED_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/config.h"

namespace berth {

struct PackedFile {
  std::string path;      // "": nowhere
  std::string identity;  // 32 hexadecimal digits: of all that decides what the file has to hold
};

// As --packed_weights says: in the checkpoint's folder, in another, or nowhere. There is one file for each kind of
// weights and of processor. `capability`: of the kernels that pack. The identity is the checkpoint's fingerprint with
// its files' times, the settings, and the bytes of this program, which alone knows in what order it packs.
// FAILED_PRECONDITION naming what cannot be read.
absl::StatusOr<PackedFile> ChoosePackedFile(const Config& config, const std::string& capability);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_PACKED_FILE_H_
