#include "tests/support/scenario_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace tidepool::testing {
namespace {

constexpr std::uint64_t kCellBytes = 16;  // one token of one layer
constexpr std::uint64_t kLayerBytes = kBlockTokens * kCellBytes;

using Cell = std::array<std::uint64_t, 2>;
static_assert(sizeof(Cell) == kCellBytes);

constexpr std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// What KV depends on: all tokens so far, their content keys and the namespace.
std::vector<std::uint64_t> KvOf(const Tokens& tokens, const How& how) {
  std::vector<std::uint64_t> kv;
  kv.reserve(tokens.size());
  std::uint64_t state = Mix(1, how.ns.value());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i % kBlockTokens == 0) {
      for (const BlockContent& content : how.content) {
        if (content.block == i / kBlockTokens) state = Mix(state, content.key.low);
      }
    }
    state = Mix(state, static_cast<std::uint32_t>(tokens[i]));
    kv.push_back(state);
  }
  return kv;
}

Cell Pattern(std::uint64_t kv, std::uint32_t layer) {
  return {Mix(kv, layer), Mix(kv, layer + 1000)};
}

std::byte* CellAt(const Arena& arena, SlotId slot, std::uint32_t layer, std::size_t token) {
  return arena.At(slot, layer) + (token % kBlockTokens) * kCellBytes;
}

std::vector<TierSpec> Tiers(const ScenarioOptions& options) {
  std::vector<TierSpec> tiers{{.kind = TierKind::kHbm, .slots = options.hbm}};
  if (options.dram > 0) tiers.push_back({.kind = TierKind::kDram, .slots = options.dram});
  if (options.nvme > 0) {
    tiers.push_back({.kind = TierKind::kNvme, .slots = options.nvme});
    tiers.back().path = "kept in memory by the fake engine";
  }
  return tiers;
}

}  // namespace

Tokens Text(int text, std::uint32_t n) {
  Tokens tokens(n);
  for (std::uint32_t i = 0; i < n; ++i) tokens[i] = text * 10'000 + static_cast<Token>(i);
  return tokens;
}

Tokens Join(Tokens head, const Tokens& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

std::string ToString(const PoolCounts& counts) {
  std::string text;
  const auto add = [&text](const char* name, std::uint32_t n) {
    if (n > 0) text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(n);
  };
  add("free", counts.free);
  add("held", counts.held);
  add("cached", counts.cached);
  add("claimed", counts.claimed);
  add("moving", counts.moving);
  add("quarantined", counts.quarantined);
  return text;
}

TimePoint AtSecond(std::int64_t seconds) { return TimePoint(std::chrono::seconds(seconds)); }

std::function<void(ManagerOptions&)> Recording(PolicyRecord* record) {
  return [record](ManagerOptions& options) {
    options.policy = [record](TierIndex) { return MakeRecordingPolicy(record); };
  };
}

std::function<void(ManagerOptions&)> Using(PolicyFactory make_policy) {
  return [make_policy](ManagerOptions& options) {
    options.policy = [make_policy](TierIndex) { return make_policy(); };
  };
}

ScenarioFixture::ScenarioFixture(ScenarioOptions options) : options_(std::move(options)) {
  ManagerOptions manager;
  manager.layout = KvLayout::Opaque(kLayerBytes * options_.layers, kBlockTokens, options_.layers);
  manager.tiers = Tiers(options_);
  manager.clock = &clock_;
  manager.event_log_capacity = 4096;
  auto engine = std::make_unique<FakeTransferEngine>(options_.engine);
  engine_ = engine.get();
  manager.engine = std::move(engine);
  if (options_.adjust) options_.adjust(manager);
  StatusOr<std::unique_ptr<KvCacheManager>> created = KvCacheManager::Create(std::move(manager));
  if (!created.ok()) throw std::runtime_error(created.status().ToString());
  manager_ = *std::move(created);
}

ScenarioFixture::~ScenarioFixture() { Check("the end"); }

// --- sequences ------------------------------------------------------------------------------

AdmitRequest ScenarioFixture::Request(const Tokens& tokens, const How& how) const {
  return {.session = how.session,
          .request = RequestId(),
          .tokens = tokens,
          .ns = how.ns,
          .priority = how.priority,
          .timeline = how.timeline,
          .lookahead_tokens = how.lookahead,
          .content = how.content,
          .publish = how.publish,
          .two_ended = how.two_ended,
          .recompute_if_sooner = how.recompute_if_sooner};
}

void ScenarioFixture::Remember(Live& live, Admission admission) {
  if (admission.granted()) {
    live.ticket = std::move(admission.ticket);
    live.written = admission.ready_tokens + admission.loading_tokens;
  }
  live.last = std::move(admission);
}

Outcome ScenarioFixture::Allocate(const std::string& name, const Tokens& tokens, const How& how) {
  const std::uint64_t id = request_ids_.emplace(name, request_ids_.size() + 1).first->second;
  AdmitRequest request = Request(tokens, how);
  request.request = RequestId(id);
  Admission admission = manager_->Admit(request);
  Live& live = live_[name];
  if (admission.granted()) {
    live.handle = std::move(admission.sequence);
    live.tokens = tokens;
    live.how = how;
    EXPECT_EQ(admission.ready_tokens + admission.loading_tokens + admission.recompute_tokens,
              tokens.size())
        << "Allocate " << name;
  }
  const Outcome outcome = admission.outcome;
  Remember(live, std::move(admission));
  AfterStep("Allocate", name);
  return outcome;
}

Outcome ScenarioFixture::Append(const std::string& name, const Tokens& tokens) {
  Live& live = live_[name];
  const Outcome outcome = live.handle.Append(tokens);
  if (outcome == Outcome::kOk) live.tokens = Join(std::move(live.tokens), tokens);
  AfterStep("Append", name);
  return outcome;
}

void ScenarioFixture::WriteTokens(Live& live, std::uint32_t first, std::uint32_t end) {
  const std::vector<std::uint64_t> kv = KvOf(live.tokens, live.how);
  const BlockTable table = live.handle.block_table();
  end = std::min(end, static_cast<std::uint32_t>(kv.size()));
  for (std::uint32_t i = first; i < end && i / kBlockTokens < table.size; ++i) {
    const SlotId slot(table.slots[i / kBlockTokens]);
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      const Cell cell = Pattern(kv[i], layer);
      std::memcpy(CellAt(manager_->arena(kHbmTier), slot, layer, i), cell.data(), kCellBytes);
    }
  }
}

