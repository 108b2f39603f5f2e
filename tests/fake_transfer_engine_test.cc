// The fake engine: what the tests of the manager rely on.
#include "tidepool/testing/fake_transfer_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace tidepool::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kSlots = 8;
constexpr std::uint32_t kLayers = 4;
constexpr std::uint64_t kLayerBytes = 256;

class FakeTransferEngineTest : public ::testing::Test {
 protected:
  void Start(FakeEngineOptions options = {}) {
    engine_ = std::make_unique<FakeTransferEngine>(options);
    std::vector<TierBinding> tiers(3);
    for (TierBinding& tier : tiers) {
      tier.slots = kSlots;
      tier.layers = kLayers;
      tier.slot_bytes = kLayers * kLayerBytes;
      tier.prior_bytes_per_second = 1e9;
    }
    tiers[0].kind = TierKind::kHbm;
    tiers[0].arena = *AllocateHostArena(kSlots, kLayers, kLayerBytes);
    tiers[2].kind = TierKind::kNvme;
    tiers[2].path = "unused";
    ASSERT_TRUE(engine_->Attach(tiers, nullptr).ok());
  }

  CopyRequest Request(TierIndex from, std::uint32_t source, TierIndex to, std::uint32_t destination,
                      TransferClass transfer_class = TransferClass::kSpill) {
    return {.id = TransferId(next_id_++),
            .block = BlockId(source),
            .from = from,
            .to = to,
            .source = SlotId(source),
            .destination = SlotId(destination),
            .transfer_class = transfer_class};
  }
  CopyRequest Submit(CopyRequest request) {
    EXPECT_EQ(engine_->Submit({&request, 1}), 1u);
    return request;
  }
  void Fill(TierIndex tier, std::uint32_t slot, int value) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      std::memset(engine_->Bytes(tier, SlotId(slot), layer).data(), value, kLayerBytes);
    }
  }
  bool Holds(TierIndex tier, std::uint32_t slot, std::uint32_t layer, int value) {
    return std::ranges::all_of(engine_->Bytes(tier, SlotId(slot), layer),
                               [value](std::byte b) { return b == static_cast<std::byte>(value); });
  }
  std::vector<Completion> Poll() {
    std::vector<Completion> completions;
    engine_->Poll(completions);
    return completions;
  }

  std::unique_ptr<FakeTransferEngine> engine_;
  std::uint64_t next_id_ = 1;
};

TEST_F(FakeTransferEngineTest, MovesBytesWhenTheTestSaysSo) {
  Start();
  Fill(0, 3, 0x11);
  const CopyRequest down = Submit(Request(0, 3, 2, 5));
  EXPECT_TRUE(Poll().empty());
  EXPECT_FALSE(engine_->Wait(1s));
  EXPECT_EQ(engine_->QueuedBytes(0, 2), kLayers * kLayerBytes);
  EXPECT_TRUE(engine_->Finish(down.id));
  EXPECT_TRUE(engine_->Wait(1s));
  const auto done = Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, down.id);
  EXPECT_TRUE(done[0].terminal);
  EXPECT_EQ(done[0].result, TransferResult::kOk);
  EXPECT_EQ(done[0].layers_done, kLayers);
  EXPECT_TRUE(Holds(2, 5, kLayers - 1, 0x11));
  EXPECT_FALSE(engine_->Finish(down.id));
  EXPECT_TRUE(engine_->InFlight().empty());
  EXPECT_TRUE(engine_->violations().empty());
}

TEST_F(FakeTransferEngineTest, ProgressMovesLeadingLayersOnly) {
  Start();
  Fill(0, 0, 0x22);
  const CopyRequest copy = Submit(Request(0, 0, 1, 0));
  EXPECT_TRUE(engine_->Progress(copy.id, 2));
  const auto progress = Poll();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_FALSE(progress[0].terminal);
  EXPECT_EQ(progress[0].layers_done, 2u);
  EXPECT_TRUE(Holds(1, 0, 1, 0x22));
  EXPECT_TRUE(Holds(1, 0, 2, 0));
}

TEST_F(FakeTransferEngineTest, FailureScribblesOverTheDestination) {
  Start();
  Fill(1, 1, 0x33);
  const CopyRequest load = Submit(Request(1, 1, 0, 2));
  engine_->Finish(load.id, TransferResult::kFailed);
  EXPECT_EQ(Poll().at(0).result, TransferResult::kFailed);
  EXPECT_TRUE(Holds(0, 2, 0, 0xDB));
}

TEST_F(FakeTransferEngineTest, ReordersRepeatsAndDrops) {
  Start();
  const CopyRequest a = Submit(Request(0, 0, 1, 0));
  const CopyRequest b = Submit(Request(0, 1, 1, 1));
  const CopyRequest c = Submit(Request(0, 2, 1, 2));
  engine_->Drop(b.id);
  engine_->FinishAll();
  engine_->ReverseUndelivered();
  const auto done = Poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].id, c.id);
  EXPECT_EQ(done[1].id, a.id);
  EXPECT_TRUE(engine_->Repeat(a.id));
  EXPECT_FALSE(engine_->Repeat(b.id));
  EXPECT_EQ(Poll().at(0).id, a.id);
  engine_->Undrop(b.id);
  EXPECT_TRUE(engine_->Finish(b.id));
}

