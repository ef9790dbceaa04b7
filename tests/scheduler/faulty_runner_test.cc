#include "scheduler/faulty_runner.h"

#include <gtest/gtest.h>

#include <string>

namespace berth {
namespace {

// Counts the steps that it is given.
class CountingRunner final : public ModelRunner {
 public:
  const ModelInfo& info() const override { return info_; }
  absl::Status Run(const StepPlan&, StepResult*) override {
    ++num_run;
    return status;
  }

  int num_run = 0;
  absl::Status status;

 private:
  ModelInfo info_;
};

TEST(FaultyRunnerTest, FailsEveryThirdStepBeforeTheModelAndAfterItInTurns) {
  CountingRunner model;
  FaultyRunner faulty(&model, 3);
  StepResult result;
  std::string answers;
  for (int i = 0; i < 12; ++i) {
    const int before = model.num_run;
    const absl::Status status = faulty.Run(StepPlan(), &result);
    answers += status.ok() ? '.' : model.num_run == before ? 'b' : 'a';
  }
  EXPECT_EQ(answers, "..b..a..b..a");
}

TEST(FaultyRunnerTest, TheModelsOwnErrorStays) {
  CountingRunner model;
  model.status = absl::DataLossError("the device is lost");
  FaultyRunner faulty(&model, 2);
  StepResult result;
  EXPECT_EQ(faulty.Run(StepPlan(), &result), model.status);
  EXPECT_TRUE(absl::IsInternal(faulty.Run(StepPlan(), &result)));  // before the model has run it
  EXPECT_EQ(faulty.Run(StepPlan(), &result), model.status);
  EXPECT_EQ(faulty.Run(StepPlan(), &result), model.status);  // after it
}

}  // namespace
}  // namespace berth