void ScenarioFixture::Write(const std::string& name, std::uint32_t n) {
  Live& live = live_[name];
  n = std::min(n, static_cast<std::uint32_t>(live.tokens.size()));
  WriteTokens(live, live.written, n);
  live.written = std::max(live.written, n);
}

TakenLoads ScenarioFixture::Take(const std::string& name, std::uint32_t blocks) {
  Live& live = live_[name];
  const TakenLoads taken = live.handle.TakeLoads(blocks);
  if (taken.tokens != 0) live.taken = taken;
  AfterStep("TakeLoads", name);
  return taken;
}

Outcome ScenarioFixture::CommitTaken(const std::string& name, Fence fence) {
  Live& live = live_[name];
  WriteTokens(live, live.taken.first_token, live.taken.first_token + live.taken.tokens);
  live.taken = TakenLoads();
  const Outcome outcome = live.handle.CommitTaken(fence);
  AfterStep("CommitTaken", name);
  return outcome;
}

Outcome ScenarioFixture::Commit(const std::string& name, std::uint32_t n, Fence fence) {
  if (n <= live_[name].handle.tokens()) Write(name, n);
  return CommitUnwritten(name, n, fence);
}

Outcome ScenarioFixture::CommitUnwritten(const std::string& name, std::uint32_t n, Fence fence) {
  const Outcome outcome = live_[name].handle.Commit(n, fence);
  AfterStep("Commit", name);
  return outcome;
}

Outcome ScenarioFixture::Truncate(const std::string& name, std::uint32_t n) {
  const Outcome outcome = live_[name].handle.Truncate(n);
  AfterStep("Truncate", name);
  return outcome;
}

Outcome ScenarioFixture::DropLeading(const std::string& name, std::uint32_t blocks) {
  const Outcome outcome = live_[name].handle.DropLeading(blocks);
  AfterStep("DropLeading", name);
  return outcome;
}

Outcome ScenarioFixture::Fork(const std::string& parent, const std::string& child) {
  ForkResult fork = live_[parent].handle.Fork();
  if (fork.outcome == Outcome::kOk) {
    Live& live = live_[child];
    live.handle = std::move(fork.sequence);
    live.tokens = live_[parent].tokens;
    live.tokens.resize(live.handle.tokens());  // a fork has what is committed
    live.how = live_[parent].how;
    live.written = live_[parent].written;
  }
  AfterStep("Fork", parent);
  return fork.outcome;
}

Outcome ScenarioFixture::Free(const std::string& name, Fence fence) {
  const Outcome outcome = live_[name].handle.Finish(fence);
  live_[name].ticket = LoadTicket();
  AfterStep("Free", name);
  return outcome;
}

