// A file that is kept: what one process stores the next one finds, never with a wrong byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "tests/support/kept_world.h"
#include "tests/support/transfer_rig.h"
#include "tidepool/input_log.h"
#include "tidepool/transfer/slot_file.h"

namespace tidepool::testing {
namespace {

using ::testing::HasSubstr;

/// Copies down and never up.
class OneWayEngine final : public TransferEngine {
 public:
  Status Attach(std::span<const TierBinding>, Observer*) override { return absl::OkStatus(); }
  bool Supports(TierIndex from, TierIndex to) const noexcept override { return from < to; }
  std::size_t Submit(std::span<const CopyRequest>) noexcept override { return 0; }
  void Poll(std::vector<Completion>&) noexcept override {}
  bool Wait(Duration) noexcept override { return false; }
  void Cancel(TransferId) noexcept override {}
  TransferEstimate EstimateCost(TierIndex, TierIndex, std::uint64_t) const noexcept override {
    return {};
  }
  double BytesPerSecond(TierIndex, TierIndex) const noexcept override { return 0; }
  std::uint64_t QueuedBytes(TierIndex, TierIndex) const noexcept override { return 0; }
};

void ExpectOpens(KeptWorld& world) {
  const Status status = world.Open();
  ASSERT_TRUE(status.ok()) << status;
}

// S71: stored blocks are found and used after a restart.
TEST(KeptFileTest, S71StoredBlocksAreFoundAndUsedAfterRestart) {
  KeptWorld world({.hbm = 16});
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 40);
  EXPECT_EQ(world.Store(text), 10);
  ExpectOpens(world);
  EXPECT_EQ(world.manager().recovery().recovered, 10u);
  EXPECT_EQ(world.manager().stored_blocks(), 10u);
  auto longer = text;
  for (Token t : {7, 8, 9, 10}) longer.push_back(t);
  EXPECT_EQ(world.Found(longer), 40u) << "and Probe has taken none of them";
  EXPECT_EQ(world.manager().stored_blocks(), 10u);
  EXPECT_EQ(world.Serve(longer), 40);
  EXPECT_EQ(world.manager().stored_blocks(), 0u);
  EXPECT_EQ(world.manager().stats().stored_used, 10u);
  EXPECT_EQ(world.manager().stats().hit_tokens[KeptWorld::kFileTier], 40u);
}

TEST(KeptFileTest, BranchesAreFoundEachBehindTheCommonPart) {
  KeptWorld world({.hbm = 16});
  ExpectOpens(world);
  auto left = KeptWorld::Text(1, 12);
  auto right = left;
  for (Token t : KeptWorld::Text(2, 8)) left.push_back(t);
  for (Token t : KeptWorld::Text(3, 8)) right.push_back(t);
  world.Store(left);
  world.Store(right);
  ExpectOpens(world);
  EXPECT_EQ(world.manager().stored_blocks(), 7u);
  right.push_back(1);
  left.push_back(1);
  EXPECT_EQ(world.Serve(right), 20);
  EXPECT_EQ(world.manager().stored_blocks(), 2u);
  EXPECT_EQ(world.Serve(left), 20);
}

// S73: what was written for another model, adapter or layout is not found, and stays.
TEST(KeptFileTest, S73FormatBelongsToTheIdentity) {
  KeptWorld world;
  const auto text = KeptWorld::Text(1, 17);
  const auto serve_as = [&](const std::string& model) {
    ExpectOpens(world);
    const NamespaceId ns = *world.manager().RegisterNamespace({.model = model});
    return std::pair(ns, world.Found(text, ns));
  };
  const auto [first, none] = serve_as("F1");
  EXPECT_EQ(none, 0u);
  EXPECT_EQ(world.Store(text, first), 4);
  EXPECT_EQ(serve_as("F2").second, 0u);
  EXPECT_EQ(serve_as("F1").second, 16u);
}

TEST(KeptFileTest, AFileOfAnotherIdentityOrLayoutIsRefusedAndStaysAsItIs) {
  KeptWorld world({.store = {.keep = true, .identity = "llama rev 3, tp 0 of 4"}});
  ExpectOpens(world);
  world.Store(KeptWorld::Text(1, 16));
  world.Close();
  const std::vector<std::byte> before = world.disk().bytes();
  KeptOptions& options = world.options();
  const KeptOptions good = options;
  const auto refused = [&](const char* what) {
    const Status status = world.Open();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_EQ(world.disk().bytes(), before);
    options = good;
  };
  options.store.identity = "llama rev 3, tp 1 of 4";
  refused("identity \"llama rev 3, tp 0 of 4\" (\"llama rev 3, tp 1 of 4\" wanted)");
  options.slots = 17;
  refused("slots 16 (17 wanted)");
  options.layer_bytes = 1024;
  refused("slot_bytes 1024 (2048 wanted)");
  options.layers = 1;
  options.layer_bytes = 1024;
  refused("layers 2 (1 wanted)");
  options.seed = 2;
  refused("another digest seed");
  options.store.tokens = false;
  refused("stored tokens 1 (0 wanted)");
  ExpectOpens(world);
  EXPECT_EQ(world.manager().recovery().recovered, 4u);
}

TEST(KeptFileTest, WhatIsNoFileOfOursIsLeftAlone) {
  KeptWorld world;
  world.disk().bytes().assign(8192, std::byte{'x'});
  const Status status = world.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not empty"));
  EXPECT_EQ(world.disk().bytes(), std::vector<std::byte>(8192, std::byte{'x'}));
}

TEST(KeptFileTest, OptionsThatDoNotGoTogetherAreRefused) {
  KeptWorld world({.store = {.keep = false, .durable = true}});
  EXPECT_THAT(std::string(world.Open().message()), HasSubstr("store.durable"));
  world.options().store = {.keep = true};
  world.options().adjust = [](ManagerOptions& options) {
    HostEngineOptions engine;
    engine.file_io = std::make_unique<FaultFileIo>();
    engine.checksums = false;
    options.engine = MakeHostEngine(std::move(engine));
  };
  EXPECT_THAT(std::string(world.Open().message()), HasSubstr("store.keep needs checksums"));
  world.options().adjust = [](ManagerOptions& options) {
    options.tiers.push_back(options.tiers.back());
  };
  EXPECT_THAT(std::string(world.Open().message()), HasSubstr("more than one is to be kept"));
}

// S54: the durable leg. Weights changed: nothing of before is found, after a restart neither.
TEST(KeptFileTest, S54WeightsChangedAcrossARestart) {
  KeptWorld world;
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 17);
  world.Store(text);
  world.options().epoch = 2;
  ExpectOpens(world);
  EXPECT_EQ(world.Found(text), 0u);
  EXPECT_EQ(world.manager().recovery().stale, 4u);
  EXPECT_EQ(world.manager().used_slots(KeptWorld::kFileTier), 0u) << "the space is free";
  world.options().epoch = 0;  // forgotten by the engine, not by the file
  ExpectOpens(world);
  EXPECT_EQ(world.manager().epoch(), 2u);
  EXPECT_EQ(world.Found(text), 0u);
  world.Store(text);
  EXPECT_TRUE(world.manager().AdvanceEpoch().ok());
  EXPECT_EQ(world.Found(text), 0u);
  ExpectOpens(world);
  EXPECT_EQ(world.manager().epoch(), 3u);
  EXPECT_EQ(world.Found(text), 0u);
}

