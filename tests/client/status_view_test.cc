#include "client/status_view.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <string>

namespace berth::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(StatusView, BytesHaveBinaryUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 30), "3.0 GiB");
}

TEST(StatusView, BarsShowLiveHeldAndTheRest) {
  EXPECT_EQ(DrawBar(25, 50, 100, 8), "##--....");
  EXPECT_EQ(DrawBar(100, 100, 100, 4), "####");
  EXPECT_EQ(DrawBar(0, 0, 100, 4), "....");
}

TEST(StatusView, WhatIsNotZeroShowsInABar) {
  EXPECT_EQ(DrawBar(1, 1, 1000, 4), "#...");
  EXPECT_EQ(DrawBar(1, 2, 1000, 4), "#-..");
  EXPECT_EQ(DrawBar(0, 1, 1000, 4), "-...");
}

TEST(StatusView, AnEmptyArenaDrawsAnEmptyBar) { EXPECT_EQ(DrawBar(0, 0, 0, 4), "...."); }

TEST(StatusView, NamesAddressHealthAndDraining) {
  StatusView view;
  view.server = "127.0.0.1:8600";
  view.live = "SERVING";
  view.ready = "NOT_SERVING";
  view.load.set_draining(true);
  const std::string text = DrawStatus(view);
  EXPECT_THAT(text, HasSubstr("127.0.0.1:8600"));
  EXPECT_THAT(text, HasSubstr("live: SERVING, ready: NOT_SERVING"));
  EXPECT_THAT(text, HasSubstr("DRAINING"));
}

TEST(StatusView, EveryNumberOfTheLoadIsShownUnlessItIs0) {
  StatusView view;
  const std::string empty = DrawStatus(view);
  const google::protobuf::Descriptor& descriptor = *v1::GetLoadResponse::descriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    if (descriptor.field(i)->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_INT64) continue;
    view.load.Clear();
    view.load.GetReflection()->SetInt64(&view.load, descriptor.field(i), 777);
    EXPECT_THAT(empty, Not(HasSubstr("777"))) << descriptor.field(i)->name();
    EXPECT_THAT(DrawStatus(view), HasSubstr("777")) << descriptor.field(i)->name();
  }
}

TEST(StatusView, TenantsWithTheirShares) {
  StatusView view;
  v1::TenantShare* const waits = view.load.add_tenant_shares();
  waits->set_tenant("ann");
  waits->set_share(0.75);
  waits->set_deficit_tokens(120);
  waits->set_wait_seconds(2.25);
  view.load.add_tenant_shares()->set_share(0.25);
  EXPECT_THAT(DrawStatus(view),
              HasSubstr("tenants  ann                     75.0 % of the last work, waits for 2.2 s, 120 tokens behind\n"
                        "         (none)                  25.0 % of the last work\n"));
}

TEST(StatusView, NumbersAreNamedAfterTheirFields) {
  StatusView view;
  view.load.set_disk_tier_bytes(1536);
  view.load.set_accepted_draft_tokens(12);
  EXPECT_THAT(DrawStatus(view), HasSubstr("numbers  disk tier                   1.5 KiB\n"
                                          "         accepted draft tokens            12\n"));
}

}  // namespace
}  // namespace berth::cli
