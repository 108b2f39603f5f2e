#include "tests/support/kept_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "tidepool/transfer/slot_file.h"

namespace tidepool::testing {

KeptWorld::KeptWorld(KeptOptions options) : options_(std::move(options)) {}

Status KeptWorld::Open() {
  Close();
  ManagerOptions manager;
  manager.layout =
      KvLayout::Opaque(options_.layers * options_.layer_bytes, kTokens, options_.layers);
  TierSpec hbm = Hbm(HostArena(0));
  hbm.bytes = 0;
  hbm.slots = options_.hbm;
  TierSpec nvme = Nvme(options_.path.empty() ? "memory" : options_.path, 0, options_.store);
  nvme.slots = options_.slots;
  manager.tiers = {hbm, nvme};
  manager.clock = &clock_;
  manager.digest_seed = options_.seed;
  manager.epoch = options_.epoch;
  HostEngineOptions engine;
  if (options_.path.empty()) {
    FaultFileOptions file;
    file.disk = disk_;
    auto io = std::make_unique<FaultFileIo>(file);
    file_ = io.get();
    engine.file_io = std::move(io);
  }
  manager.engine = MakeHostEngine(std::move(engine));
  if (options_.adjust) options_.adjust(manager);
  StatusOr<std::unique_ptr<KvCacheManager>> made = KvCacheManager::Create(std::move(manager));
  if (!made.ok()) {
    file_ = nullptr;
    return made.status();
  }
  manager_ = *std::move(made);
  return manager_->Audit();
}

void KeptWorld::Close() {
  manager_.reset();
  file_ = nullptr;
}

std::vector<Token> KeptWorld::Text(int text, std::uint32_t n) {
  std::vector<Token> tokens(n);
  for (std::uint32_t i = 0; i < n; ++i) tokens[i] = text * 100'000 + static_cast<Token>(i);
  return tokens;
}

std::vector<std::byte> KeptWorld::Bytes(const std::vector<Token>& tokens, std::uint32_t block,
                                        std::uint32_t layer) const {
  std::uint64_t state = layer + 1;
  for (std::uint32_t i = 0; i < (block + 1) * kTokens; ++i) {
    state = (state ^ static_cast<std::uint64_t>(tokens[i])) * 0x9E3779B97F4A7C15u;
  }
  std::vector<std::byte> bytes(options_.layer_bytes);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

void KeptWorld::WriteBlock(SlotId slot, const std::vector<Token>& tokens, std::uint32_t block) {
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    const std::vector<std::byte> bytes = Bytes(tokens, block, layer);
    std::memcpy(manager_->arena(kHbmTier).At(slot, layer), bytes.data(), bytes.size());
  }
}

bool KeptWorld::Holds(SlotId slot, const std::vector<Token>& tokens, std::uint32_t block) {
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    const std::vector<std::byte> bytes = Bytes(tokens, block, layer);
    const std::byte* const at = manager_->arena(kHbmTier).At(slot, layer);
    if (std::memcmp(at, bytes.data(), bytes.size()) != 0) return false;
  }
  return true;
}

int KeptWorld::Serve(const std::vector<Token>& tokens, NamespaceId ns) {
  Admission admission = manager_->Admit({.request = 1, .tokens = tokens, .ns = ns});
  for (int i = 0; i < 8 && admission.outcome == Outcome::kBusy; ++i) {
    manager_->Poll();
    WaitIdle();
    admission = manager_->Admit({.request = 1, .tokens = tokens, .ns = ns});
  }
  if (!admission.granted()) {
    ADD_FAILURE() << "not admitted: " << ToString(admission.outcome);
    return -1;
  }
  Sequence& sequence = admission.sequence;
  if (admission.ticket.WaitReady() == Outcome::kLoadFailed) {  // cut back: append it again
    const std::span<const Token> rest = std::span(tokens).subspan(sequence.tokens());
    const Outcome appended =
        sequence.Append(rest) == Outcome::kLoadFailed ? sequence.Append(rest) : Outcome::kOk;
    EXPECT_EQ(appended, Outcome::kOk);
  }
  const std::uint32_t reused = sequence.committed() / kTokens;
  const BlockTable table = sequence.block_table();
  for (std::uint32_t i = 0; i < tokens.size() / kTokens; ++i) {
    const SlotId slot(table.slots[i]);
    if (i >= reused) {
      WriteBlock(slot, tokens, i);
    } else if (!Holds(slot, tokens, i)) {
      ADD_FAILURE() << "block " << i << ": reused bytes are wrong";
      return -1;
    }
  }
  EXPECT_EQ(sequence.Commit(static_cast<std::uint32_t>(tokens.size()), Fence::Done()),
            Outcome::kOk);
  EXPECT_EQ(sequence.Finish(), Outcome::kOk);
  EXPECT_EQ(manager_->Audit(), absl::OkStatus());
  return static_cast<int>(reused * kTokens);
}

void KeptWorld::WaitIdle() {
  EXPECT_TRUE(manager_->WaitIdle(std::chrono::seconds(60)));
  EXPECT_EQ(manager_->Audit(), absl::OkStatus());
}

int KeptWorld::Spill(const std::vector<Token>& tokens, NamespaceId ns) {
  const std::uint64_t before = manager_->stats().bytes_in[kFileTier];
  (void)manager_->Offload(tokens, ns);
  WaitIdle();
  return static_cast<int>((manager_->stats().bytes_in[kFileTier] - before) /
                          manager_->block_bytes());
}

int KeptWorld::Store(const std::vector<Token>& tokens, NamespaceId ns) {
  (void)Serve(tokens, ns);
  const int copies = Spill(tokens, ns);
  (void)manager_->Evict(kHbmTier, options_.hbm);
  EXPECT_EQ(manager_->Audit(), absl::OkStatus());
  return copies;
}

std::uint32_t KeptWorld::Found(const std::vector<Token>& tokens, NamespaceId ns) const {
  return manager_->Probe({.tokens = tokens, .ns = ns}).tokens;
}

std::uint64_t KeptWorld::PayloadOffset(std::uint32_t slot) const {
  StatusOr<SlotFileLayout> layout = ParseSuperblock(disk_->bytes());
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? layout->PayloadOffset(slot) : 0;
}

std::uint64_t KeptWorld::HeaderOffset(std::uint32_t slot) const {
  StatusOr<SlotFileLayout> layout = ParseSuperblock(disk_->bytes());
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? layout->HeaderOffset(slot) : 0;
}

std::vector<SlotId> KeptWorld::Slots(const std::vector<Token>& tokens) const {
  std::vector<BlockId> blocks;
  manager_->Lookup(tokens, NamespaceId(0), blocks);
  std::vector<SlotId> slots;
  for (const BlockId b : blocks) slots.push_back(manager_->pool().slot(b, kFileTier));
  return slots;
}

}  // namespace tidepool::testing
