#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/families/family.h"

namespace berth {
namespace {

constexpr Family kFamilies[] = {
    {"bamba", BuildBamba, "static, recurrent"},
    {"bart", BuildBart, "static and cross"},
    {"cohere2", BuildCohere2, "sliding, static"},
    {"exaone4", BuildExaone4, "sliding, static"},
    {"falcon_h1", BuildFalconH1, "static and recurrent in every layer"},
    {"falcon_mamba", BuildFalconMamba, "recurrent", false, "", /*base_prefix=*/"backbone."},
    {"gemma2", BuildGemma2, "sliding, static"},
    {"gemma3", BuildGemma3, "sliding, static", /*head_is_outside=*/true},
    {"gemma3_text", BuildGemma3, "sliding, static"},
    {"gemma3n", BuildGemma3n, "sliding, static", /*head_is_outside=*/true},
    {"gemma3n_text", BuildGemma3n, "sliding, static"},
    {"gpt_oss", BuildGptOss, "sliding, static", /*head_is_outside=*/false, /*quantization=*/"mxfp4"},
    {"granitemoehybrid", BuildGraniteHybrid, "static, recurrent"},
    {"jamba", BuildJamba, "static, recurrent"},
    {"lfm2", BuildLfm2, "static, recurrent (convolutions)"},
    {"lfm2_moe", BuildLfm2Moe, "static, recurrent (convolutions)"},
    {"llama", BuildLlama, "static"},
    {"llama4", BuildLlama4, "chunked, static"},
    {"llama4_text", BuildLlama4, "chunked, static"},
    {"m2m_100", BuildM2m100, "static and cross"},
    {"mamba", BuildMamba, "recurrent", false, "", /*base_prefix=*/"backbone."},
    {"mamba2", BuildMamba2, "recurrent", false, "", /*base_prefix=*/"backbone."},
    {"ministral", BuildMistral, "static, sliding where configured"},
    {"mistral", BuildMistral, "sliding, or static without a window"},
    {"mixtral", BuildMixtral, "static, sliding where configured"},
    {"nemotron_h", BuildNemotronH, "static, recurrent, none"},
    {"olmo3", BuildOlmo3, "sliding, static"},
    {"olmo_hybrid", BuildOlmoHybrid, "static, recurrent"},
    {"phi3", BuildPhi3, "static, sliding where configured"},
    {"qwen2", BuildQwen2, "static, sliding where configured"},
    {"qwen3", BuildQwen3, "static, sliding where configured"},
    {"qwen3_5", BuildQwen3_5, "static, recurrent", /*head_is_outside=*/true},
    {"qwen3_5_moe", BuildQwen3_5Moe, "static, recurrent", /*head_is_outside=*/true},
    {"qwen3_5_moe_text", BuildQwen3_5Moe, "static, recurrent"},
    {"qwen3_5_text", BuildQwen3_5, "static, recurrent"},
    {"qwen3_moe", BuildQwen3Moe, "static, sliding where configured"},
    {"qwen3_next", BuildQwen3Next, "static, recurrent"},
    {"recurrent_gemma", BuildRecurrentGemma, "sliding, recurrent"},
    {"smollm3", BuildSmolLm3, "static, sliding where configured"},
    {"t5", BuildT5, "static and cross", false, "", /*base_prefix=*/"transformer."},
    {"zamba", BuildZamba, "recurrent, and static in some layers"},
    {"zamba2", BuildZamba2, "recurrent, and static in some layers"},
};

}  // namespace

absl::Span<const Family> Families() { return kFamilies; }

absl::StatusOr<const Family*> FindFamily(absl::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "config.json: model_type: \"", model_type, "\" is not known; known are ",
      absl::StrJoin(kFamilies, ", ", [](std::string* out, const Family& f) { absl::StrAppend(out, f.model_type); })));
}

}  // namespace berth
