#include "server/storage/session_file.h"

#include <utility>

#include "server/storage/snapshot_file.h"

namespace berth {
namespace {

// The version of SessionFile.
constexpr SnapshotFormat kFormat = {.magic = "BERTHSES", .version = 3, .oldest_version = 3, .what = "session"};

FinishReason FromProto(v1::FinishReason reason) {
  if (reason == v1::FINISH_REASON_STOP) return FinishReason::kStop;
  return reason == v1::FINISH_REASON_LENGTH ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace

void SetProgress(const Progress& progress, v1::SessionFile* file) {
  file->mutable_output()->Assign(progress.tokens.begin(), progress.tokens.end());
  file->clear_output_logprobs();
  for (size_t i = 0; i < progress.logprobs.size(); ++i) {
    v1::TokenLogprobs* out = file->add_output_logprobs();
    out->set_token_id(progress.tokens[i]);
    out->set_logprob(progress.logprobs[i].logprob);
    for (const TokenLogprob& likely : progress.logprobs[i].top) {
      v1::TopLogprob* top = out->add_top();
      top->set_token_id(likely.token);
      top->set_logprob(likely.logprob);
    }
  }
  file->set_finish(progress.finish == FinishReason::kStop     ? v1::FINISH_REASON_STOP
                   : progress.finish == FinishReason::kLength ? v1::FINISH_REASON_LENGTH
                                                              : v1::FINISH_REASON_UNSPECIFIED);
  file->set_stop_token(progress.stop_token);
  file->set_snapshot_tokens(progress.snapshot.num_tokens);
  file->set_snapshot_cross_tokens(progress.snapshot.num_cross_tokens);
  file->clear_snapshot_groups();
  for (const CacheSnapshot::Group& group : progress.snapshot.groups) {
    v1::SessionFile::SnapshotGroup* out = file->add_snapshot_groups();
    out->set_expired_blocks(group.expired_blocks);
    out->set_num_units(group.num_units);
    out->set_unit_bytes(group.unit_bytes);
  }
}

Progress ReadProgress(const v1::SessionFile& file) {
  Progress progress;
  progress.tokens.assign(file.output().begin(), file.output().end());
  for (const v1::TokenLogprobs& in : file.output_logprobs()) {
    OutputLogprobs& out = progress.logprobs.emplace_back();
    out.logprob = in.logprob();
    for (const v1::TopLogprob& top : in.top()) out.top.push_back({.token = top.token_id(), .logprob = top.logprob()});
  }
  progress.finish = FromProto(file.finish());
  progress.stop_token = file.stop_token();
  return progress;
}

int64_t SessionFileBytes(const v1::SessionFile& file, const CacheSnapshot& snapshot) {
  return SnapshotFileBytes(static_cast<int64_t>(file.ByteSizeLong()), snapshot.size_bytes);
}

absl::Status WriteSessionFile(const std::string& path, const v1::SessionFile& file, const CacheSnapshot& snapshot) {
  return WriteSnapshotFile(path, kFormat, file.SerializeAsString(), snapshot);
}

absl::StatusOr<SessionFileContent> ReadSessionFile(const std::string& path, bool with_snapshot) {
  absl::StatusOr<SnapshotFile> in = SnapshotFile::Open(path, kFormat);
  if (!in.ok()) return in.status();
  SessionFileContent content;
  content.size_bytes = in->size_bytes();
  if (!content.file.ParseFromString(in->header())) return in->Torn("its header is not that of a session");
  if (!with_snapshot) return content;
  CacheSnapshot& snapshot = content.snapshot;
  snapshot.num_tokens = content.file.snapshot_tokens();
  snapshot.num_cross_tokens = content.file.snapshot_cross_tokens();
  for (const v1::SessionFile::SnapshotGroup& group : content.file.snapshot_groups()) {
    snapshot.groups.push_back(
        {.expired_blocks = group.expired_blocks(), .num_units = group.num_units(), .unit_bytes = group.unit_bytes()});
  }
  snapshot.size_bytes = in->snapshot_bytes();
  if (absl::Status status = in->ReadSnapshot(&snapshot); !status.ok()) return status;
  return content;
}

}  // namespace berth