TEST_F(FakeTransferEngineTest, AcceptsALeadingPart) {
  Start({.accept_limit = 3});
  std::vector<CopyRequest> batch;
  for (std::uint32_t i = 0; i < 5; ++i) batch.push_back(Request(0, i, 1, i));
  EXPECT_EQ(engine_->Submit(batch), 3u);
  EXPECT_EQ(engine_->submitted().size(), 3u);
  engine_->set_accept_limit(0);
  EXPECT_EQ(engine_->Submit(std::span(batch).subspan(3)), 0u);
}

TEST_F(FakeTransferEngineTest, ManualCancelIsOnlyRecorded) {
  Start();
  const CopyRequest copy = Submit(Request(0, 0, 1, 0));
  engine_->Cancel(copy.id);
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(engine_->cancelled(), std::vector{copy.id});
  engine_->Finish(copy.id, TransferResult::kCancelled);
  EXPECT_EQ(Poll().at(0).result, TransferResult::kCancelled);
}

TEST_F(FakeTransferEngineTest, ReportsBrokenRules) {
  Start();
  const CopyRequest a = Submit(Request(0, 0, 1, 0));
  Submit(Request(0, 1, 1, 0));  // writes where a writes
  EXPECT_EQ(engine_->violations().size(), 1u);
  Submit(Request(1, 4, 0, 0));  // writes what a reads
  EXPECT_EQ(engine_->violations().size(), 2u);
  engine_->OnSlotFreed(1, SlotId(4));
  EXPECT_EQ(engine_->violations().size(), 3u);
  engine_->OnSlotFreed(1, SlotId(7));
  EXPECT_EQ(engine_->violations().size(), 3u);
  Fill(0, 0, 0x77);
  engine_->Finish(a.id);
  EXPECT_EQ(engine_->violations().size(), 4u) << "the source changed";
  Submit(Request(0, kSlots, 1, 7));
  EXPECT_EQ(engine_->violations().size(), 5u);
}

TEST_F(FakeTransferEngineTest, CorruptsSilently) {
  Start();
  Fill(0, 0, 0x10);
  const CopyRequest copy = Submit(Request(0, 0, 1, 0));
  engine_->Corrupt(copy.id);
  engine_->FinishAll();
  EXPECT_EQ(Poll().at(0).result, TransferResult::kOk);
  EXPECT_FALSE(Holds(1, 0, 0, 0x10));
}

TEST_F(FakeTransferEngineTest, AutomaticFaultsEndEveryCopyAndRepeatBySeed) {
  const auto play = [this](std::uint64_t seed) {
    Start({.automatic = true,
           .faults = {.fail = 0.2,
                      .delay = 0.5,
                      .reorder = 0.3,
                      .duplicate = 0.3,
                      .progress = 0.5,
                      .refuse = 0.2,
                      .finish_anyway = 0.5},
           .seed = seed});
    next_id_ = 1;
    std::vector<Completion> all;
    for (int round = 0; round < 200; ++round) {
      const auto slot = static_cast<std::uint32_t>(round) % kSlots;
      const CopyRequest request = Request(0, slot, 1, slot);
      const bool accepted = engine_->Submit({&request, 1}) == 1;
      if (accepted && round % 7 == 0) engine_->Cancel(request.id);
      engine_->Poll(all);
    }
    while (engine_->Wait(1s)) engine_->Poll(all);
    EXPECT_TRUE(engine_->InFlight().empty());
    return all;
  };
  const auto first = play(42);
  const auto terminals = std::ranges::count_if(first, [](auto& c) { return c.terminal; });
  EXPECT_GT(terminals, static_cast<long>(engine_->submitted().size())) << "some came twice";
  const auto again = play(42);
  ASSERT_EQ(first.size(), again.size());
  EXPECT_TRUE(std::ranges::equal(first, again, [](auto& a, auto& b) {
    return a.id == b.id && a.result == b.result && a.layers_done == b.layers_done;
  }));
  EXPECT_NE(first.size(), play(43).size());
}

TEST_F(FakeTransferEngineTest, ModelledLinksMoveOneCopyAtATimeInClassOrder) {
  ManualClock clock;
  Start({.clock = &clock});
  engine_->SetLink(0, 1, 1e9, 0ns);  // 1,024 bytes take 1,024 ns
  const CopyRequest spill = Submit(Request(0, 0, 1, 0));
  const CopyRequest later = Submit(Request(0, 1, 1, 1));
  const CopyRequest load = Submit(Request(0, 2, 1, 2, TransferClass::kDemandLoad));
  engine_->Cancel(spill.id);  // already moving: too late
  EXPECT_TRUE(Poll().empty());
  clock.Advance(1024ns);
  EXPECT_EQ(Poll().at(0).id, spill.id);
  EXPECT_TRUE(engine_->Wait(1s));
  EXPECT_EQ(clock.Now().time_since_epoch(), 2048ns);
  EXPECT_EQ(Poll().at(0).id, load.id);
  EXPECT_FALSE(engine_->Wait(100ns));
  EXPECT_EQ(clock.Now().time_since_epoch(), 2148ns);
  clock.Advance(1h);
  EXPECT_EQ(Poll().at(0).id, later.id);
  EXPECT_FALSE(engine_->Wait(1s));
}

}  // namespace
}  // namespace tidepool::testing
