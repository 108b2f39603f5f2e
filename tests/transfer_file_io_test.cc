// The file operations below the NVMe tier: threads, io_uring where it was built, and the fake.
#include "tidepool/transfer/file_io.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/transfer_rig.h"
#include "tidepool/testing/fault_file_io.h"
#include "tidepool/tier.h"
#if defined(TIDEPOOL_HAVE_URING)
#include "tidepool/transfer/uring_file_io.h"
#endif

namespace tidepool::testing {
namespace {

constexpr std::uint64_t kBlock = 64u << 10;
constexpr std::uint32_t kBlocks = 64;

struct Backend {
  const char* name;
  std::unique_ptr<FileIo> (*make)();
};

class TransferFileIoTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    io_ = GetParam().make();
    const Status status = io_->Open(path_.str(), kBlocks * kBlock);
    ASSERT_TRUE(status.ok()) << status;
    arena_ = *AllocateHostArena(kBlocks, 1, kBlock);
    const std::span<std::byte> region(arena_.layer_base[0], kBlocks * kBlock);
    io_->RegisterMemory({&region, 1});
  }
  FileOp Op(bool write, std::uint32_t slot, std::uint32_t block) {
    return {.tag = 1000 + block,
            .write = write,
            .data = arena_.At(SlotId(slot), 0),
            .bytes = kBlock,
            .offset = block * kBlock};
  }
  // Runs all ops, however many Start takes at a time, and returns their results by block.
  std::vector<std::int64_t> RunAll(std::vector<FileOp> ops) {
    std::vector<std::int64_t> results(kBlocks, -1);
    std::size_t ended = 0;
    std::size_t started = 0;
    std::vector<FileOpResult> reaped;
    while (ended < ops.size()) {
      const std::size_t now = io_->Start(std::span(ops).subspan(started));
      started += now;
      EXPECT_LE(started - ended, io_->Depth());
      reaped.clear();
      io_->Reap(reaped, true);
      for (const FileOpResult& result : reaped) results[result.tag - 1000] = result.result;
      ended += reaped.size();
    }
    return results;
  }

  TempPath path_;
  Arena arena_;
  std::unique_ptr<FileIo> io_;
};

TEST_P(TransferFileIoTest, WritesAndReadsBack) {
  std::vector<FileOp> ops;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    std::memset(arena_.At(SlotId(i), 0), static_cast<int>(i + 1), kBlock);
    ops.push_back(Op(true, i, i));
  }
  for (std::int64_t result : RunAll(ops)) EXPECT_EQ(result, static_cast<std::int64_t>(kBlock));
  std::memset(arena_.At(SlotId(0), 0), 0, kBlocks * kBlock);
  ops.clear();
  for (std::uint32_t i = 0; i < kBlocks; ++i) ops.push_back(Op(false, kBlocks - 1 - i, i));
  for (std::int64_t result : RunAll(ops)) EXPECT_EQ(result, static_cast<std::int64_t>(kBlock));
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(*arena_.At(SlotId(kBlocks - 1 - i), 0), static_cast<std::byte>(i + 1));
  }
}

TEST_P(TransferFileIoTest, MemoryThatIsNotRegisteredWorksToo) {
  const Arena other = *AllocateHostArena(1, 1, kBlock);
  std::memset(other.At(SlotId(0), 0), 9, kBlock);
  FileOp op = Op(true, 0, 3);
  op.data = other.At(SlotId(0), 0);
  EXPECT_EQ(RunAll({op})[3], static_cast<std::int64_t>(kBlock));
  EXPECT_EQ(RunAll({Op(false, 7, 3)})[3], static_cast<std::int64_t>(kBlock));
  EXPECT_EQ(*arena_.At(SlotId(7), 0), std::byte{9});
}

TEST_P(TransferFileIoTest, PastTheEndThereIsNothing) {
  EXPECT_EQ(RunAll({Op(false, 0, kBlocks - 1)})[kBlocks - 1], static_cast<std::int64_t>(kBlock));
  FileOp op = Op(false, 0, 0);
  op.offset = kBlocks * kBlock;
  EXPECT_EQ(RunAll({op})[0], 0);
}

