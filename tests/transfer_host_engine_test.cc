// The host engine: bytes, order, cancelling, failure, destruction.
#include "tidepool/transfer/host_engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/transfer_rig.h"

namespace tidepool::testing {
namespace {

using namespace std::chrono_literals;

// Waits for another thread, with a limit that only a hang reaches.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto give_up = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(100us);
  }
  return true;
}

struct Shape {
  std::uint32_t layers;
  std::uint64_t layer_bytes;
};

class HostEngineShapeTest : public ::testing::TestWithParam<Shape> {};

TEST_P(HostEngineShapeTest, BytesSurviveEveryDirection) {
  Rig rig({.slots = 4, .layers = GetParam().layers, .layer_bytes = GetParam().layer_bytes});
  rig.Start();
  rig.Fill(kHbm, 1, 11);
  EXPECT_EQ(rig.Copy(kHbm, 1, kDram, 2), TransferResult::kOk);
  EXPECT_TRUE(rig.Holds(kDram, 2, 11));
  EXPECT_EQ(rig.Copy(kDram, 2, kNvme, 3), TransferResult::kOk);
  rig.Fill(kDram, 2, 12);
  EXPECT_EQ(rig.Copy(kNvme, 3, kDram, 0), TransferResult::kOk);
  EXPECT_TRUE(rig.Holds(kDram, 0, 11));
  EXPECT_EQ(rig.Copy(kNvme, 3, kHbm, 3), TransferResult::kOk);
  EXPECT_TRUE(rig.Holds(kHbm, 3, 11));
  EXPECT_EQ(rig.Copy(kHbm, 3, kNvme, 0), TransferResult::kOk);
  EXPECT_EQ(rig.Copy(kDram, 0, kHbm, 0), TransferResult::kOk);
  EXPECT_TRUE(rig.Holds(kHbm, 0, 11));
  EXPECT_TRUE(rig.Holds(kDram, 2, 12));
  EXPECT_EQ(rig.engine().QueuedBytes(kDram, kNvme), 0u);
}