TEST(KeptFileTest, DroppedNamespacesAndClearedFilesStayEmpty) {
  KeptWorld world;
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 17);
  const auto mine = *world.manager().RegisterNamespace({.tenant = "mine"});
  const auto other = *world.manager().RegisterNamespace({.tenant = "other"});
  world.Store(text, mine);
  world.Store(text, other);
  EXPECT_TRUE(world.manager().DropNamespace(mine).ok());
  ExpectOpens(world);
  const auto again = *world.manager().RegisterNamespace({.tenant = "mine"});
  EXPECT_EQ(world.Found(text, again), 0u);
  EXPECT_EQ(world.Found(text, *world.manager().RegisterNamespace({.tenant = "other"})), 16u);
  EXPECT_EQ(world.Store(text, again), 4) << "what is stored after that counts";
  ExpectOpens(world);
  const auto third = *world.manager().RegisterNamespace({.tenant = "mine"});
  EXPECT_EQ(world.Found(text, third), 16u);
  EXPECT_TRUE(world.manager().DropNamespace(third).ok()) << "never asked for: dropped all the same";
  EXPECT_EQ(world.manager().stored_blocks(), 4u);
  EXPECT_TRUE(world.manager().Clear().ok());
  EXPECT_EQ(world.manager().stored_blocks(), 0u);
  ExpectOpens(world);
  EXPECT_EQ(world.manager().recovery().recovered, 0u);
}

