// Two-ended loads: what the engine takes from the front is computed once, what is left is loaded,
// and whatever happens in between, nobody waits for ever and no byte is wrong. The fixture checks
// Audit and every readable byte after each step.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

constexpr std::uint32_t kBlocks = 6;

// Six blocks in DRAM only, and a sequence that loads them.
struct Loading {
  explicit Loading(ScenarioOptions options = {.hbm = 12, .dram = 12}, bool two_ended = true)
      : s(std::move(options)) {
    s.Store(text, {.session = 1});
    s.engine().ClearRecords();
    EXPECT_EQ(s.Allocate("A", Join(text, Text(9, 4)), {.session = 1, .two_ended = two_ended}), kOk);
    EXPECT_EQ(s.admission("A").loading_tokens, kBlocks * kBlockTokens);
  }
  // The transfer that loads block `position`.
  TransferId Load(std::uint32_t position) {
    const BlockId block = s.Blocks(text)[position];
    for (const CopyRequest& copy : s.engine().InFlight()) {
      if (copy.block == block) return copy.id;
    }
    return {};
  }
  // With an engine that gives back what it is asked for.
  TakenLoads Take(const std::string& name, std::uint32_t blocks) {
    const TakenLoads taken = s.Take(name, blocks);
    const std::vector<TransferId> asked = s.engine().cancelled();
    s.engine().ClearRecords();
    for (const TransferId id : asked) s.engine().Finish(id, TransferResult::kCancelled);
    return asked.empty() ? taken : s.Take(name, blocks);
  }
  void ExpectAllReadable() {
    EXPECT_EQ(s.ticket("A").Ready(), kOk);
    EXPECT_EQ(s.Commit("A", kBlocks * kBlockTokens + 4), kOk);
    EXPECT_EQ(s.Free("A"), kOk);
    s.Settle();
    EXPECT_EQ(s.manager().table_sizes().transfers, 0u);
  }
  const Tokens text = Text(1, kBlocks* kBlockTokens);
  ScenarioFixture s;
};

TEST(TwoEnded, LoadsTheLastBlocksFirst) {
  for (const bool two_ended : {true, false}) {
    Loading l({.hbm = 12, .dram = 12}, two_ended);
    const std::vector<CopyRequest> copies = l.s.engine().InFlight();
    ASSERT_EQ(copies.size(), kBlocks);
    EXPECT_EQ(copies.front().block, l.s.Blocks(l.text)[two_ended ? kBlocks - 1 : 0]);
  }
}

TEST(TwoEnded, TakesFromTheFrontWhatHasNotBegun) {
  Loading l;
  const TakenLoads taken = l.Take("A", 2);
  EXPECT_EQ(taken.outcome, kOk);
  EXPECT_EQ(taken.first_token, 0u);
  EXPECT_EQ(taken.tokens, 2 * kBlockTokens);
  EXPECT_EQ(l.s.manager().stats().taken_loads, 2u);
  l.s.engine().FinishAll();
  l.s.Poll();
  EXPECT_EQ(l.s.ticket("A").Ready(), kPending);  // what was taken is not there
  EXPECT_EQ(l.s.Commit("A", kBlocks * kBlockTokens + 4), kStillLoading);
  EXPECT_EQ(l.s.CommitTaken("A"), kOk);
  EXPECT_EQ(l.s.manager().stats().bytes_in[kHbmTier], 4 * l.s.manager().block_bytes());
  l.ExpectAllReadable();
}

TEST(TwoEnded, FrontAndBackMeet) {
  Loading l;
  std::uint32_t computed = 0;
  for (std::uint32_t step = 1; l.s.ticket("A").Ready() == kPending; ++step) {
    ASSERT_LT(step, 20u);
    const TakenLoads taken = l.Take("A", 1);
    if (taken.tokens != 0) {
      EXPECT_EQ(taken.first_token, computed * kBlockTokens);
      ++computed;
      EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = step}), kOk);
    }
    if (!l.s.engine().InFlight().empty()) {
      l.s.engine().Finish(l.s.engine().InFlight().front().id);
    }
    l.s.Poll();
    EXPECT_EQ(l.s.CompleteStep(0, step), kOk);
  }
  EXPECT_EQ(computed, kBlocks / 2);
  l.ExpectAllReadable();
}

