#include "server/storage/session_file.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/storage/image_file.h"

namespace berth {
namespace {

// The version of SessionFile.
constexpr ImageFormat kFormat = {.magic = "BERTHSES", .version = 2, .what = "session"};

template <typename Ids>
std::vector<int32_t> ToVector(const Ids& ids) {
  return std::vector<int32_t>(ids.begin(), ids.end());
}

v1::Sampling ToProto(const SamplingParams& sampling) {
  v1::Sampling out;
  out.set_temperature(sampling.temperature);
  out.set_top_k(static_cast<uint32_t>(sampling.top_k));
  out.set_top_p(sampling.top_p);
  out.set_min_p(sampling.min_p);
  out.set_repetition_penalty(sampling.repetition_penalty);
  out.set_presence_penalty(sampling.presence_penalty);
  out.set_frequency_penalty(sampling.frequency_penalty);
  for (const auto& [token, bias] : sampling.logit_bias) (*out.mutable_logit_bias())[token] = bias;
  out.set_seed(sampling.seed);
  return out;
}

SamplingParams FromProto(const v1::Sampling& sampling) {
  SamplingParams out;
  out.temperature = sampling.temperature();
  out.top_k = static_cast<int32_t>(sampling.top_k());
  out.top_p = sampling.top_p();
  out.min_p = sampling.min_p();
  out.repetition_penalty = sampling.repetition_penalty();
  out.presence_penalty = sampling.presence_penalty();
  out.frequency_penalty = sampling.frequency_penalty();
  out.logit_bias.assign(sampling.logit_bias().begin(), sampling.logit_bias().end());
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  out.seed = sampling.seed();
  return out;
}

FinishReason FromProto(v1::FinishReason reason) {
  if (reason == v1::FINISH_REASON_STOP) return FinishReason::kStop;
  return reason == v1::FINISH_REASON_LENGTH ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace

v1::SessionFile MakeSessionFile(const ValidatedRequest& valid, absl::string_view session_id, absl::string_view model) {
  const Request& request = valid.request;
  v1::SessionFile file;
  file.set_session_id(std::string(session_id));
  file.set_tenant(request.cache_salt);
  file.set_model(std::string(model));
  file.mutable_prompt()->Add(request.prompt.begin(), request.prompt.end());
  file.mutable_encoder_tokens()->Add(request.encoder_tokens.begin(), request.encoder_tokens.end());
  *file.mutable_sampling() = ToProto(request.sampling);
  file.set_num_logprobs(request.sampling.num_logprobs);
  v1::Stopping& stopping = *file.mutable_stopping();
  stopping.set_max_tokens(static_cast<uint32_t>(request.max_tokens));
  stopping.set_min_tokens(static_cast<uint32_t>(request.min_tokens));
  stopping.mutable_stop_token_ids()->Add(request.stop_token_ids.begin(), request.stop_token_ids.end());
  stopping.set_include_stop(valid.output.text.include_stop);
  for (const std::string& stop : valid.output.text.stop) stopping.add_stop(stop);
  file.mutable_forced_first()->Add(request.forced_first.begin(), request.forced_first.end());
  file.mutable_forced_last()->Add(request.forced_last.begin(), request.forced_last.end());
  file.set_share_prefix(request.share_prefix);
  file.set_autosave_tokens(request.autosave_tokens);
  file.set_skip_special_tokens(valid.output.text.skip_special_tokens);
  file.mutable_text_context()->Add(valid.output.text.context.begin(), valid.output.text.context.end());
  file.set_return_prompt_token_ids(valid.output.return_prompt_token_ids);
  file.set_stop_token(-1);
  return file;
}

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
  file->set_image_tokens(progress.image.num_tokens);
  file->set_image_cross_tokens(progress.image.num_cross_tokens);
  file->clear_image_groups();
  for (const CacheImage::Group& group : progress.image.groups) {
    v1::SessionFile::ImageGroup* out = file->add_image_groups();
    out->set_left_blocks(group.left_blocks);
    out->set_num_units(group.num_units);
    out->set_unit_bytes(group.unit_bytes);
  }
}

ValidatedRequest ResumedRequest(const v1::SessionFile& file, CacheImage image) {
  ValidatedRequest valid;
  valid.session_id = file.session_id();
  Request& request = valid.request;
  request.prompt = ToVector(file.prompt());
  request.encoder_tokens = ToVector(file.encoder_tokens());
  request.sampling = FromProto(file.sampling());
  request.sampling.num_logprobs = file.num_logprobs();
  request.max_tokens = file.stopping().max_tokens();
  request.min_tokens = file.stopping().min_tokens();
  request.stop_token_ids = ToVector(file.stopping().stop_token_ids());
  request.forced_first = ToVector(file.forced_first());
  request.forced_last = ToVector(file.forced_last());
  request.share_prefix = file.share_prefix();
  request.cache_salt = file.tenant();
  request.saved = true;
  request.autosave_tokens = file.autosave_tokens();
  valid.output.text.skip_special_tokens = file.skip_special_tokens();
  valid.output.text.stop.assign(file.stopping().stop().begin(), file.stopping().stop().end());
  valid.output.text.include_stop = file.stopping().include_stop();
  valid.output.text.context = ToVector(file.text_context());
  valid.output.logprobs = file.num_logprobs() >= 0;
  valid.output.return_prompt_token_ids = file.return_prompt_token_ids();
  request.progress = std::make_shared<Progress>();
  Progress& progress = *request.progress;
  progress.tokens = ToVector(file.output());
  for (const v1::TokenLogprobs& in : file.output_logprobs()) {
    OutputLogprobs& out = progress.logprobs.emplace_back();
    out.logprob = in.logprob();
    for (const v1::TopLogprob& top : in.top()) out.top.push_back({.token = top.token_id(), .logprob = top.logprob()});
  }
  progress.finish = FromProto(file.finish());
  progress.stop_token = file.stop_token();
  progress.image = std::move(image);
  return valid;
}

int64_t SessionFileBytes(const v1::SessionFile& file, const CacheImage& image) {
  return ImageFileBytes(static_cast<int64_t>(file.ByteSizeLong()), image.size_bytes);
}

absl::Status WriteSessionFile(const std::string& path, const v1::SessionFile& file, const CacheImage& image) {
  return WriteImageFile(path, kFormat, file.SerializeAsString(), image);
}

absl::StatusOr<SessionFileContent> ReadSessionFile(const std::string& path, bool with_image) {
  absl::StatusOr<ImageFile> in = ImageFile::Open(path, kFormat);
  if (!in.ok()) return in.status();
  SessionFileContent content;
  content.size_bytes = in->size_bytes();
  if (!content.file.ParseFromString(in->header())) return in->Torn("its header is not a session's");
  if (!with_image) return content;
  CacheImage& image = content.image;
  image.num_tokens = content.file.image_tokens();
  image.num_cross_tokens = content.file.image_cross_tokens();
  for (const v1::SessionFile::ImageGroup& group : content.file.image_groups()) {
    image.groups.push_back(
        {.left_blocks = group.left_blocks(), .num_units = group.num_units(), .unit_bytes = group.unit_bytes()});
  }
  image.size_bytes = in->image_bytes();
  if (absl::Status status = in->ReadImage(&image); !status.ok()) return status;
  return content;
}

}  // namespace berth
