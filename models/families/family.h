// The table of architectures: which code builds which model_type of config.json.
//
// To add a family:
//   1. write one .cc here that reads its configuration and builds a Model from models/layers/. It holds only what
//      differs, and honours or refuses every field that changes the computation;
//   2. add one line to the table of families.cc;
//   3. add one case to tools/parity/cases.py;
//   4. add a small configuration to tests/models/families/configs.json, and rows to tests/models/test_refusals.py;
//   5. run models/families/models_doc.py > docs/models.md.
// Code that two families share belongs in models/layers/. A multimodal model that wraps a text model is one more line
// of the table, with the text model's builder.
#ifndef BERTH_MODELS_FAMILIES_FAMILY_H_
#define BERTH_MODELS_FAMILIES_FAMILY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "models/checkpoint/json_config.h"
#include "models/checkpoint/weight_loader.h"
#include "models/layers/model.h"

namespace berth {

// Builds a model. Errors of configuration and weights stick to the reader and the loader; the caller checks both before
// it uses the model. A builder may return nullptr after an error.
using BuildModel = std::unique_ptr<Model> (*)(ConfigReader& config, WeightLoader& weights);

std::unique_ptr<Model> BuildBamba(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildCohere2(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildExaone4(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildFalconH1(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildFalconMamba(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildGemma2(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildGemma3(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildGptOss(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildLlama4(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildGemma3n(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildLfm2(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildLfm2Moe(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildGraniteHybrid(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildJamba(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildLlama(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildMamba(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildMamba2(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildMistral(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildMixtral(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildNemotronH(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildOlmo3(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildOlmoHybrid(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildPhi3(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildQwen2(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildQwen3(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildQwen3_5(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildQwen3_5Moe(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildQwen3Moe(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildQwen3Next(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildRecurrentGemma(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildSmolLm3(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildZamba(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildZamba2(ConfigReader& config, WeightLoader& weights);

std::unique_ptr<Model> BuildBart(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildM2m100(ConfigReader& config, WeightLoader& weights);
std::unique_ptr<Model> BuildT5(ConfigReader& config, WeightLoader& weights);

struct Family {
  absl::string_view model_type;
  BuildModel build;
  absl::string_view cache_kinds;  // for people: "static, recurrent"
  // A multimodal model whose head is beside its text model: tie_word_embeddings is then outside text_config.
  bool head_is_outside = false;
  // The one quantization_config.quant_method that its weights may be stored by; "": none.
  absl::string_view quantization = "";
  // What the names of the model without its head begin with: transformers' base_model_prefix. "": "model.".
  absl::string_view base_prefix = "";
};

// Ascending by model_type.
absl::Span<const Family> Families();

// INVALID_ARGUMENT listing the known types when there is none.
absl::StatusOr<const Family*> FindFamily(absl::string_view model_type);

}  // namespace berth

#endif  // BERTH_MODELS_FAMILIES_FAMILY_H_
