#include "server/vllm/embed_messages.h"

#include "server/request/field_checks.h"

namespace berth {

namespace engine = ::vllm::grpc::engine;

absl::StatusOr<v1::EmbedRequest> ToBerth(const engine::EmbedRequest& in, const ValidationContext& context) {
  if (!in.has_tokenized()) return Invalid("tokenized: not set; at least 1 token is needed");
  const auto& ids = in.tokenized().input_ids();
  // Before they become int32.
  if (absl::Status s = CheckTokens("tokenized.input_ids", ids, context.model->vocab_size); !s.ok()) return s;
  v1::EmbedRequest out;
  if (!in.request_id().empty()) out.set_request_id(in.request_id());
  out.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  out.set_pooling(v1::POOLING_LAST);
  out.set_normalize(true);
  return out;
}

engine::EmbedResponse EmbedResponseOf(const std::vector<float>& embedding, const v1::GenerateResponse& end) {
  engine::EmbedResponse out;
  out.mutable_embedding()->Add(embedding.begin(), embedding.end());
  out.set_embedding_dim(static_cast<uint32_t>(embedding.size()));
  out.set_prompt_tokens(end.usage().prompt_tokens());
  return out;
}

}  // namespace berth