Outcome ScenarioFixture::Idle(const std::string& name, Duration return_in) {
  const Outcome outcome =
      live_[name].handle.Pause({.wait = WaitClass::kTool, .expected_return = return_in});
  AfterStep("Idle", name);
  return outcome;
}

Outcome ScenarioFixture::Resume(const std::string& name) {
  Live& live = live_[name];
  Admission admission = live.handle.Resume();
  if (admission.granted()) {
    EXPECT_EQ(admission.ready_tokens + admission.loading_tokens + admission.recompute_tokens,
              live.tokens.size())
        << "Resume " << name;
  }
  const Outcome outcome = admission.outcome;
  Remember(live, std::move(admission));
  AfterStep("Resume", name);
  return outcome;
}

Outcome ScenarioFixture::Preempt(const std::string& name, PreemptMode mode) {
  const Outcome outcome = live_[name].handle.Preempt(mode);
  AfterStep("Preempt", name);
  return outcome;
}

void ScenarioFixture::Cache(const Tokens& tokens, const How& how) {
  EXPECT_EQ(Allocate("(cache)", tokens, how), Outcome::kOk);
  EXPECT_EQ(Commit("(cache)", static_cast<std::uint32_t>(tokens.size())), Outcome::kOk);
  EXPECT_EQ(Free("(cache)"), Outcome::kOk);
}

void ScenarioFixture::Store(const Tokens& tokens, const How& how) {
  Cache(tokens, how);
  const auto blocks = static_cast<std::uint32_t>(tokens.size()) / kBlockTokens;
  EXPECT_EQ(manager_->Offload(tokens, how.ns).accepted, blocks);
  Settle();
  EXPECT_EQ(Evict(blocks), blocks);
}

void ScenarioFixture::CancelDemand(const std::string& name) {
  manager_->CancelDemand(RequestId(request_ids_.at(name)));
  AfterStep("CancelDemand", name);
}
Outcome ScenarioFixture::AllocatePatiently(const std::string& name, const Tokens& tokens,
                                           const How& how, int rounds) {
  Outcome outcome = Allocate(name, tokens, how);
  for (int round = 0; round < rounds && outcome == Outcome::kBusy; ++round) {
    Poll();
    engine_->FinishAll();
    Poll();
    outcome = Allocate(name, tokens, how);
  }
  return outcome;
}

// --- room and time --------------------------------------------------------------------------

ProbeResult ScenarioFixture::Probe(const Tokens& tokens, const How& how) {
  ProbeResult result = manager_->Probe(Request(tokens, how));
  AfterStep("Probe", "");
  return result;
}

std::uint32_t ScenarioFixture::Found(const Tokens& tokens, const How& how) {
  return Probe(tokens, how).tokens;
}

std::uint32_t ScenarioFixture::Evict(std::uint32_t blocks, TierIndex tier) {
  const std::uint32_t evicted = manager_->Evict(tier, blocks);
  AfterStep("Evict", "");
  return evicted;
}

KvCacheManager::OffloadResult ScenarioFixture::Offload(const Tokens& tokens) {
  const KvCacheManager::OffloadResult result = manager_->Offload(tokens);
  AfterStep("Offload", "");
  return result;
}

KvCacheManager::OffloadResult ScenarioFixture::Onboard(const Tokens& tokens) {
  const KvCacheManager::OffloadResult result = manager_->Onboard(tokens);
  AfterStep("Onboard", "");
  return result;
}

void ScenarioFixture::Poll() {
  manager_->Poll();
  AfterStep("Poll", "");
}

Outcome ScenarioFixture::CompleteStep(TimelineId timeline, std::uint64_t step) {
  const Outcome outcome = manager_->CompleteStep(timeline, step);
  AfterStep("CompleteStep", "");
  return outcome;
}

void ScenarioFixture::Settle() {
  Poll();
  for (int round = 0; round < 100 && !engine_->InFlight().empty(); ++round) {
    engine_->FinishAll();
    Poll();
  }
  EXPECT_TRUE(engine_->InFlight().empty());
}

void ScenarioFixture::SetTime(TimePoint now) { clock_.Set(now); }

std::vector<Event> ScenarioFixture::DrainEvents() {
  EventBatch batch;
  manager_->DrainEvents(batch);
  EXPECT_EQ(batch.lost, 0u);
  return std::move(batch.events);
}

// --- what a test reads ----------------------------------------------------------------------

std::uint32_t ScenarioFixture::Hit(const std::string& name) {
  return live_[name].last.ready_tokens + live_[name].last.loading_tokens;
}