TEST(KeptFileTest, MoreDroppedNamespacesThanTheStatePageHolds) {
  KeptWorld world;
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 5);
  const auto keep = *world.manager().RegisterNamespace({.tenant = "keep"});
  world.Store(text, keep);
  const auto first = *world.manager().RegisterNamespace({.tenant = "0"});
  world.Store(text, first);
  for (int i = 0; i < 400; ++i) {
    const auto ns = *world.manager().RegisterNamespace({.tenant = std::to_string(i)});
    ASSERT_TRUE(world.manager().DropNamespace(ns).ok()) << i;
  }
  ExpectOpens(world);
  EXPECT_EQ(world.manager().recovery().recovered, 1u);
  EXPECT_EQ(world.Found(text, *world.manager().RegisterNamespace({.tenant = "0"})), 0u);
  EXPECT_EQ(world.Found(text, *world.manager().RegisterNamespace({.tenant = "keep"})), 4u);
}

TEST(KeptFileTest, ADropThatCannotBeWrittenSaysSo) {
  KeptWorld world;
  ExpectOpens(world);
  world.Store(KeptWorld::Text(1, 8));
  world.file()->FailNow(EIO);
  EXPECT_EQ(world.manager().AdvanceEpoch().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(world.Found(KeptWorld::Text(1, 8)), 0u) << "here it holds at once";
  world.file()->FailNow(0);
  EXPECT_TRUE(world.manager().AdvanceEpoch().ok());
  ExpectOpens(world);
  EXPECT_EQ(world.manager().epoch(), 2u);
}

TEST(KeptFileTest, AClearThatFailedIsWrittenWhenItIsRepeated) {
  KeptWorld world;
  ExpectOpens(world);
  world.Store(KeptWorld::Text(1, 8));
  world.file()->FailNow(EIO);
  EXPECT_FALSE(world.manager().Clear().ok());
  world.file()->FailNow(0);
  EXPECT_TRUE(world.manager().Clear().ok());
  ExpectOpens(world);
  EXPECT_EQ(world.Found(KeptWorld::Text(1, 8)), 0u);
}

// Damage to either state page brings nothing back.
TEST(KeptFileTest, EitherStatePageIsEnough) {
  for (const std::uint64_t page : {1u, 2u}) {
    KeptWorld world;
    ExpectOpens(world);
    world.Store(KeptWorld::Text(1, 8));
    EXPECT_TRUE(world.manager().Clear().ok());
    world.Store(KeptWorld::Text(2, 4));
    world.Close();
    world.disk().bytes()[page * kSlotFilePageBytes + 20] ^= std::byte{1};
    ExpectOpens(world);
    EXPECT_EQ(world.Found(KeptWorld::Text(1, 8)), 0u) << "page " << page;
    EXPECT_EQ(world.Found(KeptWorld::Text(2, 5)), 4u) << "page " << page;
  }
}

// Digests only: the file holds no prompt, and blocks are found by their keyed digests.
TEST(KeptFileTest, WithoutTokensTheFileHasNoneAndBlocksAreFound) {
  KeptWorld world({.store = {.keep = true, .tokens = false}});
  ExpectOpens(world);
  const auto text = KeptWorld::Text(7, 17);
  world.Store(text);
  world.Close();
  const auto* const tokens = reinterpret_cast<const std::byte*>(text.data());
  const auto& bytes = world.disk().bytes();
  const auto at = std::search(bytes.begin(), bytes.end(), tokens, tokens + 4 * sizeof(Token));
  EXPECT_EQ(at, bytes.end());
  ExpectOpens(world);
  EXPECT_EQ(world.Serve(text), 16);
  EXPECT_EQ(world.Serve(KeptWorld::Text(8, 17)), 0);
}

// S70: right length, wrong bytes.
TEST(KeptFileTest, S70AFlippedByteIsAMissAndTheBlockIsGone) {
  KeptWorld world;
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 17);
  world.Store(text);
  const std::uint32_t slot = world.Slots(text)[2].value();
  world.Close();
  world.disk().bytes()[world.PayloadOffset(slot) + 700] ^= std::byte{1};
  ExpectOpens(world);
  EXPECT_EQ(world.Serve(text), 8) << "the blocks before it are good";
  EXPECT_EQ(world.manager().file_stats(KeptWorld::kFileTier).checksum_failures, 1u);
  EXPECT_EQ(world.manager().stats().loads_failed, 1u);
  world.WaitIdle();
  ExpectOpens(world);
  EXPECT_EQ(world.manager().recovery().recovered, 3u) << "its header is cleared";
}

