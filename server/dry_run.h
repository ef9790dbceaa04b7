// The dry run: says what a model would take on this machine, before anything loads it (--dry_run).
#ifndef BERTH_SERVER_DRY_RUN_H_
#define BERTH_SERVER_DRY_RUN_H_

#include <ostream>

#include "absl/status/status.h"
#include "server/config.h"

namespace berth {

// Prints lines about the model, its weights, its cache and the arena that a start would choose. The sizes come from the
// code of a start: the family builds the model without its matrices. Float32 matrices are read, because they may be
// kept as bfloat16. Returns the errors of a start, such as RESOURCE_EXHAUSTED where the cache does not fit.
absl::Status DryRun(Config config, std::ostream& out);

}  // namespace berth

#endif  // BERTH_SERVER_DRY_RUN_H_
