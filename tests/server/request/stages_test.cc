// A request that goes no further gives back all that it has taken, at every stage.
#include "server/request/stages.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "server/storage/session_store.h"
#include "tests/server/delivery/fake_text_codec.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

class NoWriter final : public OutputWriter {
 public:
  void Write(const v1::GenerateResponse*) override {}
  void End(v1::GenerateResponse*, const absl::Status&) override {}
};

// Holds the request's ticket, as the intake does.
class FakeOwner final : public OutputOwner {
 public:
  explicit FakeOwner(Ticket ticket) : ticket_(std::move(ticket)) {}
  void Cancel(RequestKey, FinishReason) override {}
  void CancelOutput(RequestKey, int32_t, FinishReason) override {}
  void SetPaused(RequestKey, bool) override {}
  void OnFirstToken(const RequestTimes&) override {}
  void OnInterToken(absl::Duration) override {}
  void OnEnded(const EndedRequest&) override {}

 private:
  const Ticket ticket_;
};

class StagesTest : public ::testing::Test {
 protected:
  StagesTest() {
    auto sessions = SessionStore::Open(
        {.folder = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name(),
         .limit_bytes = 1 << 20,
         .model = "fake"});
    EXPECT_TRUE(sessions.ok()) << sessions.status();
    sessions_ = *std::move(sessions);
    Engine::Options options;
    options.max_queue = 1;
    options.scheduler.max_sequence_tokens = 100;
    options.scheduler.save_sink = sessions_.get();
    auto engine = Engine::Create(cache_.cache.get(), &runner_, &dispatcher_, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    desk_ = {.engine = engine_.get(),
             .admission = &admission_,
             .dispatcher = &dispatcher_,
             .registry = &registry_,
             .sessions = sessions_.get()};
  }
  void TearDown() override { ExpectNothingHeld(); }

  void ExpectNothingHeld() {
    Admission::Totals held = admission_.totals();
    held.accounts = 0;
    EXPECT_EQ(held, Admission::Totals());
    EXPECT_EQ(registry_.size(), 0);
    EXPECT_TRUE(sessions_->Begin(1000, Header()).ok()) << "the session is held";
    sessions_->Withdraw(1000);
  }

  static v1::SessionFile Header() {
    v1::SessionFile header;
    header.set_model("fake");
    header.mutable_request()->set_session_id("session");
    return header;
  }
  // A request of 3 tokens, with an id and a session.
  static ValidatedRequest Valid() {
    ValidatedRequest valid;
    valid.request_id = "id";
    valid.session_id = "session";
    valid.request.prompt = {1, 2, 3};
    valid.request.max_tokens = 4;
    valid.request.saved = true;
    valid.session_request.emplace().set_session_id("session");
    return valid;
  }

  absl::StatusOr<Registered> RegisterOne(ValidatedRequest valid = Valid()) {
    absl::StatusOr<Admitted> admitted = Admit(desk_, call_, {.field = "cache_salt"});
    if (!admitted.ok()) return admitted.status();
    const MakeOutput make_output = [this](ValidatedRequest* made, const std::string& id_space, const Ticket& ticket) {
      RequestOutput::Options options;
      options.key = made->request.key;
      options.request_id = made->request_id;
      options.id_space = id_space;
      options.undelivered = registry_.undelivered();
      options.owner = std::make_shared<FakeOwner>(ticket);
      return std::make_shared<RequestOutput>(std::move(options), &codec_, &writer_);
    };
    return Register(desk_, call_, {*std::move(admitted), std::move(valid)}, make_output);
  }

  FakeTextCodec codec_;
  NoWriter writer_;
  TinyCache cache_{{StaticLayer()}, 64};
  FakeModelRunner runner_{cache_.cache.get()};
  std::shared_ptr<const Tenants> tenants_ = std::make_shared<const Tenants>();
  Admission admission_{Admission::Options{.tenants = [this] { return tenants_; }}};
  OutputDispatcher dispatcher_{OutputDispatcher::Options{}};
  RequestRegistry registry_;
  std::unique_ptr<SessionStore> sessions_;
  std::unique_ptr<Engine> engine_;  // not started
  Desk desk_;
  CallInfo call_;
};

TEST_F(StagesTest, AnAdmittedRequestGivesBackItsPlace) {
  {
    const absl::StatusOr<Admitted> admitted = Admit(desk_, call_, {.field = "cache_salt", .tenant = "a"});
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    EXPECT_EQ(admission_.totals().requests, 1);
  }
  ExpectNothingHeld();
}

TEST_F(StagesTest, ARequestThatTheQueueHasNoRoomForHasNoPlace) {
  Request first;
  first.key = 1;
  first.prompt = {1};
  first.max_tokens = 1;
  ASSERT_TRUE(engine_->Submit(std::move(first)).ok());
  EXPECT_EQ(Admit(desk_, call_, {}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(StagesTest, ARegisteredRequestGivesBackAllItHolds) {
  {
    const absl::StatusOr<Registered> registered = RegisterOne();
    ASSERT_TRUE(registered.ok()) << registered.status();
    EXPECT_EQ(admission_.totals().queued_tokens, 3);
    EXPECT_EQ(registry_.size(), 1);
    EXPECT_FALSE(sessions_->Begin(1000, Header()).ok());
  }
  ExpectNothingHeld();
  EXPECT_TRUE(RegisterOne().ok());  // once more, with the same id and session
}

TEST_F(StagesTest, ARequestWhoseSessionRunsHoldsNothing) {
  ASSERT_TRUE(sessions_->Begin(1, Header()).ok());
  EXPECT_EQ(RegisterOne().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(admission_.totals().requests, 0);
  EXPECT_EQ(registry_.size(), 0);
  sessions_->Withdraw(1);
}

TEST_F(StagesTest, ARequestWhoseIdRunsGivesBackItsSession) {
  ValidatedRequest other = Valid();
  other.request.saved = false;
  const absl::StatusOr<Registered> running = RegisterOne(std::move(other));
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_EQ(RegisterOne().status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(admission_.totals().requests, 1);
  EXPECT_TRUE(sessions_->Begin(1000, Header()).ok());
  sessions_->Withdraw(1000);
}

TEST_F(StagesTest, ARequestThatCostsTooMuchHoldsNothing) {
  auto tenants = Tenants::Parse(R"({"default": {"queued_tokens": 2}})");
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  tenants_ = std::make_shared<const Tenants>(*std::move(tenants));
  EXPECT_EQ(RegisterOne().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(StagesTest, WhatTheEngineHasStaysUntilItsEnd) {
  std::shared_ptr<RequestOutput> output;
  {
    absl::StatusOr<Registered> registered = RegisterOne();
    ASSERT_TRUE(registered.ok()) << registered.status();
    output = registered->output;
    registered->Keep();
  }
  EXPECT_EQ(admission_.totals().requests, 1);
  EXPECT_EQ(registry_.size(), 1);
  EXPECT_FALSE(sessions_->Begin(1000, Header()).ok());
  registry_.Remove(output->id_space(), output->request_id());
  sessions_->Withdraw(output->key());
  dispatcher_.Unregister(output->key());
}

}  // namespace
}  // namespace berth