// Neighbours may be moved together: each has its own result all the same.
TEST_P(TransferFileIoTest, NeighboursAtTheEndOfTheFile) {
  std::vector<FileOp> ops;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    std::memset(arena_.At(SlotId(i), 0), static_cast<int>(i + 1), kBlock);
    ops.push_back(Op(true, i, i));
  }
  for (std::int64_t result : RunAll(ops)) EXPECT_EQ(result, static_cast<std::int64_t>(kBlock));
  std::memset(arena_.At(SlotId(0), 0), 0, kBlocks * kBlock);
  // Into memory that is not contiguous, and beyond the end.
  ops.clear();
  for (std::uint32_t i = 0; i < 6; ++i) {
    FileOp op = Op(false, 2 * i, i);
    op.offset = (kBlocks - 3 + i) * kBlock;
    ops.push_back(op);
  }
  std::vector<std::int64_t> results = RunAll(ops);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(results[i], static_cast<std::int64_t>(kBlock));
    EXPECT_EQ(*arena_.At(SlotId(2 * i), 0), static_cast<std::byte>(kBlocks - 3 + i + 1));
    EXPECT_EQ(*arena_.At(SlotId(2 * i + 1), 0), std::byte{0});
  }
  for (std::uint32_t i = 3; i < 6; ++i) {
    if (results[i] == -EAGAIN) results[i] = RunAll({ops[i]})[i];
    EXPECT_EQ(results[i], 0);
  }
}

TEST_P(TransferFileIoTest, AlignmentIsWhatTheFileSystemSays) {
  EXPECT_GE(io_->Alignment(), 1u);
  EXPECT_EQ(4096 % io_->Alignment(), 0u);
  EXPECT_FALSE(io_->Describe().empty());
}

TEST_P(TransferFileIoTest, ReapWithNothingInFlightReturns) {
  std::vector<FileOpResult> results;
  io_->Reap(results, true);
  io_->Reap(results, false);
  EXPECT_TRUE(results.empty());
}

TEST_P(TransferFileIoTest, WakeIsRemembered) {
  // Nothing here can be made to block, but neither order may hang, and results must not get lost.
  for (int i = 0; i < 50; ++i) {
    std::thread other([this] { io_->Wake(); });
    io_->Wake();
    EXPECT_EQ(RunAll({Op(true, 1, 1), Op(true, 2, 2)})[2], static_cast<std::int64_t>(kBlock));
    other.join();
  }
}

TEST_P(TransferFileIoTest, DestructionWithOpsInFlightWaitsForThem) {
  std::vector<FileOp> ops;
  for (std::uint32_t i = 0; i < 8; ++i) ops.push_back(Op(false, i, i));
  io_->Start(ops);
  io_.reset();
}

std::unique_ptr<FileIo> MakeThreads() { return MakeThreadFileIo(3); }
std::unique_ptr<FileIo> MakeFault() {
  return std::make_unique<FaultFileIo>(FaultFileOptions{.faults = {.delay = 0.3}});
}
constexpr Backend kThreads{"threads", MakeThreads};
constexpr Backend kFault{"fault", MakeFault};
std::string NameOf(const ::testing::TestParamInfo<Backend>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Portable, TransferFileIoTest, ::testing::Values(kThreads, kFault), NameOf);