TEST(KeptFileTest, VerifyAtTheStartDropsWhatIsDamaged) {
  KeptWorld world({.store = {.keep = true, .verify = true}});
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 17);
  world.Store(text);
  const std::uint32_t slot = world.Slots(text)[3].value();
  world.Close();
  world.disk().bytes()[world.PayloadOffset(slot)] ^= std::byte{0x80};
  ExpectOpens(world);
  EXPECT_EQ(world.manager().recovery().corrupt, 1u);
  EXPECT_EQ(world.manager().recovery().recovered, 3u);
  EXPECT_EQ(world.Serve(text), 12);
  EXPECT_EQ(world.manager().stats().loads_failed, 0u);
}

// S69: start-up after a crash: exactly what is whole is found.
TEST(KeptFileTest, S69TornEmptyAndMisplacedHeadersAreReclaimed) {
  KeptWorld world({.hbm = 16});
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 21);
  world.Store(text);
  const std::vector<SlotId> slots = world.Slots(text);
  ASSERT_EQ(slots.size(), 5u);
  world.Close();
  auto& bytes = world.disk().bytes();
  const auto header = [&](std::size_t i) {
    return bytes.begin() + static_cast<std::ptrdiff_t>(world.HeaderOffset(slots[i].value()));
  };
  const auto size = static_cast<std::ptrdiff_t>(world.HeaderOffset(1) - world.HeaderOffset(0));
  std::copy(header(0), header(0) + size, header(1));         // of another slot
  std::fill(header(2), header(2) + size, std::byte{0});      // never written
  std::fill(header(3) + 64, header(3) + size, std::byte{});  // half
  *header(4) ^= std::byte{1};
  ExpectOpens(world);
  const RecoveryReport& report = world.manager().recovery();
  EXPECT_EQ(report.recovered, 1u);
  EXPECT_EQ(report.misplaced, 1u);
  EXPECT_EQ(report.torn, 2u);
  EXPECT_EQ(report.empty, 12u);
  EXPECT_EQ(world.Serve(text), 4);
  EXPECT_EQ(world.manager().slots(KeptWorld::kFileTier), 16u);
}

TEST(KeptFileTest, TheLatestOfTwoCopiesCounts) {
  KeptWorld world;
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 4);
  world.Store(text);
  const std::uint32_t slot = world.Slots(text)[0].value();
  world.Close();
  const StatusOr<SlotFileLayout> layout = ParseSuperblock(world.disk().bytes());
  auto& bytes = world.disk().bytes();
  SlotHeader header;
  ASSERT_EQ(
      ParseSlotHeader(std::span(bytes).subspan(layout->HeaderOffset(slot)), *layout, slot, header),
      HeaderState::kSound);
  header.slot = slot + 1;
  ++header.generation;
  const std::vector<std::byte> sums(header.sums.begin(), header.sums.end());
  const std::vector<Token> tokens(header.identity.tokens.begin(), header.identity.tokens.end());
  header.sums = sums;
  header.identity.tokens = tokens;
  EncodeSlotHeader(
      header, *layout,
      std::span(bytes).subspan(layout->HeaderOffset(slot + 1), layout->header_bytes()));
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(layout->PayloadOffset(slot)),
              layout->slot_bytes,
              bytes.begin() + static_cast<std::ptrdiff_t>(layout->PayloadOffset(slot + 1)));
  ExpectOpens(world);
  EXPECT_EQ(world.manager().recovery().superseded, 1u);
  EXPECT_EQ(world.manager().recovery().recovered, 1u);
  EXPECT_EQ(world.Serve(KeptWorld::Text(1, 5)), 4);
  EXPECT_EQ(world.Slots(text)[0].value(), slot + 1);
}

