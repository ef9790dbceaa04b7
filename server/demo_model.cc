#include "server/demo_model.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth {

absl::StatusOr<std::string> FindDemoModel(const std::string& program) {
  namespace fs = std::filesystem;
  const fs::path installed = fs::path(program).parent_path().parent_path() / "share/berth/falcon_h1-demo";
  const fs::path built = fs::path(program + ".runfiles") / "berth/models/demo/falcon_h1-demo";
  for (const fs::path& folder : {installed, built}) {
    std::error_code error;
    if (fs::exists(folder / "config.json", error)) return folder.string();
  }
  return absl::FailedPreconditionError(absl::StrCat("--model: not set, and there is no demo model in ",
                                                    installed.string(), " or ", built.string(),
                                                    "; name the folder of a Hugging Face checkpoint"));
}

}  // namespace berth
