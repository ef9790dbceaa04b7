// The fields of transformers' GenerationConfig, each once, and how Berth holds it. What is read of
// generation_config.json, the warnings at load, and the table of docs/checkpoint-files.md follow from this.
//
// To add a field that transformers has got:
//   1. Add a row to kFields in generation_fields.cc. models/checkpoint_files_doc.py reads the rows: run `./dev docs`.
//   2. If Berth does what the field says, read it in generation_config.cc.
//   3. Add a case to tests/e2e/test_generation_config.py, which fails until then.
#ifndef BERTH_MODELS_CHECKPOINT_GENERATION_FIELDS_H_
#define BERTH_MODELS_CHECKPOINT_GENERATION_FIELDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/checkpoint/json_config.h"

namespace berth {

enum class FieldUse {
  kDefault,   // the default of a request's field
  kAlways,    // holds for every request
  kNoEffect,  // changes no token: how transformers computes, or what else it returns
  kWarned,    // not done, as a warning at load says
  kRefused,   // not done; it would change greedy tokens, so the checkpoint is refused
};

struct GenerationField {
  absl::string_view name;
  FieldUse use;
  // What a value in the file changes nothing by, as JSON: with it, nothing is warned of or refused. null always is one.
  absl::string_view neutral;
  // kDefault: the field of a request. kNoEffect: why. Else what the field does in transformers.
  absl::string_view note;
};

// FAILED_PRECONDITION naming file, field and value, if a field of kRefused has a value that is not neutral.
absl::Status RefuseGenerationFields(const JsonConfig& file);

// At most one line for all fields of kWarned, and one for the fields that are in no row, if `names_unknown`.
std::vector<std::string> GenerationFieldWarnings(const JsonConfig& file, bool names_unknown);

}  // namespace berth

#endif  // BERTH_MODELS_CHECKPOINT_GENERATION_FIELDS_H_