// Stored blocks make room for new ones, oldest first, and are counted as used until then.
TEST(KeptFileTest, StoredBlocksLeaveBeforeOthersWhenTheTierIsFull) {
  KeptWorld world({.slots = 8});
  ExpectOpens(world);
  world.Store(KeptWorld::Text(1, 16));
  world.Store(KeptWorld::Text(2, 16));
  ExpectOpens(world);
  EXPECT_EQ(world.manager().stored_blocks(), 8u);
  world.manager().Poll();
  EXPECT_EQ(world.manager().signals().tiers[KeptWorld::kFileTier].used, 8u);
  EXPECT_EQ(world.Serve(KeptWorld::Text(2, 17)), 16);
  EXPECT_EQ(world.Store(KeptWorld::Text(3, 16)), 4);
  EXPECT_EQ(world.manager().stored_blocks(), 0u);
  EXPECT_EQ(world.Found(KeptWorld::Text(1, 17)), 0u);
  EXPECT_EQ(world.Found(KeptWorld::Text(2, 17)), 16u);
  EXPECT_EQ(world.Found(KeptWorld::Text(3, 17)), 16u);
}

// S67: the disk is full.
TEST(KeptFileTest, S67DiskFullEvictsRetriesOnceAndGoesOn) {
  KeptWorld world;
  ExpectOpens(world);
  const auto old = KeptWorld::Text(1, 16);
  world.Store(old);
  world.file()->Fill(true);
  EXPECT_EQ(world.Store(KeptWorld::Text(2, 4)), 1) << "in place of an older block";
  EXPECT_EQ(world.manager().stats().offloads_retried, 1u);
  EXPECT_EQ(world.manager().file_stats(KeptWorld::kFileTier).no_space, 1u);
  EXPECT_EQ(world.Found(KeptWorld::Text(1, 17)), 12u);
  EXPECT_EQ(world.Serve(KeptWorld::Text(2, 5)), 4);
}

TEST(KeptFileTest, S67DiskFullForGoodFailsAfterOneRetry) {
  KeptWorld world;
  ExpectOpens(world);
  world.Store(KeptWorld::Text(1, 8));
  std::vector<std::int64_t> full(8, -ENOSPC);
  world.file()->Script(true, full);
  EXPECT_EQ(world.Store(KeptWorld::Text(2, 4)), 0);
  EXPECT_EQ(world.manager().stats().offloads_retried, 1u);
  EXPECT_EQ(world.manager().stats().offloads_failed, 1u);
  EXPECT_EQ(world.manager().file_stats(KeptWorld::kFileTier).checksum_failures, 0u);
  const ProbeResult probe = world.manager().Probe({.tokens = KeptWorld::Text(2, 5)});
  EXPECT_EQ(probe.tokens_by_tier[KeptWorld::kFileTier], 0u) << "HBM has kept it";
  EXPECT_EQ(world.Serve(KeptWorld::Text(1, 5)), 4) << "what is there can be read";
}

// A tier that keeps failing is left alone, and comes back.
TEST(KeptFileTest, AFailingTierIsTakenOutOfServiceAndComesBack) {
  KeptWorld world({.hbm = 16});
  ExpectOpens(world);
  world.file()->set_faults({.error = 1});
  const auto spill = [&](int text) { return world.Store(KeptWorld::Text(text, 8)); };
  EXPECT_EQ(spill(1) + spill(2), 0);
  const std::uint64_t tried = world.manager().stats().offloads;
  EXPECT_EQ(spill(3), 0);
  EXPECT_EQ(world.manager().stats().offloads, tried) << "not tried any more";
  world.file()->set_faults({});
  EXPECT_EQ(spill(4), 0) << "not yet";
  world.clock().Advance(std::chrono::seconds(2));
  world.manager().Poll();
  EXPECT_EQ(spill(5), 2);
}

// The write budget: no day takes more than it says.
TEST(KeptFileTest, TheWriteBudgetIsKept) {
  KeptWorld world({.slots = 64});
  const std::uint64_t block = 1024;
  world.options().store.write_bytes_per_day = 32 * block;
  ExpectOpens(world);
  for (int hour = 0; hour < 24; ++hour) {
    for (int i = 0; i < 2; ++i) world.Store(KeptWorld::Text(hour * 2 + i, 8));
    world.clock().Advance(std::chrono::hours(1));
    world.manager().Poll();
  }
  const std::uint64_t written = world.manager().stats().bytes_in[KeptWorld::kFileTier] / block;
  EXPECT_LE(written, 32u);
  EXPECT_GE(written, 28u);
}