INSTANTIATE_TEST_SUITE_P(Transfer, HostEngineShapeTest,
                         ::testing::Values(Shape{1, 64}, Shape{2, 40}, Shape{3, 6144},
                                           Shape{4, 4096}, Shape{5, 100'003}, Shape{2, 5u << 20},
                                           Shape{80, 32u << 10}));

TEST(HostEngineTest, TransferBetweenArenasWithGapsBetweenLayers) {
  Rig rig({.slots = 4, .layers = 3, .layer_bytes = 20'000});
  for (TierIndex tier : {kHbm, kDram}) {
    // Layer-first, as engines register their own tensors: every slot of a layer, then the next.
    const Arena whole = *AllocateHostArena(1, 3, 4 * 20'032);
    Arena& arena = rig.tier(tier).arena;
    arena.layer_base = whole.layer_base;
    arena.slot_stride_bytes = 20'032;
    arena.owner = whole.owner;
  }
  rig.Start();
  for (std::uint32_t slot = 0; slot < 4; ++slot) rig.Fill(kHbm, slot, slot);
  EXPECT_EQ(rig.Copy(kHbm, 2, kDram, 1), TransferResult::kOk);
  EXPECT_TRUE(rig.Holds(kDram, 1, 2));
  EXPECT_EQ(rig.Copy(kHbm, 3, kNvme, 1), TransferResult::kOk);
  EXPECT_EQ(rig.Copy(kNvme, 1, kHbm, 1), TransferResult::kOk);
  EXPECT_TRUE(rig.Holds(kHbm, 1, 3));
  EXPECT_TRUE(rig.Holds(kHbm, 0, 0));
  EXPECT_TRUE(rig.Holds(kHbm, 2, 2));
}

TEST(HostEngineTest, TransferReportsLayersAsTheyArrive) {
  Rig rig({.slots = 2, .layers = 8, .layer_bytes = 1u << 20});
  rig.Start();
  rig.Fill(kDram, 0, 5);
  EXPECT_EQ(rig.Copy(kDram, 0, kHbm, 0), TransferResult::kOk);
  EXPECT_EQ(rig.progress(), 1u) << "two chunks of 4 MiB";
  EXPECT_EQ(rig.Copy(kDram, 0, kNvme, 0), TransferResult::kOk);
  EXPECT_EQ(rig.Copy(kNvme, 0, kHbm, 1), TransferResult::kOk);
  EXPECT_GE(rig.progress(), 3u);
  EXPECT_TRUE(rig.Holds(kHbm, 1, 5));
}

TEST(HostEngineTest, TransferRefusesWhatTheQueueCannotTake) {
  Rig rig({.max_queued_copies = 3});
  FaultFileIo& file = rig.StartOnFaultFile();
  file.Hold();
  std::vector<CopyRequest> batch;
  for (std::uint32_t i = 0; i < 5; ++i) batch.push_back(rig.Request(kDram, i, kNvme, i));
  EXPECT_EQ(rig.engine().Submit(batch), 3u);
  EXPECT_EQ(rig.engine().QueuedBytes(kDram, kNvme), 3 * 4 * 4096u);
  file.Resume();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rig.Await(batch[i].id), TransferResult::kOk);
  EXPECT_EQ(rig.engine().Submit(std::span(batch).subspan(3)), 2u);
  EXPECT_EQ(rig.Await(batch[4].id), TransferResult::kOk);
}

TEST(HostEngineTest, TransferOfUnknownPlacesFails) {
  Rig rig;
  rig.Start();
  EXPECT_FALSE(rig.engine().Supports(kHbm, kHbm));
  EXPECT_FALSE(rig.engine().Supports(kHbm, 3));
  EXPECT_FALSE(rig.engine().Supports(200, 1));
  EXPECT_EQ(rig.Copy(kHbm, 0, 5, 0), TransferResult::kFailed);
  EXPECT_EQ(rig.Copy(kHbm, 16, kDram, 0), TransferResult::kFailed);
  EXPECT_EQ(rig.Copy(kHbm, 0, kDram, 16), TransferResult::kFailed);
  EXPECT_FALSE(rig.engine().Wait(1h)) << "nothing is in flight";
  rig.engine().Cancel(TransferId(12345));
  rig.engine().OnSlotFreed(kNvme, SlotId(99));
  EXPECT_EQ(rig.Copy(kNvme, 0, kHbm, 0), TransferResult::kFailed) << "nothing was written there";
}

TEST(HostEngineTest, TransferClassesAreStrictAndBackgroundKeepsToOneChunk) {
  Rig rig({.slots = 16, .layers = 2, .layer_bytes = 1u << 20});
  FaultFileIo& file = rig.StartOnFaultFile();
  file.Hold();
  for (std::uint32_t i = 0; i < 6; ++i) rig.Submit(kDram, i, kNvme, i, TransferClass::kSpill);
  ASSERT_TRUE(Eventually([&] { return file.held() == 4; })) << "4 MiB of background in flight";
  const CopyRequest shadow = rig.Request(kDram, 6, kNvme, 6, TransferClass::kShadowCopy);
  CopyRequest urgent = rig.Request(kDram, 7, kNvme, 7, TransferClass::kShadowCopy);
  urgent.deadline = TimePoint{1ns};
  rig.Submit(shadow);
  rig.Submit(urgent);
  const TransferId load = rig.Submit(kDram, 8, kNvme, 8);
  // The load starts at once, and nothing joins the background that was there.
  ASSERT_TRUE(Eventually([&] { return file.held() == 6; }));
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(file.held(), 6u);
  file.Release();
  EXPECT_EQ(rig.Await(load), TransferResult::kOk);
  ASSERT_TRUE(Eventually([&] { return file.held() > 0; }));
  file.Resume();
  rig.Await(shadow.id);
  std::vector<std::uint64_t> slots;
  for (const FileOp& op : file.started()) slots.push_back(op.offset >> 21);
  ASSERT_GE(slots.size(), 10u);
  EXPECT_EQ(std::vector(slots.begin(), slots.begin() + 10),
            (std::vector<std::uint64_t>{0, 0, 1, 1, 8, 8, 7, 7, 6, 6}));
}

TEST(HostEngineTest, TransferWithDemandInFlightStartsOneBackgroundChunkAtATime) {
  Rig rig({.slots = 16, .layers = 1, .layer_bytes = 1u << 20});
  FaultFileIo& file = rig.StartOnFaultFile();
  file.Hold();
  rig.Submit(kDram, 0, kNvme, 0);
  for (std::uint32_t i = 1; i < 6; ++i) rig.Submit(kDram, i, kNvme, i, TransferClass::kSpill);
  ASSERT_TRUE(Eventually([&] { return file.held() == 2; }));
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(file.held(), 2u);
  file.Resume();
}

TEST(HostEngineTest, TransferCancelledWhileQueuedNeverStarts) {
  Rig rig({.slots = 16, .layers = 4, .layer_bytes = 1u << 20});
  FaultFileIo& file = rig.StartOnFaultFile();
  file.Hold();
  const TransferId first = rig.Submit(kDram, 0, kNvme, 0, TransferClass::kSpill);
  const TransferId queued = rig.Submit(kDram, 1, kNvme, 1, TransferClass::kSpill);
  ASSERT_TRUE(Eventually([&] { return file.held() == 4; }));
  rig.engine().Cancel(queued);
  EXPECT_EQ(rig.Await(queued), TransferResult::kCancelled);
  file.Resume();
  EXPECT_EQ(rig.Await(first), TransferResult::kOk);
  EXPECT_EQ(file.started().size(), 4u);
}

// S64: a cancelled copy keeps its memory until the kernel has let go of it.
TEST(HostEngineTest, S64TransferCancelledWhileRunningEndsWithItsLastChunk) {
  Rig rig({.slots = 4, .layers = 8, .layer_bytes = 1u << 20});
  FaultFileIo& file = rig.StartOnFaultFile();
  file.Hold();
  const TransferId partly = rig.Submit(kDram, 0, kNvme, 0, TransferClass::kSpill);
  ASSERT_TRUE(Eventually([&] { return file.held() == 4; }));
  rig.engine().Cancel(partly);
  EXPECT_FALSE(rig.engine().Wait(5ms));
  file.Release();
  EXPECT_EQ(rig.Await(partly), TransferResult::kCancelled);
  EXPECT_EQ(file.started().size(), 4u);

  const TransferId whole = rig.Submit(kDram, 1, kNvme, 1);
  ASSERT_TRUE(Eventually([&] { return file.held() == 8; }));
  rig.engine().Cancel(whole);
  EXPECT_FALSE(rig.engine().Wait(5ms));
  file.Release();
  EXPECT_EQ(rig.Await(whole), TransferResult::kOk) << "too late to cancel";
}

// S62: short transfers go on where they stopped; the end of the file is a failure.
TEST(HostEngineTest, S62TransferGoesOnAfterShortReadsAndWrites) {
  Rig rig({.slots = 2, .layers = 1, .layer_bytes = 1u << 20});
  FaultFileIo& file = rig.StartOnFaultFile();
  rig.Fill(kDram, 0, 62);
  file.Script(true, {4096, 300'000, 1 << 20});
  EXPECT_EQ(rig.Copy(kDram, 0, kNvme, 0), TransferResult::kOk);
  EXPECT_EQ(file.started().size(), 3u);
  file.Script(false, {4096, 300'000, 1 << 20});
  EXPECT_EQ(rig.Copy(kNvme, 0, kHbm, 0), TransferResult::kOk);
  EXPECT_EQ(file.started().size(), 6u);
  EXPECT_TRUE(rig.Holds(kHbm, 0, 62));
  EXPECT_EQ(file.started()[2].offset, 304'096u);
}

TEST(HostEngineTest, S62TransferRestartsAtABoundaryWhenDirect) {
  Rig rig({.slots = 2, .layers = 1, .layer_bytes = 1u << 20});
  FaultFileIo& file = rig.StartOnFaultFile({.alignment = 4096});
  rig.Fill(kDram, 0, 63);
  file.Script(true, {4096, 300'000, 1 << 20});
  EXPECT_EQ(rig.Copy(kDram, 0, kNvme, 0), TransferResult::kOk);
  ASSERT_EQ(file.started().size(), 3u);
  EXPECT_EQ(file.started()[2].offset, 303'104u);
  EXPECT_EQ(rig.Copy(kNvme, 0, kHbm, 0), TransferResult::kOk);
  EXPECT_TRUE(rig.Holds(kHbm, 0, 63));
}

TEST(HostEngineTest, S62TransferPastTheEndFailsOnce) {
  Rig rig({.slots = 2, .layers = 1, .layer_bytes = 1u << 20});
  FaultFileIo& file = rig.StartOnFaultFile();
  EXPECT_EQ(rig.Copy(kDram, 1, kNvme, 1), TransferResult::kOk);
  file.Truncate((2u << 20) - 4096);
  const std::size_t before = file.started().size();
  EXPECT_EQ(rig.Copy(kNvme, 1, kHbm, 0), TransferResult::kFailed);
  EXPECT_EQ(file.started().size(), before + 2) << "the short part, then the end";
  EXPECT_EQ(rig.log().Count(LogLevel::kError, "end of file"), 1u);
}

TEST(HostEngineTest, TransferWithoutProgressGivesUp) {
  Rig rig({.layers = 1});
  FaultFileIo& file = rig.StartOnFaultFile({.alignment = 4096});
  file.Script(true, std::vector<std::int64_t>(100, -EAGAIN));
  EXPECT_EQ(rig.Copy(kDram, 0, kNvme, 0), TransferResult::kFailed);
  EXPECT_LT(file.started().size(), 20u);
}

// S63: results are matched by tag.
TEST(HostEngineTest, S63TransferCompletionsInReverse) {
  Rig rig({.layers = 1});
  FaultFileIo& file = rig.StartOnFaultFile();
  for (std::uint32_t i = 0; i < 3; ++i) {
    rig.Fill(kDram, i, 100 + i);
    ASSERT_EQ(rig.Copy(kDram, i, kNvme, i), TransferResult::kOk);
  }
  file.Hold();
  std::vector<TransferId> loads;
  for (std::uint32_t i = 0; i < 3; ++i) loads.push_back(rig.Submit(kNvme, i, kHbm, 5 + i));
  ASSERT_TRUE(Eventually([&] { return file.held() == 3; }));
  file.Release(true);
  for (TransferId load : loads) EXPECT_EQ(rig.Await(load), TransferResult::kOk);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(rig.Holds(kHbm, 5 + i, 100 + i));
  const auto& order = rig.order();
  EXPECT_EQ(std::vector(order.end() - 3, order.end()), (std::vector{loads[2], loads[1], loads[0]}));
}

// S65: what direct I/O cannot take goes through an aligned buffer; the file is padded.
TEST(HostEngineTest, S65TransferFromMisalignedMemory) {
  Rig rig({.slots = 3, .layers = 1, .layer_bytes = 18'432});
  const Arena block = *AllocateHostArena(4, 1, 18'432);
  Arena& arena = rig.tier(kDram).arena;
  arena = block;
  arena.layer_base[0] += 512;
  arena.slot_stride_bytes = 18'432;  // no room for padding between slots
  FaultFileIo& file = rig.StartOnFaultFile({.alignment = 4096});
  EXPECT_EQ(file.file_bytes(), 3 * 20'480u);
  for (std::uint32_t i = 0; i < 3; ++i) rig.Fill(kDram, i, i);
  EXPECT_EQ(rig.Copy(kDram, 1, kNvme, 2), TransferResult::kOk);
  rig.Fill(kDram, 1, 77);
  EXPECT_EQ(rig.Copy(kNvme, 2, kDram, 1), TransferResult::kOk);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(rig.Holds(kDram, i, i));
  EXPECT_EQ(rig.Copy(kNvme, 2, kHbm, 0), TransferResult::kOk);  // aligned: no bounce
  EXPECT_TRUE(rig.Holds(kHbm, 0, 1));
  for (const FileOp& op : file.started()) {
    EXPECT_EQ(op.bytes, 20'480u);
    EXPECT_EQ(op.offset, 2 * 20'480u);
  }
  EXPECT_EQ(file.started().back().data, rig.tier(kHbm).arena.At(SlotId(0), 0));
}

TEST(HostEngineTest, TransferOfACorruptPayloadFails) {
  Rig rig;
  FaultFileIo& file = rig.StartOnFaultFile();
  rig.Fill(kDram, 0, 1);
  ASSERT_EQ(rig.Copy(kDram, 0, kNvme, 3), TransferResult::kOk);
  file.FlipBit(3 * 16384 + 9000);
  EXPECT_EQ(rig.Copy(kNvme, 3, kHbm, 0), TransferResult::kFailed);
  EXPECT_EQ(rig.log().Count(LogLevel::kError, "checksum mismatch"), 1u);
  ASSERT_EQ(rig.Copy(kDram, 0, kNvme, 3), TransferResult::kOk);
  EXPECT_EQ(rig.Copy(kNvme, 3, kHbm, 0), TransferResult::kOk);
  rig.engine().OnSlotFreed(kNvme, SlotId(3));
  EXPECT_EQ(rig.Copy(kNvme, 3, kHbm, 0), TransferResult::kFailed) << "the slot was given up";
}

TEST(HostEngineTest, TransferErrorsAreLoggedSparingly) {
  Rig rig;
  FaultFileIo& file = rig.StartOnFaultFile();
  file.Script(true, std::vector<std::int64_t>(100, -ENOSPC));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(rig.Copy(kDram, 0, kNvme, 0), TransferResult::kNoSpace);
  }
  EXPECT_EQ(rig.log().Count(LogLevel::kError, "No space left on device"), 7u);
  EXPECT_EQ(rig.Copy(kNvme, 0, kDram, 0), TransferResult::kFailed) << "a failed write is no copy";
}

TEST(HostEngineTest, TransferUnderRandomFaultsIsRightOrFails) {
  Rig rig({.slots = 16, .layers = 3, .layer_bytes = 700'000});
  FaultFileIo& file = rig.StartOnFaultFile(
      {.alignment = 512,
       .faults = {.error = 0.03, .short_transfer = 0.2, .flip = 0.05, .delay = 0.5},
       .seed = 7});
  int good = 0;
  int bad = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<TransferId> ids;
    for (std::uint32_t i = 0; i < 4; ++i) {
      rig.Fill(kDram, i, static_cast<std::uint32_t>(round) * 4 + i);
      ids.push_back(rig.Submit(kDram, i, kNvme, i, TransferClass::kSpill));
    }
    std::vector<TransferResult> written;
    for (TransferId id : ids) written.push_back(rig.Await(id));
    for (std::uint32_t i = 0; i < 4; ++i) {
      const TransferResult read = rig.Copy(kNvme, i, kHbm, i);
      if (read == TransferResult::kOk) {
        EXPECT_EQ(written[i], TransferResult::kOk);
        EXPECT_TRUE(rig.Holds(kHbm, i, static_cast<std::uint32_t>(round) * 4 + i));
        ++good;
      } else {
        EXPECT_EQ(read, TransferResult::kFailed);
        ++bad;
      }
    }
  }
  EXPECT_GT(good, 0);
  EXPECT_GT(bad, 0);
  EXPECT_GT(file.started().size(), 0u);
}

TEST(HostEngineTest, TransferEstimatesGoFromPriorToMeasured) {
  Rig rig({.slots = 2, .layers = 1, .layer_bytes = 1u << 20});
  rig.Start();
  const TransferEstimate prior = rig.engine().EstimateCost(kHbm, kDram, 1u << 20);
  EXPECT_EQ(prior.method, "prior");
  EXPECT_NEAR(static_cast<double>(prior.time.count()), 1'048'576, 1000);
  EXPECT_EQ(prior.margin, prior.time / 2);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(rig.Copy(kHbm, 0, kDram, 0), TransferResult::kOk);
  const TransferEstimate measured = rig.engine().EstimateCost(kHbm, kDram, 1u << 20);
  EXPECT_EQ(measured.method, "measured");
  EXPECT_GT(measured.time, 0ns);
  EXPECT_GT(rig.engine().BytesPerSecond(kHbm, kDram), 0);
  EXPECT_EQ(rig.engine().EstimateCost(kHbm, 4, 1).method, "unsupported");
}

TEST(HostEngineTest, TransferBackendIsNamedOnceAtTheStart) {
  Rig rig;
  rig.Start();
  EXPECT_EQ(rig.log().Count(LogLevel::kInfo, "pread/pwrite"), 1u);
  EXPECT_NE(rig.engine().Describe().find("memory copies x1"), std::string::npos);
}

TEST(HostEngineTest, TransferAttachNamesTheTierThatIsWrong) {
  const auto problem = [](auto change) {
    Rig rig;
    change(rig);
    auto file = std::make_unique<FaultFileIo>(FaultFileOptions{.disk_bytes = 1u << 20});
    const Status status = rig.TryStart(std::move(file));
    return status.ok() ? std::string("ok") : std::string(status.message());
  };
  EXPECT_EQ(problem([](Rig&) {}), "ok");
  EXPECT_NE(problem([](Rig& rig) { rig.tier(kNvme).slots = 1000; }).find("No space left"),
            std::string::npos);
  EXPECT_NE(problem([](Rig& rig) { rig.tier(kNvme).path.clear(); }).find("tier 2 (nvme)"),
            std::string::npos);
  EXPECT_NE(
      problem([](Rig& rig) { rig.tier(kDram).slots = 17; }).find("tier 1 (dram): arena of 16"),
      std::string::npos);
  EXPECT_NE(problem([](Rig& rig) { rig.tier(kHbm).layers = 3; }).find("tier 0 (hbm)"),
            std::string::npos);
  EXPECT_NE(problem([](Rig& rig) { rig.tier(kHbm).slots = 0; }).find("no slots"),
            std::string::npos);
  EXPECT_NE(problem([](Rig& rig) {
              rig.tier(kDram).arena = {};
              rig.tier(kDram).path = "x";
            }).find("second file"),
            std::string::npos);
}

TEST(HostEngineTest, TransferStressInAllDirectionsWithCancels) {
  Rig rig({.slots = 24, .layers = 2, .layer_bytes = 300'000, .copy_threads = 3});
  rig.Start(MakeThreadFileIo(3));
  for (std::uint32_t slot = 0; slot < 24; ++slot) rig.Fill(kHbm, slot, slot);
  std::mt19937 random(3);
  std::vector<TransferId> ids;
  // Slots 0-7 go HBM to DRAM, 8-15 DRAM to file, 16-23 HBM to file and back into HBM.
  for (int round = 0; round < 20; ++round) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const auto cls = static_cast<TransferClass>(random() % kTransferClassCount);
      ids.push_back(rig.Submit(kHbm, i, kDram, i, cls));
      ids.push_back(rig.Submit(kDram, 8 + i, kNvme, 8 + i, cls));
      ids.push_back(rig.Submit(kHbm, 16 + i, kNvme, 16 + i, cls));
      if (random() % 3 == 0) rig.engine().Cancel(ids[random() % ids.size()]);
      rig.PollOnce();
    }
    while (rig.engine().Wait(10s)) rig.PollOnce();
  }
  for (TransferId id : ids) EXPECT_TRUE(rig.Ended(id));
  for (std::uint32_t i = 16; i < 24; ++i) {
    ASSERT_EQ(rig.Copy(kHbm, i, kNvme, i), TransferResult::kOk);
    EXPECT_EQ(rig.Copy(kNvme, i, kDram, i), TransferResult::kOk);
    EXPECT_TRUE(rig.Holds(kDram, i, i));
  }
}

// S85: destruction cancels what waits, finishes what runs, and joins.
TEST(HostEngineTest, S85TransferDestructionInFlightReturns) {
  for (int i = 0; i < 100; ++i) {
    Rig rig({.slots = 8, .layers = 2, .layer_bytes = 64u << 10, .copy_threads = 2});
    rig.Start();
    if (i % 2 == 0) {
      for (std::uint32_t slot = 0; slot < 8; ++slot) {
        rig.Submit(kHbm, slot, kDram, slot, TransferClass::kSpill);
        rig.Submit(kHbm, slot, kNvme, slot, TransferClass::kSpill);
      }
    }
    if (i % 4 == 0) rig.PollOnce();
    rig.Stop();
  }
  MakeHostEngine().reset();  // never attached
}

}  // namespace
}  // namespace tidepool::testing