TEST(TwoEnded, StepsOfTheSameTimelineNeedNotWait) {
  Loading l;
  EXPECT_EQ(l.Take("A", kBlocks).tokens, kBlocks * kBlockTokens);
  EXPECT_EQ(l.s.ticket("A").Ready(), kPending);
  EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 1}), kOk);
  EXPECT_EQ(l.s.ticket("A").Ready(), kOk);
  EXPECT_EQ(l.s.Commit("A", kBlocks * kBlockTokens + 4, {.timeline = 0, .step = 2}), kOk);
  EXPECT_EQ(l.s.Free("A"), kOk);
  EXPECT_EQ(l.s.CompleteStep(0, 2), kOk);
  l.s.Settle();
  EXPECT_EQ(l.s.Found(l.text), kBlocks * kBlockTokens);
  EXPECT_TRUE(l.s.Stored(kHbmTier, l.text, 0));
}

// A computed block counts as loading until its step has passed; later steps read it nevertheless.
TEST(TwoEnded, WhatALaterStepReadsStaysUntilThatHasPassed) {
  Loading l;
  EXPECT_EQ(l.Take("A", kBlocks).tokens, kBlocks * kBlockTokens);
  EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 1}), kOk);
  EXPECT_EQ(l.s.Allocate("B", Join(l.text, Text(8, 4)), {.session = 2}), kOk);
  EXPECT_EQ(l.s.ticket("B").Ready(), kOk);  // the steps of one timeline run in order
  EXPECT_EQ(l.s.Commit("B", kBlocks * kBlockTokens + 4, {.timeline = 0, .step = 2}), kOk);
  EXPECT_EQ(l.s.Commit("A", kBlocks * kBlockTokens + 4, {.timeline = 0, .step = 3}), kOk);
  EXPECT_EQ(l.s.Free("A"), kOk);
  EXPECT_EQ(l.s.Free("B"), kOk);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    EXPECT_GE(l.s.manager().counts().held, kBlocks) << "before step " << step << " has passed";
    EXPECT_EQ(l.s.CompleteStep(0, step), kOk);
  }
  EXPECT_EQ(l.s.manager().counts().held, 0u);
}

// A fork's shared tail comes in first and is copied before it is written on; the other one ends.
TEST(TwoEnded, ATailThatWasCopiedIsNotWaitedFor) {
  ScenarioFixture s({.hbm = 12, .dram = 12});
  const Tokens text = Text(1, 2 * kBlockTokens + 2);
  EXPECT_EQ(s.Allocate("A", text), kOk);
  EXPECT_EQ(s.Commit("A", static_cast<std::uint32_t>(text.size())), kOk);
  EXPECT_EQ(s.Fork("A", "B"), kOk);
  EXPECT_EQ(s.Preempt("A", PreemptMode::kOffload), kOk);
  EXPECT_EQ(s.Preempt("B", PreemptMode::kOffload), kOk);
  EXPECT_EQ(s.Offload(text).accepted, 2u);
  s.Settle();
  EXPECT_EQ(s.AllocatePatiently("X", Text(5, 12 * kBlockTokens)), kOk);  // takes all of HBM
  EXPECT_EQ(s.Free("X"), kOk);
  EXPECT_EQ(s.Resume("A"), kOk);
  EXPECT_EQ(s.Resume("B"), kOk);
  EXPECT_EQ(s.Append("B", {7}), kStillLoading);
  const std::vector<BlockId> full = s.Blocks(text);
  for (const CopyRequest& copy : s.engine().InFlight()) {
    if (copy.block != full[0] && copy.block != full[1]) s.engine().Finish(copy.id);
  }
  s.Poll();
  EXPECT_EQ(s.ticket("B").Ready(), kPending);
  EXPECT_EQ(s.Append("B", {7}), kOk);
  EXPECT_EQ(s.manager().stats().cow_copies, 1u);
  EXPECT_EQ(s.Free("A"), kOk);
  s.Settle();
  EXPECT_EQ(s.ticket("B").Ready(), kOk);
  EXPECT_EQ(s.Commit("B", static_cast<std::uint32_t>(text.size()) + 1), kOk);
}