// Power goes: of what was not synced the medium has any part. No wrong byte is ever served, what
// was acknowledged as durable is there, and every slot can be used again.
class PowerCutTest : public ::testing::TestWithParam<bool> {};

TEST_P(PowerCutTest, NothingWrongIsServedAndNothingDurableIsLost) {
  const bool durable = GetParam();
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    KeptWorld world({.hbm = 12, .slots = 10, .store = {.keep = true, .durable = durable}});
    for (int life = 0; life < 3; ++life) {
      ExpectOpens(world);
      const RecoveryReport& report = world.manager().recovery();
      EXPECT_EQ(report.recovered + report.empty + report.torn + report.stale + report.superseded +
                    report.misplaced + report.foreign,
                10u);
      std::vector<int> stored;
      for (int turn = 0; turn < 6; ++turn) {
        const int text = static_cast<int>(random() % 5);
        const std::uint32_t n = 4 * (1 + static_cast<std::uint32_t>(random() % 4));
        ASSERT_GE(world.Serve(KeptWorld::Text(text, n)), 0);
        world.Spill(KeptWorld::Text(text, n));
        if (random() % 2 == 0) world.manager().Evict(kHbmTier, 4);
        if (random() % 8 == 0) {
          EXPECT_TRUE(world.manager().Clear().ok());
        }
      }
      // What the tier has now is what it has acknowledged.
      std::vector<std::uint32_t> acknowledged;
      for (int text = 0; text < 5; ++text) {
        const auto tokens = KeptWorld::Text(text, 17);
        std::vector<BlockId> blocks;
        world.manager().Lookup(tokens, NamespaceId(0), blocks);
        std::uint32_t good = 0;
        while (good < blocks.size() &&
               world.manager().pool().copy(blocks[good], KeptWorld::kFileTier) ==
                   CopyState::kValid) {
          ++good;
        }
        acknowledged.push_back(good * KeptWorld::kTokens);
      }
      if (!durable || random() % 2 == 0) {
        world.file()->FailNow(EIO);  // the last sync of a clean end does not happen
      }
      world.Close();
      world.disk().PowerCut(random());
      ExpectOpens(world);
      for (int text = 0; text < 5; ++text) {
        const std::uint32_t found = world.Found(KeptWorld::Text(text, 17));
        const std::uint32_t owed = durable ? acknowledged[static_cast<std::size_t>(text)] : 0;
        EXPECT_GE(found, owed);
        // No more than that, so that nothing else is written and takes their places.
        const int reused = world.Serve(KeptWorld::Text(text, found + 1));
        EXPECT_GE(reused, static_cast<int>(owed));
        ASSERT_GE(reused, 0);
        world.manager().Evict(kHbmTier, 12);
      }
      EXPECT_EQ(world.manager().slots(KeptWorld::kFileTier), 10u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PowerCutTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Durable" : "AtLeisure"; });

// S68: nobody is served from a block that is still being written.
TEST(KeptFileTest, S68LookupDuringAStore) {
  KeptWorld world;
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 5);
  world.Serve(text);
  world.file()->Hold();
  EXPECT_EQ(world.manager().Offload(KeptWorld::Text(1, 4)).accepted, 1u);
  EXPECT_EQ(world.manager().Probe({.tokens = text}).tokens_by_tier[KeptWorld::kFileTier], 0u);
  EXPECT_EQ(world.manager().Evict(kHbmTier, 1), 0u) << "its only copy stays";
  EXPECT_EQ(world.Serve(text), 4) << "from HBM";
  EXPECT_EQ(world.manager().stats().loads, 0u);
  world.file()->Resume();
  world.WaitIdle();
  EXPECT_EQ(world.manager().Evict(kHbmTier, 1), 1u);
  EXPECT_EQ(world.Serve(text), 4);
  EXPECT_EQ(world.manager().stats().loads, 1u);
}

// A durable copy does not wait for other I/O to end.
TEST(KeptFileTest, ADurableCopyIsAcknowledgedWhileALoadHangs) {
  KeptWorld world({.store = {.keep = true, .durable = true}});
  ExpectOpens(world);
  const auto stored = KeptWorld::Text(1, 5);
  world.Store(stored);
  world.Serve(KeptWorld::Text(2, 4));
  world.file()->Hold();
  Admission admission = world.manager().Admit({.tokens = stored});
  ASSERT_EQ(admission.loading_tokens, 4u);
  while (world.file()->held() < 1) std::this_thread::yield();  // the load
  EXPECT_EQ(world.manager().Offload(KeptWorld::Text(2, 4)).accepted, 1u);
  while (world.file()->held() < 2) std::this_thread::yield();
  world.file()->ReleaseWrites();
  while (world.manager().stats().bytes_in[KeptWorld::kFileTier] < 2048) world.manager().Poll();
  EXPECT_EQ(world.file()->held(), 1u) << "the load still hangs";
  world.file()->Resume();
  EXPECT_EQ(admission.ticket.WaitReady(), Outcome::kOk);
}

// S75: who began to store a block and went away does not keep others from it.
TEST(KeptFileTest, S75AStoreThatDidNotEndIsBegunAgain) {
  KeptWorld world;
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 5);
  world.Serve(text);
  world.file()->Hold();
  EXPECT_EQ(world.manager().Offload(KeptWorld::Text(1, 4)).accepted, 1u);
  world.file()->Resume();
  world.file()->set_faults({.error = 1});  // what was in the air is lost
  world.Close();
  world.disk().PowerCut(1);
  ExpectOpens(world);
  EXPECT_EQ(world.Found(text), 0u);
  EXPECT_EQ(world.Store(text), 1);
  EXPECT_EQ(world.Serve(text), 4);
}

// S76: bytes of a tier are counted once, whatever is going on.
TEST(KeptFileTest, S76ByteAccountingOfATier) {
  KeptWorld world;
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 4);
  const auto used = [&] { return world.manager().used_slots(KeptWorld::kFileTier); };
  for (int i = 0; i < 10; ++i) {
    world.Store(text);
    EXPECT_EQ(used(), 1u);
  }
  EXPECT_EQ(world.manager().file_stats(KeptWorld::kFileTier).headers_written, 1u);
  EXPECT_EQ(world.manager().file_stats(KeptWorld::kFileTier).payload_bytes_written, 1024u);
  EXPECT_EQ(world.manager().Evict(KeptWorld::kFileTier, 1), 1u);
  EXPECT_EQ(used(), 0u);
  EXPECT_GT(world.manager().file_stats(KeptWorld::kFileTier).write_amplification(), 1.0);
}

