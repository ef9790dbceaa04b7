#include "client/load/report_page.h"

#include "absl/strings/str_replace.h"
#include "client/load/report_page_template.h"

namespace berth::cli {

std::string ReportPage(const nlohmann::ordered_json& report) {
  const std::string json = report.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  // A text of the server must not end the script that holds it.
  return absl::StrReplaceAll(kReportPageTemplate, {{"{{REPORT}}", absl::StrReplaceAll(json, {{"<", "\\u003c"}})}});
}

}  // namespace berth::cli