// Whoever reads the block in later steps of the timeline may also copy it there.
TEST(TwoEnded, ATailThatWasComputedIsCopiedBeforeItsStepHasPassed) {
  for (const bool own : {true, false}) {
    Loading l;
    EXPECT_EQ(l.Take("A", kBlocks).tokens, kBlocks * kBlockTokens);
    EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 1}), kOk);
    EXPECT_EQ(l.s.Allocate("B", Join(l.text, Text(8, 4)), {.session = 2}), kOk);
    const std::string name = own ? "A" : "B";
    EXPECT_EQ(l.s.ticket(name).Ready(), kOk);
    EXPECT_EQ(l.s.Truncate(name, kBlocks * kBlockTokens - 2), kOk);
    EXPECT_EQ(l.s.Append(name, {7}), kOk);
    EXPECT_EQ(l.s.manager().stats().cow_copies, 1u);
    EXPECT_EQ(l.s.Commit(name, kBlocks * kBlockTokens - 1, {.timeline = 0, .step = 2}), kOk);
    EXPECT_EQ(l.s.Free("A"), kOk);
    EXPECT_EQ(l.s.Free("B"), kOk);
    EXPECT_EQ(l.s.CompleteStep(0, 2), kOk);
    l.s.Settle();
    EXPECT_TRUE(l.s.Stored(kHbmTier, l.text, kBlocks - 1));
    EXPECT_EQ(l.s.manager().table_sizes().transfers, 0u);
  }
}

// A fork knows two tokens of a block that its parent has filled and published meanwhile.
TEST(TwoEnded, ABlockThatIsKnownInPartIsNotTaken) {
  ScenarioFixture s({.hbm = 12, .dram = 12});
  const Tokens text = Text(1, 3 * kBlockTokens);
  const std::uint32_t known = 2 * kBlockTokens + 2;
  EXPECT_EQ(s.Allocate("A", text), kOk);
  EXPECT_EQ(s.Commit("A", known), kOk);
  EXPECT_EQ(s.Fork("A", "B"), kOk);
  EXPECT_EQ(s.Preempt("B", PreemptMode::kKeep), kOk);
  EXPECT_EQ(s.Commit("A", 3 * kBlockTokens), kOk);
  EXPECT_EQ(s.Free("A"), kOk);
  EXPECT_EQ(s.Offload(text).accepted, 3u);
  s.Settle();
  EXPECT_EQ(s.Evict(3), 3u);
  EXPECT_EQ(s.Resume("B"), kOk);
  EXPECT_EQ(s.admission("B").loading_tokens, known);
  s.engine().ClearRecords();
  EXPECT_EQ(s.Take("B", 3).tokens, 0u);
  for (const TransferId id : s.engine().cancelled()) {
    s.engine().Finish(id, TransferResult::kCancelled);
  }
  EXPECT_EQ(s.Take("B", 3).tokens, 2 * kBlockTokens);
  EXPECT_EQ(s.CommitTaken("B"), kOk);
  s.Settle();
  for (int polls = 0; polls < 8; ++polls) s.Poll();  // what was withdrawn in vain
  s.Settle();
  EXPECT_EQ(s.ticket("B").Ready(), kOk);
  EXPECT_EQ(s.manager().stats().taken_loads, 2u);
  EXPECT_EQ(s.Free("B"), kOk);
}

TEST(TwoEnded, NothingIsTakenTwice) {
  Loading l;
  EXPECT_EQ(l.Take("A", 1).tokens, kBlockTokens);
  EXPECT_EQ(l.Take("A", 5).tokens, 0u);  // the first is not committed
  EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 1}), kOk);
  EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 2}), kInvalidArgument);
  EXPECT_EQ(l.Take("A", 1).first_token, kBlockTokens);
  EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 3, .step = 2}), kInvalidArgument);
  EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 0}), kNotMonotonic);
  EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 1}), kOk);
  EXPECT_EQ(l.s.CompleteStep(0, 1), kOk);
  l.s.Settle();
  l.ExpectAllReadable();
}