// S78: memory that the file cannot be read into goes through memory that it can; an engine without
// any path is refused at the start, with the reason.
TEST(KeptFileTest, S78NoDirectPathBetweenMemoryAndFile) {
  KeptWorld world({.layers = 3, .layer_bytes = 1000});
  std::vector<std::vector<std::byte>> layers;
  world.options().adjust = [&](ManagerOptions& options) {
    layers.assign(3, std::vector<std::byte>(8 * 1000 + 1));
    Arena arena{.slot_stride_bytes = 1000, .layer_bytes = 1000, .slots = 8};
    for (auto& layer : layers) arena.layer_base.push_back(layer.data() + 1);
    options.tiers[0] = Hbm(arena);
    options.tiers[0].device_work = DeviceWork::kInline;
  };
  ExpectOpens(world);
  EXPECT_EQ(world.Store(KeptWorld::Text(1, 16)), 4);
  ExpectOpens(world);
  EXPECT_EQ(world.Serve(KeptWorld::Text(1, 17)), 16);

  world.options().adjust = [](ManagerOptions& options) {
    options.engine = std::make_unique<OneWayEngine>();
  };
  const Status status = world.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no direct path between nvme"));
}

// A logged run that began with stored blocks is repeated from its log.
TEST(KeptFileTest, ReplayOfARunThatBeganWithStoredBlocks) {
  KeptWorld world;
  ExpectOpens(world);
  world.Store(KeptWorld::Text(1, 16));
  InputLogBuffer log;
  world.options().adjust = [&](ManagerOptions& options) { options.input_log = &log; };
  ExpectOpens(world);
  EXPECT_EQ(world.Serve(KeptWorld::Text(1, 17)), 16);
  EXPECT_EQ(world.Store(KeptWorld::Text(2, 12)), 3);
  const std::uint64_t hash = world.manager().decision_hash();
  world.Close();
  ManagerOptions again;
  world.options().adjust = [&](ManagerOptions& options) { again = std::move(options); };
  EXPECT_FALSE(world.Open().ok()) << "its options were taken";
  const StatusOr<ReplayReport> report = ReplayInputLog(log.bytes(), std::move(again));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->agrees) << report->divergence;
  EXPECT_EQ(report->decision_hash, hash);
}

