// Kept files on what only root can make: a block device, a file system without room, one that is
// read-only. Skipped where that cannot be had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/kept_world.h"
#include "tests/support/transfer_rig.h"

namespace tidepool::testing {
namespace {

using ::testing::HasSubstr;

bool Shell(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

/// A loop device over a temporary file; empty if there can be none.
class LoopDevice {
 public:
  explicit LoopDevice(std::uint64_t bytes) {
    std::fclose(std::fopen(backing_.str().c_str(), "w"));
    std::filesystem::resize_file(backing_.str(), bytes);
    std::FILE* const pipe =
        ::popen(("losetup -f --show '" + backing_.str() + "' 2>/dev/null").c_str(), "r");
    char line[128] = {};
    if (std::fgets(line, sizeof(line), pipe) != nullptr) path_ = line;
    ::pclose(pipe);
    while (!path_.empty() && path_.back() == '\n') path_.pop_back();
  }
  ~LoopDevice() {
    if (!path_.empty()) (void)Shell("losetup -d " + path_);
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  TempPath backing_;
  std::string path_;
};

/// A tmpfs of so many KiB; empty if there can be none.
class SmallDisk {
 public:
  explicit SmallDisk(int kib) {
    std::filesystem::create_directory(path_.str());
    mounted_ = Shell("mount -t tmpfs -o size=" + std::to_string(kib) + "k tmpfs " + path_.str());
  }
  ~SmallDisk() {
    if (mounted_) (void)Shell("umount " + path_.str());
    std::error_code ignored;
    std::filesystem::remove(path_.str(), ignored);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] bool Remount(const std::string& mode) const {
    return Shell("mount -o remount," + mode + " " + path_.str());
  }
  [[nodiscard]] std::string file() const { return path_.str() + "/kept"; }

 private:
  TempPath path_;
  bool mounted_ = false;
};

TEST(KeptFileDeviceTest, ARawBlockDevice) {
  const LoopDevice device(1u << 20);
  if (device.path().empty()) GTEST_SKIP() << "no loop device can be made here";
  KeptWorld world({.path = device.path()});
  ASSERT_EQ(world.Open(), absl::OkStatus());
  const auto text = KeptWorld::Text(1, 17);
  EXPECT_EQ(world.Store(text), 4);
  ASSERT_EQ(world.Open(), absl::OkStatus());
  EXPECT_EQ(world.manager().recovery().recovered, 4u);
  EXPECT_EQ(world.Serve(text), 16);
  world.options().slots = 100'000;
  world.options().store.identity = "another";
  EXPECT_EQ(world.Open().code(), absl::StatusCode::kFailedPrecondition) << "it is taken";
  world.Close();
  ASSERT_TRUE(Shell("dd if=/dev/zero bs=4096 count=1 of=" + device.path()));
  const Status status = world.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 1048576 bytes"));
  world.options().slots = 16;
  ASSERT_EQ(world.Open(), absl::OkStatus());
  EXPECT_EQ(world.manager().recovery().recovered, 0u) << "old headers do not count";
  EXPECT_EQ(world.manager().recovery().empty, 16u);
}

// S67: a file system that has no room for the file.
TEST(KeptFileDeviceTest, S67AFileSystemWithoutRoom) {
  const SmallDisk disk(256);
  if (!disk.mounted()) GTEST_SKIP() << "no tmpfs can be mounted here";
  KeptWorld world({.slots = 1000, .path = disk.file()});
  const Status status = world.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(disk.file()));
  world.options().slots = 16;
  ASSERT_EQ(world.Open(), absl::OkStatus()) << "and a smaller one fits";
  EXPECT_EQ(world.Store(KeptWorld::Text(1, 16)), 4);
}

TEST(KeptFileDeviceTest, AReadOnlyFileSystem) {
  const SmallDisk disk(256);
  if (!disk.mounted()) GTEST_SKIP() << "no tmpfs can be mounted here";
  KeptWorld world({.path = disk.file()});
  ASSERT_EQ(world.Open(), absl::OkStatus());
  world.Store(KeptWorld::Text(1, 16));
  world.Close();
  ASSERT_TRUE(disk.Remount("ro"));
  const Status status = world.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  ASSERT_TRUE(disk.Remount("rw"));
  ASSERT_EQ(world.Open(), absl::OkStatus());
  EXPECT_EQ(world.manager().recovery().recovered, 4u);
}

}  // namespace
}  // namespace tidepool::testing
