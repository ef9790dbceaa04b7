// A whole Server around a model without weights.
#ifndef BERTH_TESTS_SERVER_SEVEN_SERVER_H_
#define BERTH_TESTS_SERVER_SEVEN_SERVER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "server/auth/credentials.h"
#include "server/server.h"
#include "tests/server/delivery/fake_text_codec.h"
#include "tests/testing/tiny_cache.h"

namespace berth {

// Answers 7 to everything. Its steps can be held up, and fail.
class SevenRunner final : public ModelRunner {
 public:
  SevenRunner() {
    info_.name = "seven";
    info_.model_type = "fake";
    info_.vocab_size = 100;
    info_.device = "cpu";
  }
  const ModelInfo& info() const override { return info_; }
  absl::Status Run(const StepPlan& plan, StepResult* result) override {
    {
      MutexLock lock(&mutex_);
      ++num_begun_;
      while (!open_ && num_allowed_ == 0) changed_.Wait(&mutex_);
      if (!open_) --num_allowed_;
      if (!status_.ok()) return status_;
    }
    result->rows.assign(plan.rows.size(), RowResult{});
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      if (plan.rows[i].sample) result->rows[i].token = 7;
      if (plan.rows[i].num_pooled > 0) result->rows[i].pooled = {7};
    }
    return absl::OkStatus();
  }

  void SetOpen(bool open) {
    MutexLock lock(&mutex_);
    open_ = open;
    changed_.SignalAll();
  }
  // Lets one step run, although it is not open.
  void AllowStep() {
    MutexLock lock(&mutex_);
    ++num_allowed_;
    changed_.SignalAll();
  }
  // Steps that have come here.
  int64_t num_begun() const {
    MutexLock lock(&mutex_);
    return num_begun_;
  }
  void Fail(absl::Status status) {
    MutexLock lock(&mutex_);
    status_ = std::move(status);
  }

 private:
  ModelInfo info_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t num_allowed_ ABSL_GUARDED_BY(mutex_) = 0;  // steps
  int64_t num_begun_ ABSL_GUARDED_BY(mutex_) = 0;    // steps
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// What a Server is made of. It must outlive the server.
struct SevenParts {
  CachePlan plan = *BuildCachePlan({StaticLayer(), RecurrentLayer()}, 16);
  std::unique_ptr<ArenaStorage> storage = *CreateHostStorage(4 << 20);
  SevenRunner runner;
  FakeTextCodec text;
  GrammarCompiler::CompileFunction compile_grammar = GrammarCompiler::CompileNone;

  absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config) {
    return Server::Start(config, {.plan = plan,
                                  .max_sequence_tokens = 1000,
                                  .storage = storage.get(),
                                  .runner = &runner,
                                  .text = &text,
                                  .compile_grammar = compile_grammar,
                                  .libtorch_version = "2",
                                  .cpu_capability = "none",
                                  .model_fingerprint = "seven"});
  }
};

// The entry of a token in the tenants' file: "secret-of-" and its name. `more`: further fields, each after a comma.
inline std::string SecretToken(const std::string& name, const std::string& more = "") {
  const TokenHash hash = HashToken("secret-of-" + name);
  const absl::string_view bytes(reinterpret_cast<const char*>(hash.data()), hash.size());
  return absl::StrCat(R"({"name": ")", name, R"(", "sha256": ")", absl::BytesToHexString(bytes), "\"", more, "}");
}

// On free ports of loopback, without metrics.
inline Config SevenConfig() {
  Config config;
  config.model.model_dir = "/m";
  config.listen = {"127.0.0.1", 0};
  config.metrics_listen = std::nullopt;
  return config;
}

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_SEVEN_SERVER_H_