// On a real file system.

TEST(KeptFileTest, ASecondOwnerIsRefusedAndTheFileIsPrivate) {
  TempPath path;
  KeptWorld world({.path = path.str()});
  ExpectOpens(world);
  world.Store(KeptWorld::Text(1, 8));
  struct stat info = {};
  ASSERT_EQ(::stat(path.str().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
  KeptWorld second({.path = path.str()});
  const Status status = second.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is in use"));
  world.Close();
  ExpectOpens(second);
  EXPECT_EQ(second.Serve(KeptWorld::Text(1, 9)), 8);
}

// S72: a file that has gone, or lost its end, is a miss from then on.
TEST(KeptFileTest, S72AFileThatWasTruncatedIsAMissOnce) {
  TempPath path;
  KeptWorld world({.path = path.str()});
  ExpectOpens(world);
  const auto text = KeptWorld::Text(1, 9);
  world.Store(text);
  ASSERT_EQ(::truncate(path.str().c_str(), 4096), 0);
  EXPECT_EQ(world.Serve(text), 0);
  EXPECT_EQ(world.manager().stats().loads_failed, 2u);
  const std::uint64_t loads = world.manager().stats().loads;
  EXPECT_EQ(world.Serve(text), 8) << "what was computed anew";
  EXPECT_EQ(world.manager().stats().loads, loads);
  world.Close();
  const Status status = world.Open();
  EXPECT_FALSE(status.ok()) << "what was dropped is not known any more";
  EXPECT_THAT(std::string(status.message()), HasSubstr("state pages"));
}

// S74: file descriptors: two for the file, and none with the blocks.
TEST(KeptFileTest, S74FileDescriptorBudget) {
  const auto open_fds = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  TempPath path;
  KeptWorld world({.hbm = 64, .slots = 600, .path = path.str()});
  ExpectOpens(world);
  const auto before = open_fds();
  for (int text = 0; text < 40; ++text) {
    EXPECT_EQ(world.Store(KeptWorld::Text(text, 60)), 15);
  }
  for (int text = 0; text < 40; ++text) EXPECT_EQ(world.Serve(KeptWorld::Text(text, 61)), 60);
  for (int text = 100; text < 1000; ++text) {
    EXPECT_EQ(world.Found(KeptWorld::Text(text, 61)), 0u);
  }
  EXPECT_LE(std::abs(open_fds() - before), 2);
  for (int i = 0; i < 20; ++i) {
    KeptWorld second({.path = "/no/such/directory/file"});
    EXPECT_FALSE(second.Open().ok());
  }
  EXPECT_LE(std::abs(open_fds() - before), 2);
}

// The sanitizers' own checks need descriptors.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TIDEPOOL_SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TIDEPOOL_SANITIZED 1
#endif
TEST(KeptFileTest, NoDescriptorLeftIsAnError) {
#ifdef TIDEPOOL_SANITIZED
  GTEST_SKIP() << "under a sanitizer";
#endif
  TempPath path;
  rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit low = {.rlim_cur = 3, .rlim_max = old.rlim_max};
  KeptWorld world({.path = path.str()});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const Status status = world.Open();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path.str()));
  ExpectOpens(world);
}

// A file larger than the process may make: an error, not a signal.
TEST(KeptFileTest, TheLimitOfFileSizesIsAnError) {
  TempPath path;
  rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit low = {.rlim_cur = 64 << 10, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  for (const bool keep : {false, true}) {
    KeptWorld world({.slots = 64, .store = {.keep = keep}, .path = path.str()});
    const Status status = world.Open();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("RLIMIT_FSIZE"));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
}

}  // namespace
}  // namespace tidepool::testing