std::vector<SlotId> ScenarioFixture::Slots(const std::string& name) {
  const BlockTable table = live_[name].handle.block_table();
  std::vector<SlotId> slots;
  for (std::uint32_t i = 0; i < table.size; ++i) slots.emplace_back(table.slots[i]);
  return slots;
}

BlockId ScenarioFixture::Block(const std::string& name, std::uint32_t position) {
  const std::vector<SlotId> slots = Slots(name);
  if (position >= slots.size()) return {};
  const BlockPool& pool = manager_->pool();
  for (std::uint32_t i = 0; i < pool.capacity(); ++i) {
    const BlockId block(i);
    if (pool.copy(block, kHbmTier) != CopyState::kAbsent &&
        pool.slot(block, kHbmTier) == slots[position]) {
      return block;
    }
  }
  return {};
}

std::uint32_t ScenarioFixture::Holds(const std::string& name, std::uint32_t position) {
  const BlockId block = Block(name, position);
  return block.valid() ? manager_->pool().holds(block) : 0;
}

std::vector<BlockId> ScenarioFixture::Blocks(const Tokens& tokens, NamespaceId ns) const {
  std::vector<BlockId> blocks;
  manager_->Lookup(tokens, ns, blocks);
  return blocks;
}

bool ScenarioFixture::HasBytes(TierIndex tier, SlotId slot, const Tokens& tokens,
                               std::uint32_t block, const How& how) {
  const std::vector<std::uint64_t> kv = KvOf(tokens, how);
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    const std::byte* bytes = engine_->Bytes(tier, slot, layer).data();
    for (std::uint32_t i = 0; i < kBlockTokens; ++i) {
      const Cell cell = Pattern(kv[block * kBlockTokens + i], layer);
      if (std::memcmp(bytes + i * kCellBytes, cell.data(), kCellBytes) != 0) return false;
    }
  }
  return true;
}

bool ScenarioFixture::Stored(TierIndex tier, const Tokens& tokens, std::uint32_t block) {
  const std::vector<BlockId> blocks = Blocks(tokens);
  const BlockPool& pool = manager_->pool();
  return block < blocks.size() && pool.copy(blocks[block], tier) == CopyState::kValid &&
         HasBytes(tier, pool.slot(blocks[block], tier), tokens, block);
}

// --- after each step ------------------------------------------------------------------------

void ScenarioFixture::AfterStep(const char* operation, const std::string& name) {
  if (options_.check_every_step) Check(std::string(operation) + " " + name);
}

void ScenarioFixture::Check(const std::string& step) {
  if (failed_) return;
  std::string broken;
  const Status audit = manager_->Audit();
  if (!audit.ok()) broken = audit.ToString();
  const PoolCounts c = manager_->counts();
  if (c.free + c.held + c.cached + c.claimed + c.moving + c.quarantined !=
      manager_->slots(kHbmTier)) {
    broken += "; classes do not sum to the pool: " + Counts();
  }
  if (!engine_->violations().empty()) broken += "; " + engine_->violations().front();
  for (auto& [name, live] : live_) {
    // A failed load cuts a sequence back; what it may read is what is left.
    if (live.handle.alive() && live.handle.tokens() < live.tokens.size()) {
      live.tokens.resize(live.handle.tokens());
      live.written = std::min(live.written, live.handle.tokens());
    }
    const std::string wrong = WrongByte(live);
    if (!wrong.empty()) broken += "; " + name + ": " + wrong;
  }
  if (broken.empty()) return;
  failed_ = true;
  ADD_FAILURE() << "after " << step << ": " << broken;
}

std::string ScenarioFixture::WrongByte(Live& live) const {
  if (!live.handle.alive() || live.handle.paused()) return {};
  if (live.ticket.Ready() != Outcome::kOk) return {};
  const std::vector<std::uint64_t> kv = KvOf(live.tokens, live.how);
  const BlockTable table = live.handle.block_table();
  for (std::uint32_t i = table.dropped * kBlockTokens; i < live.written; ++i) {
    if (i / kBlockTokens >= table.size) return "the table is too short";
    const SlotId slot(table.slots[i / kBlockTokens]);
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      const Cell cell = Pattern(kv[i], layer);
      if (std::memcmp(CellAt(manager_->arena(kHbmTier), slot, layer, i), cell.data(), kCellBytes) !=
          0) {
        return "wrong bytes of token " + std::to_string(i) + " in slot " +
               std::to_string(slot.value());
      }
    }
  }
  return {};
}

StaleSequence::StaleSequence(const Sequence& sequence) {
  std::memcpy(bytes_, static_cast<const void*>(&sequence), sizeof(bytes_));
  handle_ = std::launder(reinterpret_cast<Sequence*>(bytes_));
}

}  // namespace tidepool::testing