TEST(TwoEnded, ABlockThatIsBeingMovedIsLeftAlone) {
  Loading l({.hbm = 12, .dram = 12, .layers = 2});
  EXPECT_TRUE(l.s.engine().Progress(l.Load(0), 1));
  l.s.Poll();
  EXPECT_EQ(l.Take("A", 3).tokens, 0u);
  EXPECT_TRUE(l.s.engine().cancelled().empty());
  l.s.Settle();
  l.ExpectAllReadable();
}

TEST(TwoEnded, AWithdrawnLoadThatNobodyTakesIsLoaded) {
  Loading l;
  EXPECT_EQ(l.s.Take("A", 2).tokens, 0u);  // the engine has been asked
  for (const TransferId id : l.s.engine().cancelled()) {
    l.s.engine().Finish(id, TransferResult::kCancelled);
  }
  for (int polls = 0; polls < 8; ++polls) {
    EXPECT_EQ(l.s.engine().InFlight().size(), 4u);
    l.s.Poll();
  }
  EXPECT_EQ(l.s.engine().InFlight().size(), 6u);
  l.s.Settle();
  EXPECT_EQ(l.s.manager().stats().taken_loads, 0u);
  l.ExpectAllReadable();
}

TEST(TwoEnded, ACancelThatComesTooLateIsALoad) {
  Loading l({.hbm = 12,
             .dram = 12,
             .engine = {.automatic = true, .faults = {.delay = 1, .finish_anyway = 1}}});
  EXPECT_EQ(l.s.Take("A", 3).tokens, 0u);
  for (int i = 0; i < 40 && l.s.ticket("A").Ready() == kPending; ++i) l.s.Poll();
  EXPECT_EQ(l.s.manager().stats().taken_loads, 0u);
  l.ExpectAllReadable();
}

TEST(TwoEnded, WhoJoinedGetsWhatWasComputed) {
  Loading l;
  EXPECT_EQ(l.s.Allocate("B", Join(l.text, Text(8, 4)), {.session = 2}), kOk);
  EXPECT_EQ(l.Take("A", 2).tokens, 2 * kBlockTokens);
  EXPECT_EQ(l.Take("B", 2).tokens, 0u);  // A has it
  EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 1}), kOk);
  l.s.Settle();
  EXPECT_EQ(l.s.CompleteStep(0, 1), kOk);
  EXPECT_EQ(l.s.ticket("B").Ready(), kOk);
  EXPECT_EQ(l.s.Free("B"), kOk);
  l.ExpectAllReadable();
}

TEST(TwoEnded, WhoJoinedGetsALoadWhenTheTakerLeaves) {
  for (const bool fenced : {false, true}) {
    Loading l;
    EXPECT_EQ(l.s.Allocate("B", Join(l.text, Text(8, 4)), {.session = 2}), kOk);
    EXPECT_EQ(l.Take("A", 2).tokens, 2 * kBlockTokens);
    EXPECT_EQ(l.s.Free("A", fenced ? Fence{.timeline = 0, .step = 1} : Fence::Done()), kOk);
    l.s.Settle();
    if (fenced) {
      EXPECT_EQ(l.s.ticket("B").Ready(), kPending);  // A's step may still write there
      EXPECT_EQ(l.s.CompleteStep(0, 1), kOk);
      l.s.Settle();
    }
    EXPECT_EQ(l.s.ticket("B").Ready(), kOk);
    EXPECT_EQ(l.s.Free("B"), kOk);
    l.s.Settle();
    EXPECT_EQ(l.s.manager().table_sizes().transfers, 0u);
  }
}

