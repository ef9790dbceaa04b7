// The header of W3C Trace Context that says which trace a call belongs to. Thread-safe.
#ifndef BERTH_SERVER_REQUEST_TRACE_PARENT_H_
#define BERTH_SERVER_REQUEST_TRACE_PARENT_H_

#include "absl/strings/string_view.h"

namespace berth {

// The metadata key.
inline constexpr char kTraceParent[] = "traceparent";

// Whether `value` is a valid traceparent (https://www.w3.org/TR/trace-context/), such as
// 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01. These are a version other than ff, a trace id, a parent id
// and flags, in lower-case hex. Neither id is all zeros. Version 00 has no more. Later ones may, behind another dash.
bool IsTraceParent(absl::string_view value);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_TRACE_PARENT_H_
