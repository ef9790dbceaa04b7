// Where a model's packed matrices are kept from one start to the next (models/ops/matmul/packed_weights.h). Reads the
// disk; thread-safe.
#ifndef BERTH_SERVER_STORAGE_PACKED_FILE_H_
#define BERTH_SERVER_STORAGE_PACKED_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "models/load_options.h"

namespace berth {

struct PackedFile {
  std::string path;      // "": nowhere
  std::string identity;  // 32 hexadecimal digits that identify everything the file's contents depend on
};

// Chooses the file: `packed_weights` is auto (in the checkpoint's folder), none, or another folder. There is one file
// for each kind of weights and of processor. `capability`: the instruction set of the kernels that pack. The identity
// is a hash of the checkpoint and its files' times, the settings, and the bytes of this program, which alone decides
// the order in which it packs. FAILED_PRECONDITION naming the file that cannot be read.
absl::StatusOr<PackedFile> ChoosePackedFile(const LoadOptions& options, const std::string& packed_weights,
                                            const std::string& capability);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_PACKED_FILE_H_