TEST(TransferThreadFileTest, FileIsPrivateAndPreallocated) {
  TempPath path;
  ASSERT_TRUE(MakeThreadFileIo(1)->Open(path.str(), 1u << 20).ok());
  struct stat info = {};
  ASSERT_EQ(::stat(path.str().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(info.st_size, 1 << 20);
}

TEST(TransferThreadFileTest, OpenErrorsNamePathAndSize) {
  auto io = MakeThreadFileIo(1);
  Status status = io->Open("/no/such/directory/kv", 4096);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/no/such/directory/kv"), std::string::npos);
  TempPath path;
  EXPECT_EQ(io->Open(path.str(), 0).code(), absl::StatusCode::kInvalidArgument);
  status = io->Open(path.str(), std::uint64_t{1} << 62);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("4611686018427387904 bytes"), std::string::npos);
  struct stat info = {};
  EXPECT_NE(::stat(path.str().c_str(), &info), 0) << "nothing is left behind";
  EXPECT_TRUE(io->Open(path.str(), 4096).ok()) << "and it can be tried again";
}

TEST(TransferThreadFileTest, OnlyRegularFilesAreTruncatedOrRemoved) {
  auto io = MakeThreadFileIo(1);
  EXPECT_FALSE(io->Open(::testing::TempDir(), 4096).ok()) << "a directory";
  TempPath path;
  ASSERT_EQ(::mkfifo(path.str().c_str(), 0600), 0);
  const Status status = io->Open(path.str(), 4096);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  struct stat info = {};
  EXPECT_EQ(::stat(path.str().c_str(), &info), 0) << "it is still there";
}

#if defined(TIDEPOOL_HAVE_URING)

std::unique_ptr<FileIo> MakeUring() { return MakeUringFileIo(); }
std::unique_ptr<FileIo> MakeUnregistered() { return MakeUringFileIo({.register_buffers = false}); }
std::unique_ptr<FileIo> MakeRefused() {
  return MakeUringFileIo({.forced_error = [](std::uint32_t) { return EPERM; }});
}
std::unique_ptr<FileIo> MakePolled() { return MakeUringFileIo({.poll_submissions = true}); }
constexpr Backend kPolled{"uring_polled", MakePolled};
constexpr Backend kUring{"uring", MakeUring};
constexpr Backend kUnregistered{"uring_unregistered", MakeUnregistered};
constexpr Backend kRefused{"uring_refused", MakeRefused};
INSTANTIATE_TEST_SUITE_P(Uring, TransferFileIoTest,
                         ::testing::Values(kUring, kUnregistered, kPolled, kRefused), NameOf);

// S66: the ring cannot be created.
TEST(TransferUringTest, S66ASmallerRingWhereMemoryIsShort) {
  auto io = MakeUringFileIo({.depth = 1024, .forced_error = [](std::uint32_t entries) {
                               return entries > 256 ? ENOMEM : 0;
                             }});
  TempPath path;
  ASSERT_TRUE(io->Open(path.str(), 1u << 20).ok());
  if (io->Describe().starts_with("pread")) GTEST_SKIP() << "no io_uring here: " << io->Describe();
  EXPECT_EQ(io->Depth(), 255u);
  EXPECT_NE(io->Describe().find("not enough memory for depth 1024"), std::string::npos);
}

TEST(TransferUringTest, S66ThreadsWhereTheRingIsRefused) {
  for (int (*error)(std::uint32_t) :
       {+[](std::uint32_t) { return EPERM; }, +[](std::uint32_t) { return ENOSYS; },
        +[](std::uint32_t entries) { return entries == 0 ? ENOSYS : 0; },
        +[](std::uint32_t entries) { return entries >= 8 ? ENOMEM : 0; }}) {
    auto file = MakeUringFileIo({.fallback_threads = 2, .forced_error = error});
    EXPECT_NE(file->Describe().find("pread/pwrite"), std::string::npos);
    EXPECT_NE(file->Describe().find("io_uring refused: "), std::string::npos);
    Rig rig;
    rig.Start(std::move(file));
    EXPECT_EQ(rig.log().Count(LogLevel::kInfo, "io_uring refused"), 1u);
    rig.Fill(kDram, 1, 66);
    EXPECT_EQ(rig.Copy(kDram, 1, kNvme, 2), TransferResult::kOk);
    EXPECT_EQ(rig.Copy(kNvme, 2, kHbm, 3), TransferResult::kOk);
    EXPECT_TRUE(rig.Holds(kHbm, 3, 66));
  }
}

TEST(TransferUringTest, S66BuffersThatCannotBeRegistered) {
  auto io = MakeUringFileIo();
  TempPath path;
  ASSERT_TRUE(io->Open(path.str(), 1u << 20).ok());
  if (io->Describe().starts_with("pread")) GTEST_SKIP() << "no io_uring here: " << io->Describe();
  void* const nothing = ::mmap(nullptr, 1u << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  const std::span<std::byte> region(static_cast<std::byte*>(nothing), 1u << 20);
  io->RegisterMemory({&region, 1});
  EXPECT_NE(io->Describe().find("buffers not registered: "), std::string::npos);
  const Arena arena = *AllocateHostArena(1, 1, kBlock);
  const FileOp op{.tag = 1, .write = true, .data = arena.At(SlotId(0), 0), .bytes = kBlock};
  EXPECT_EQ(io->Start({&op, 1}), 1u);
  std::vector<FileOpResult> results;
  while (results.empty()) io->Reap(results, true);
  EXPECT_EQ(results[0].result, static_cast<std::int64_t>(kBlock));
  ::munmap(nothing, 1u << 20);
}

TEST(TransferUringTest, HostEngineOnAUringMovesAndStops) {
  for (int i = 0; i < 20; ++i) {
    Rig rig({.slots = 32, .layers = 2, .layer_bytes = 48u << 10});
    rig.Start(MakeUringFileIo({.depth = 4}));
    std::vector<TransferId> ids;
    for (std::uint32_t slot = 0; slot < 32; ++slot) {
      rig.Fill(kDram, slot, slot);
      ids.push_back(rig.Submit(kDram, slot, kNvme, slot, TransferClass::kSpill));
      if (slot % 8 == 0) std::this_thread::yield();
    }
    for (TransferId id : ids) EXPECT_EQ(rig.Await(id), TransferResult::kOk);
    for (std::uint32_t slot = 0; slot < 32; ++slot)
      ids.push_back(rig.Submit(kNvme, slot, kHbm, slot));
    if (i % 2 == 0) {
      rig.Stop();
      continue;
    }
    for (TransferId id : ids) EXPECT_EQ(rig.Await(id), TransferResult::kOk);
    for (std::uint32_t slot = 0; slot < 32; ++slot) EXPECT_TRUE(rig.Holds(kHbm, slot, slot));
  }
}

#endif  // TIDEPOOL_HAVE_URING

// --- the fake itself ------------------------------------------------------------------------

TEST(TransferFaultFileTest, HeldOpsMoveNoBytesAndWakeInterrupts) {
  FaultFileIo file;
  ASSERT_TRUE(file.Open("memory", 4096).ok());
  std::byte data[16] = {std::byte{1}};
  const FileOp write{.tag = 1, .write = true, .data = data, .bytes = 16};
  file.Hold();
  ASSERT_EQ(file.Start({&write, 1}), 1u);
  std::vector<FileOpResult> results;
  file.Reap(results, false);
  EXPECT_TRUE(results.empty());
  file.Wake();
  file.Reap(results, true);
  EXPECT_TRUE(results.empty());
  EXPECT_EQ(file.Contents(0, 1)[0], std::byte{0});
  data[0] = std::byte{2};  // what the device sees when the buffer is reused too early
  file.Resume();
  file.Reap(results, true);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].result, 16);
  EXPECT_EQ(file.Contents(0, 1)[0], std::byte{2});
}

TEST(TransferFaultFileTest, DiskFullScriptsAndAlignment) {
  FaultFileIo file({.alignment = 8, .disk_bytes = 4096});
  EXPECT_EQ(file.Open("memory", 4097).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(file.Open("memory", 4096).ok());
  alignas(8) std::byte data[32] = {};
  file.Script(false, {5, 0, -EIO});
  const auto run = [&](std::byte* at) {
    const FileOp op{.tag = 1, .data = at, .bytes = 16};
    std::vector<FileOpResult> results;
    file.Start({&op, 1});
    file.Reap(results, true);
    return results.at(0).result;
  };
  EXPECT_EQ(run(data + 1), -EINVAL);
  EXPECT_EQ(run(data), 5);
  EXPECT_EQ(run(data), 0);
  EXPECT_EQ(run(data), -EIO);
  EXPECT_EQ(run(data), 16);
  file.Truncate(8);
  EXPECT_EQ(run(data), 8);
}

}  // namespace
}  // namespace tidepool::testing
