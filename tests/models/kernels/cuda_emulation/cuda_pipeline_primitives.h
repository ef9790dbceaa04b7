// Stands in for CUDA's header of this name: asynchronous copies from global to shared memory (cp.async of the PTX ISA).
// A thread sees its copies after it waits for them. Other threads see them after a barrier that follows. Until then the
// bytes may be the old or the new ones, and any use of them ends the program.
#ifndef BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_PIPELINE_PRIMITIVES_H_
#define BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_PIPELINE_PRIMITIVES_H_

#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"

inline void __pipeline_memcpy_async(void* to_shared, const void* from_global, size_t size_bytes, size_t zeros = 0) {
  cuda_emulation::CopyLater(to_shared, from_global, size_bytes, zeros);
}
inline void __pipeline_commit() { cuda_emulation::CommitCopies(); }
inline void __pipeline_wait_prior(size_t groups_left) { cuda_emulation::WaitForCopies(groups_left); }

#endif  // BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_PIPELINE_PRIMITIVES_H_