TEST(TwoEnded, ATakerThatLeavesKeepsNothing) {
  for (const bool committed : {false, true}) {
    Loading l;
    EXPECT_EQ(l.Take("A", 2).tokens, 2 * kBlockTokens);
    if (committed) {
      EXPECT_EQ(l.s.CommitTaken("A", {.timeline = 0, .step = 1}), kOk);
    }
    EXPECT_EQ(l.s.Free("A", {.timeline = 0, .step = 1}), kOk);
    l.s.Settle();
    EXPECT_EQ(l.s.CompleteStep(0, 1), kOk);
    l.s.Settle();
    EXPECT_EQ(l.s.manager().table_sizes().transfers, 0u);
    EXPECT_EQ(l.s.Found(l.text), kBlocks * kBlockTokens);  // DRAM has it all
    EXPECT_EQ(l.s.Stored(kHbmTier, l.text, 0), committed);
    EXPECT_EQ(l.s.manager().counts().quarantined, 0u);
  }
}

TEST(TwoEnded, AFailedLoadBehindCutsTheSequenceBack) {
  Loading l;
  EXPECT_EQ(l.Take("A", 2).tokens, 2 * kBlockTokens);
  l.s.engine().Finish(l.Load(4), TransferResult::kFailed);
  l.s.Poll();
  EXPECT_EQ(l.s.seq("A").tokens(), 4 * kBlockTokens);
  EXPECT_EQ(l.s.Take("A", 1).outcome, kLoadFailed);
  EXPECT_EQ(l.s.CommitTaken("A"), kOk);
  l.s.Settle();
  EXPECT_EQ(l.s.ticket("A").Ready(), kLoadFailed);  // nothing of it is under way
  EXPECT_EQ(l.s.Free("A"), kOk);
}

// An early end at every point of a small two-ended load, each with every way that copies can end.
TEST(TwoEnded, AnEndAtAnyPointLeaksNothing) {
  for (int point = 0; point < 12; ++point) {
    for (const TransferResult result :
         {TransferResult::kOk, TransferResult::kFailed, TransferResult::kCancelled}) {
      for (const int how : {0, 1, 2}) {
        Loading l;
        int at = 0;
        bool over = false;
        const auto end_here = [&] {
          if (over || at++ != point) return over;
          over = true;
          if (how == 0) {
            EXPECT_EQ(l.s.Free("A", {.timeline = 0, .step = 9}), kOk);
          }
          if (how == 1) {
            EXPECT_EQ(l.s.Idle("A"), kOk);
          }
          if (how == 2) {
            EXPECT_EQ(l.s.Preempt("A", PreemptMode::kRecompute), kOk);
          }
          return true;
        };
        for (std::uint32_t step = 1; step <= 4 && !end_here(); ++step) {
          const TakenLoads taken = l.Take("A", 1);
          if (end_here()) break;
          if (taken.tokens != 0) l.s.CommitTaken("A", {.timeline = 0, .step = step});
          if (end_here()) break;
          const auto copies = l.s.engine().InFlight();
          if (!copies.empty()) l.s.engine().Finish(copies.front().id, result);
          l.s.Poll();
        }
        l.s.CompleteStep(0, 9);
        if (l.s.seq("A").alive()) {
          EXPECT_EQ(l.s.Free("A"), kOk);
        }
        l.s.Settle();
        EXPECT_EQ(l.s.manager().table_sizes().transfers, 0u) << point << ' ' << how;
        EXPECT_EQ(l.s.manager().counts().held + l.s.manager().counts().quarantined, 0u);
      }
    }
  }
}

TEST(TwoEnded, NothingToTakeIsNoError) {
  ScenarioFixture s({.hbm = 8, .dram = 8});
  EXPECT_EQ(s.Take("nobody", 1).outcome, kUnknownHandle);
  EXPECT_EQ(s.Allocate("A", Text(1, 8)), kOk);
  EXPECT_EQ(s.Take("A", 1).outcome, kOk);
  EXPECT_EQ(s.Take("A", 1).tokens, 0u);
  EXPECT_EQ(s.CommitTaken("A"), kInvalidArgument);
  EXPECT_EQ(s.Idle("A"), kOk);
  EXPECT_EQ(s.Take("A", 1).outcome, kPaused);
  EXPECT_EQ(s.CommitTaken("A"), kPaused);
}

}  // namespace
}  // namespace tidepool::testing
