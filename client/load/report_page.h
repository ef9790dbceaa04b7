// The page of a load test's report: one HTML file without references to others. Functions; thread-safe.
#ifndef BERTH_CLIENT_LOAD_REPORT_PAGE_H_
#define BERTH_CLIENT_LOAD_REPORT_PAGE_H_

#include <nlohmann/json.hpp>
#include <string>

namespace berth::cli {

// The page that draws `report`: ReportJson's object, with PlotsJson's as "plots" and, after a capacity search,
// CapacityJson's as "capacity". The template is report_page.html.
std::string ReportPage(const nlohmann::ordered_json& report);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_REPORT_PAGE_H_
