#include "tests/support/model_world.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "tidepool/policy/lru.h"
#include "tidepool/tide/tide.h"

namespace tidepool::testing {
namespace {

constexpr std::uint64_t kCellBytes = 8;  // one token of one layer
constexpr std::uint64_t kDigestSeed = 7;
constexpr Duration kLoadTtl = std::chrono::seconds(20);

constexpr std::array<std::string_view, kModelOpKinds> kOpNames = {
    "admit",         "append",       "step",         "truncate",
    "fork",          "drop_leading", "pause",        "resume",
    "preempt",       "finish",       "drop_handle",  "complete_session",
    "probe",         "evict",        "offload",      "onboard",
    "complete_step", "run_device",   "poll",         "clock",
    "advance_epoch", "namespace",    "clear",        "resize",
    "quota",         "signals",      "plan_reclaim", "cancel_demand",
    "misuse",        "arrive",       "tier_fault",   "take_loads",
    "commit_taken",  "link_limit"};

std::uint32_t Hash(std::uint32_t a, std::uint32_t b) {
  std::uint64_t x = (std::uint64_t{a} << 32 | b) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>(x >> 32);
}

std::string Text(const PoolCounts& c) {
  return "free " + std::to_string(c.free) + " held " + std::to_string(c.held) + " cached " +
         std::to_string(c.cached) + " claimed " + std::to_string(c.claimed) + " moving " +
         std::to_string(c.moving) + " quarantined " + std::to_string(c.quarantined);
}

std::string Num(std::uint64_t n) { return std::to_string(n); }

}  // namespace

std::string ToString(const ModelOp& op) {
  std::string text(kOpNames[static_cast<std::size_t>(op.kind)]);
  for (const std::uint32_t arg : op.arg) text += ' ' + std::to_string(arg);
  return text;
}

bool FromString(const std::string& line, ModelOp* op) {
  std::istringstream in(line);
  std::string name;
  in >> name >> op->arg[0] >> op->arg[1] >> op->arg[2] >> op->arg[3];
  const auto at = std::find(kOpNames.begin(), kOpNames.end(), name);
  op->kind = static_cast<ModelOpKind>(at - kOpNames.begin());
  return at != kOpNames.end() && !in.fail();
}

/// One step of a sequence as the device runs it: reads what was there, writes what follows.
struct ModelWorld::Kernel {
  std::uint64_t launch = 0;
  std::uint32_t by = 0;
  std::uint32_t space = 0;
  std::vector<std::uint32_t> slots;  // by block position
  std::shared_ptr<const std::vector<std::uint64_t>> kv;
  std::uint32_t first = 0;
  std::uint32_t read_end = 0;
  std::uint32_t write_end = 0;
};

ManagerOptions ModelOptions(const ModelConfig& config) {
  ManagerOptions options;
  options.layout = KvLayout::Opaque(config.block_tokens * config.layers * kCellBytes,
                                    config.block_tokens, config.layers);
  const std::array kinds = {TierKind::kHbm, TierKind::kDram, TierKind::kNvme};
  for (std::size_t t = 0; t < config.slots.size(); ++t) {
    TierSpec tier;
    tier.kind = kinds[t];
    tier.slots = config.slots[t];
    if (t == 2) tier.path = "in memory";
    options.tiers.push_back(std::move(tier));
  }
  options.tiers[0].device_work = config.queued_work ? DeviceWork::kQueued : DeviceWork::kInline;
  if (config.policy != nullptr) {
    options.policy = [make = config.policy](TierIndex) { return make(); };
  }
  if (config.tide) {
    auto tide = std::make_shared<Tide>(TideOptions{.clean_pool = config.clean_pool});
    options.migrator = tide->MakePlanner();
    options.policy = [tide, make = config.policy](TierIndex tier) {
      if (tier != kHbmTier) return tide->MakePolicy(tier);
      return make != nullptr ? make() : MakeLruPolicy();
    };
  }
  options.digest_seed = kDigestSeed;
  options.match_partial_tail = config.partial_tail;
  options.reserve_null_slot = config.null_slot;
  options.event_log_capacity = config.event_capacity;
  options.load_ttl = kLoadTtl;
  if (config.recompute) options.recompute = {.c0_seconds = 1e-6, .c1_seconds_per_token = 1e-6};
  return options;
}

ModelWorld::ModelWorld(const ModelConfig& config, std::uint64_t seed)
    : config_(config), reference_(config.block_tokens, kDigestSeed) {
  ManagerOptions options = ModelOptions(config);
  options.clock = &clock_;
  options.observer = this;
  options.input_log = config.input_log;
  auto engine =
      std::make_unique<FakeTransferEngine>(FakeEngineOptions{.automatic = true,
                                                             .faults = config.faults,
                                                             .seed = seed,
                                                             .accept_limit = config.accept_limit});
  engine_ = engine.get();
  options.engine = std::move(engine);
  auto manager = KvCacheManager::Create(std::move(options));
  if (!manager.ok()) {
    Fail("Create: " + std::string(manager.status().message()));
    return;
  }
  manager_ = *std::move(manager);
  phases_.resize(manager_->pool().capacity(), Phase::kFree);
  written_.resize(std::size_t{config.slots[0]} * config.block_tokens);
  hbm_slots_ = manager_->slots(kHbmTier);
  reference_.Register(NamespaceKey{});
  namespaces_.emplace_back(0);
  quotas_.emplace_back();
}

ModelWorld::~ModelWorld() {
  for (auto& live : live_) live->handle = Sequence();
}

ModelTally ModelWorld::tally() const {
  ModelTally tally = tally_;
  tally.stats = manager_->stats();
  return tally;
}

void ModelWorld::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = "step " + Num(steps_) + ": " + what;
}

void ModelWorld::Expect(bool condition, const std::string& what) {
  if (!condition) Fail(what);
}

void ModelWorld::ExpectOutcome(Outcome got, Outcome want, const char* operation) {
  if (got == want) return;
  Fail(std::string(operation) + " answered " + std::string(ToString(got)) + ", not " +
       std::string(ToString(want)));
}

std::uint32_t ModelWorld::BlocksFor(std::uint64_t tokens) const {
  return static_cast<std::uint32_t>((tokens + config_.block_tokens - 1) / config_.block_tokens);
}

// --- Prompts. -------------------------------------------------------------------------------

// Blocks of one symbol differ from those of another in their last tokens only, so that prompts
// share leading blocks, and blocks leading tokens.
std::vector<Token> ModelWorld::Continuation(std::size_t from, std::uint32_t seed,
                                            std::uint32_t count) const {
  std::vector<Token> tokens;
  for (std::size_t i = from; i < from + count; ++i) {
    const auto block = static_cast<std::uint32_t>(i / config_.block_tokens);
    const std::uint32_t pick = Hash(seed, block);
    const std::uint32_t symbol = pick % 3 != 0 ? 0 : (pick / 3) % config_.symbols;
    const std::size_t at = i % config_.block_tokens;
    const bool last = at + 1 == config_.block_tokens;
    const bool second_last = at + 2 == config_.block_tokens;
    tokens.push_back(static_cast<Token>(last ? 10 + symbol : second_last ? 5 + symbol / 2 : 1));
  }
  return tokens;
}

ModelText ModelWorld::Prompt(std::uint32_t seed, std::uint32_t shape, std::uint32_t where) const {
  ModelText text;
  text.space = where % 3 == 0 ? 0 : where % reference_.spaces();
  for (std::uint32_t i = 0; i < 8 && !reference_.alive(text.space); ++i) {  // mostly one that lives
    text.space = Hash(where, i) % reference_.spaces();
  }
  text.epoch = reference_.epoch();
  seed = Hash(0, seed % 10);
  text.tokens = Continuation(0, seed, shape % (config_.max_blocks * config_.block_tokens) + 1);
  for (std::uint32_t block = 0; block < config_.max_blocks; ++block) {
    if (Hash(where, block) % 32 != 0) continue;  // rare; two different keys
    text.content.push_back({.block = block, .key = {.high = 9, .low = Hash(seed, block) % 2}});
  }
  return text;
}

AdmitRequest ModelWorld::Request(const ModelText& text, const ModelOp& op) const {
  const std::uint32_t how = op.arg[3];
  AdmitRequest request;
  if (how % 4 != 0) request.session = SessionId(how / 4 % kModelSessions);
  if (how / 32 % 4 != 0) request.request = RequestId(how / 128 % 8);
  request.tokens = text.tokens;
  request.ns = namespaces_[text.space];
  request.priority = static_cast<Priority>(how / 1024 % kPriorityCount);
  request.timeline = TimelineId(how / 4096 % kModelTimelines);
  request.lookahead_tokens = how / 8192 % 4 == 0 ? how / 32768 % (2 * config_.block_tokens) : 0;
  request.content = text.content;
  request.publish = how / 65536 % 8 != 0;
  request.critical_path = how / (1u << 20) % 8 == 0;
  request.two_ended = how / (1u << 23) % 2 == 0;
  request.recompute_if_sooner = how / (1u << 24) % 2 == 0;
  return request;
}

// --- What is seen. --------------------------------------------------------------------------

ModelWorld::State ModelWorld::Look() const {
  struct Context {
    const ModelWorld* world;
    State state;
  } context{this, {}};
  State& state = context.state;
  state.counts = manager_->counts();
  state.sizes = manager_->table_sizes();
  state.withdrawn = manager_->stats().withdrawn;
  state.spared = manager_->stats().spared_loads;
  state.taken = manager_->stats().taken_loads;
  state.seen.resize(reference_.spaces());
  manager_->index().ForEach(
      [](void* opaque, BlockId block) {
        auto& c = *static_cast<Context*>(opaque);
        const BlockPool& pool = c.world->manager_->pool();
        const PrefixIndex& index = c.world->manager_->index();
        if (index.IsStale(block) || pool.Has(block, word::kOrphan)) ++c.state.dead;
        if (index.IsStale(block)) return;
        const NamespaceId ns = index.root_namespace(pool.node(block));
        const auto at = std::find(c.world->namespaces_.begin(), c.world->namespaces_.end(), ns);
        const auto space = static_cast<std::uint32_t>(at - c.world->namespaces_.begin());
        if (c.world->reference_.Outdated(space, pool.digest(block))) {
          ++c.state.dead;
          return;
        }
        c.state.seen[space][pool.digest(block)] = {
            .tiers = pool.valid_mask(block),
            .pending = pool.Has(block, word::kPending),
            .loading = pool.copy(block, kHbmTier) == CopyState::kWriting};
      },
      &context);
  return state;
}

bool ModelWorld::Hard(std::uint32_t space, std::uint64_t blocks) const {
  const std::uint32_t hard = quotas_[space][kHbmTier].hard;
  return hard != 0 && blocks > hard;
}

// The probe against the index as it is seen from outside, compared digest by digest.
void ModelWorld::CheckProbe(const AdmitRequest& request, const ModelText& text, const State& state,
                            const ProbeResult& probe) {
  if (!reference_.alive(text.space)) {
    return ExpectOutcome(probe.outcome, Outcome::kUnknownNamespace, "Probe");
  }
  ExpectOutcome(probe.outcome, Outcome::kOk, "Probe");
  const SeenIndex& seen = state.seen[text.space];
  const auto [must, may] = reference_.Findable(text, request.timeline, seen);
  const std::uint32_t found = probe.tokens / config_.block_tokens;
  Expect(found >= must && found <= may,
         "Probe found " + Num(found) + " blocks, not " + Num(must) + " to " + Num(may));
  const std::vector<PrefixHash> digests = reference_.Digests(text);
  std::array<std::uint32_t, kMaxTiers> by_tier{};
  std::uint32_t pending = 0;
  for (std::uint32_t i = 0; i < found && failure_.empty(); ++i) {
    const SeenBlock& block = seen.at(digests[i]);
    by_tier[static_cast<std::size_t>(__builtin_ctz(block.tiers))] += config_.block_tokens;
    pending += block.pending ? config_.block_tokens : 0;
  }
  if (!failure_.empty()) return;
  Expect(by_tier == probe.tokens_by_tier, "Probe's tokens by tier are wrong");
  Expect(pending == probe.pending_tokens, "Probe's pending tokens are wrong");
  const std::uint32_t total =
      BlocksFor(std::uint64_t{request.tokens.size()} + request.lookahead_tokens);
  const bool never = total > hbm_slots_ || Hard(text.space, total);
  Expect((probe.fit == Fit::kNeverFits) == never, "Probe's kNeverFits is wrong");
  const auto full = static_cast<std::uint32_t>((request.tokens.size() - 1) / config_.block_tokens);
  Expect(probe.fresh_blocks == total - std::min(found, full), "Probe's fresh blocks are wrong");
}

// A refusal leaves everything as it was, save for blocks that can never match again and copies of
// the session's blocks that had not started.
void ModelWorld::CheckRefused(const State& before, const char* what) {
  const State after = Look();
  if (after.seen != before.seen && before.dead == 0)
    Fail(std::string(what) + ": refused, but the index changed");
  const bool withdrawn = after.withdrawn != before.withdrawn;
  if (after.counts != before.counts && before.dead == 0 && !withdrawn) {
    Fail(std::string(what) + ": refused, but the counts changed from " + Text(before.counts) +
         " to " + Text(after.counts));
  }
  Expect(after.counts.held == before.counts.held,
         std::string(what) + ": refused, but holds changed");
  Expect(
      after.sizes.sequences == before.sizes.sequences &&
          after.sizes.sessions == before.sizes.sessions &&
          after.sizes.transfers + (after.withdrawn - before.withdrawn) == before.sizes.transfers &&
          after.sizes.device_work == before.sizes.device_work,
      std::string(what) + ": refused, but a table grew");
}

// --- Bytes. ---------------------------------------------------------------------------------

std::uint64_t* ModelWorld::CellAt(std::uint32_t slot, std::uint32_t layer,
                                  std::uint32_t token) const {
  std::byte* base = manager_->arena(kHbmTier).At(SlotId(slot), layer);
  return reinterpret_cast<std::uint64_t*>(base + token % config_.block_tokens * kCellBytes);
}

void ModelWorld::RunKernel(const Kernel& k) {
  for (std::uint32_t layer = 0; layer < config_.layers; ++layer) {
    for (std::uint32_t i = k.first; i < k.write_end; ++i) {
      const std::uint32_t slot = k.slots[i / config_.block_tokens];
      std::uint64_t* cell = CellAt(slot, layer, i);
      const std::uint64_t want = reference_.Cell(k.space, (*k.kv)[i], layer);
      if (i >= k.read_end) {
        *cell = want;
        written_[std::size_t{slot} * config_.block_tokens + i % config_.block_tokens] = {k.launch,
                                                                                         k.by};
      } else if (*cell != want) {
        return Fail("sequence #" + Num(k.by) + " reads wrong bytes: token " + Num(i) + " of " +
                    Num(k.read_end) + ", slot " + Num(slot) + ", layer " + Num(layer));
      }
      ++tally_.verified_cells;
    }
  }
}

// The step's fence is about to pass: nobody may have touched what it read and wrote, save for the
// sequence's own later steps.
void ModelWorld::RereadKernel(const Kernel& k) {
  for (std::uint32_t layer = 0; layer < config_.layers; ++layer) {
    for (std::uint32_t i = k.first; i < k.write_end; ++i) {
      const std::uint32_t slot = k.slots[i / config_.block_tokens];
      const Written& last =
          written_[std::size_t{slot} * config_.block_tokens + i % config_.block_tokens];
      if (last.by == k.by && last.launch > k.launch) continue;
      if (*CellAt(slot, layer, i) != reference_.Cell(k.space, (*k.kv)[i], layer)) {
        return Fail("slot " + Num(slot) + " changed under an unfinished step of sequence #" +
                    Num(k.by) + ", token " + Num(i));
      }
    }
  }
}

void ModelWorld::VerifyBlocks(const Live& live, std::uint32_t first, std::uint32_t last) {
  Kernel k{.by = live.id, .space = live.model.text.space, .slots = {}, .kv = live.kv};
  k.slots.assign(live.table.slots, live.table.slots + live.table.size);
  k.first = std::max(first, live.model.dropped) * config_.block_tokens;
  k.read_end = k.write_end = std::min(last * config_.block_tokens, live.model.committed);
  if (k.first < k.read_end) RunKernel(k);
}

void ModelWorld::DrainWork(Fence fence) {
  manager_->DrainStepWork(fence, work_);
  if (work_.zero.empty() && work_.copies.empty()) return;
  Expect(config_.queued_work, "inline device work was queued");
  device_.LaunchBarrier(fence, [this, work = work_] {
    const Arena& arena = manager_->arena(kHbmTier);
    for (std::uint32_t layer = 0; layer < config_.layers; ++layer) {
      for (const SlotId slot : work.zero) std::memset(arena.At(slot, layer), 0, arena.layer_bytes);
      for (const DeviceCopy& copy : work.copies) {
        std::memcpy(arena.At(copy.destination, layer), arena.At(copy.source, layer),
                    copy.tokens * kCellBytes);
      }
    }
  });
}

// The engine's step: reads all committed tokens of the sequence, writes on to `write_end`.
void ModelWorld::LaunchStep(Live& live, std::uint32_t write_end, Fence fence) {
  Launch(live, live.model.committed, write_end, fence);
}

// The step that computes what was taken from the loads: reads all before it.
void ModelWorld::LaunchTaken(Live& live, Fence fence) {
  const std::uint32_t first = live.taken_first * config_.block_tokens;
  Launch(live, first, first + live.taken * config_.block_tokens, fence);
}

void ModelWorld::Launch(Live& live, std::uint32_t read_end, std::uint32_t write_end, Fence fence) {
  Kernel k{.launch = ++launches_,
           .by = live.id,
           .space = live.model.text.space,
           .slots = {},
           .kv = live.kv};
  k.slots.assign(live.table.slots, live.table.slots + live.table.size);
  k.first = live.model.dropped * config_.block_tokens;
  k.read_end = read_end;
  k.write_end = write_end;
  if (config_.queued_work) {
    device_.Launch(fence, [this, k] { RunKernel(k); });
    return;
  }
  RunKernel(k);
  device_.Launch(fence, [this, k] { RereadKernel(k); });
}

// What the sequence has not written yet must not be readable if it is another tenant's.
void ModelWorld::CheckUnwritten(const Live& live) {
  if (config_.queued_work || live.loading) return;
  constexpr std::uint64_t kScribbled = 0xDBDBDBDBDBDBDBDB;
  const std::uint8_t tag = reference_.TenantTag(live.model.text.space);
  for (std::uint32_t i = live.model.committed; i < live.table.size * config_.block_tokens; ++i) {
    for (std::uint32_t layer = 0; layer < config_.layers; ++layer) {
      const std::uint64_t cell = *CellAt(live.table.slots[i / config_.block_tokens], layer, i);
      if (cell == 0 || cell == kScribbled || cell >> 56 == tag) continue;
      return Fail("sequence #" + Num(live.id) + " can read another tenant's bytes at token " +
                  Num(i));
    }
  }
}

// --- Bookkeeping. ---------------------------------------------------------------------------

ModelWorld::Live* ModelWorld::PickLive(std::uint32_t arg, bool (*want)(const Live&)) {
  for (std::size_t i = 0; i < live_.size(); ++i) {
    Live& live = *live_[(arg + i) % live_.size()];
    if (want(live)) return &live;
  }
  return nullptr;
}

void ModelWorld::SetText(Live& live) {
  live.kv = std::make_shared<const std::vector<std::uint64_t>>(reference_.Kv(live.model.text));
}

// The sequence is finished: whatever it listed is let go of.
void ModelWorld::Retire(Live& live) {
  reference_.SetSlots(live.model, {});
  std::erase_if(live_, [&](const auto& each) { return each.get() == &live; });
}

void ModelWorld::Sync() {
  for (const auto& live : live_) SyncLive(*live);
}

// A failed load may have cut the sequence back; its table may have changed.
void ModelWorld::SyncLive(Live& live) {
  ModelSequence& m = live.model;
  Expect(live.handle.alive(), "a live handle does not answer");
  Expect(live.handle.paused() == !m.running, "paused() is wrong");
  if (!m.running) return;
  SyncTicket(live);
  if (live.handle.tokens() != m.text.tokens.size() || live.handle.committed() != m.committed) {
    Fail("sequence #" + Num(live.id) + " has " + Num(live.handle.tokens()) + " tokens, " +
         Num(live.handle.committed()) + " committed; not " + Num(m.text.tokens.size()) + ", " +
         Num(m.committed));
  }
  SyncTable(live);
}

void ModelWorld::SyncTicket(Live& live) {
  if (!live.loading) return;
  ModelSequence& m = live.model;
  const Outcome ready = live.ticket.Ready();
  if (ready == Outcome::kOk) {
    live.loading = false;
    ++tally_.loads_ready;
    SyncTable(live);
    return VerifyLoaded(live);
  }
  SyncCut(live);
  if (ready == Outcome::kPending) return;  // also while others than the failed load are under way
  ExpectOutcome(ready, Outcome::kLoadFailed, "Ready");
  Expect(m.load_failed, "a ticket failed, its sequence was not cut back");
  ++tally_.loads_failed;
  live.loading = false;
  m.cut_untold = false;
  SyncTable(live);
  Expect(live.taken == 0, "a ticket failed while taken loads are not committed");
  VerifyLoaded(live);
}

// Of queued work, steps that have not run may still have to write some of it, which the sequence's
// own steps read after that.
void ModelWorld::VerifyLoaded(const Live& live) {
  if (!config_.queued_work) VerifyBlocks(live, 0, live.model.committed / config_.block_tokens);
}

void ModelWorld::SyncCut(Live& live) {
  ModelSequence& m = live.model;
  const std::uint32_t length = live.handle.tokens();
  if (length >= m.text.tokens.size()) return;
  Expect(length % config_.block_tokens == 0 && length < m.committed,
         "a failed load cut " + Num(m.committed) + " committed tokens back to " + Num(length));
  m.text.tokens.resize(length);
  m.committed = std::min(m.committed, length);
  m.load_failed = m.cut_untold = true;
  Expect(live.taken == 0 || live.taken_first + live.taken <= length / config_.block_tokens,
         "a failed load cut off what was taken");
  SetText(live);
}

void ModelWorld::SyncTable(Live& live) {
  const BlockTable old = live.table;
  const std::vector<std::uint32_t> before = live.model.slots;
  live.table = live.handle.block_table();
  const BlockTable& table = live.table;
  Expect(table.dropped == live.model.dropped, "the table's dropped blocks are wrong");
  Expect(old.slots == nullptr || old.slots == table.slots, "the table moved");
  std::vector<std::uint32_t> slots(table.slots + table.dropped, table.slots + table.size);
  const std::uint32_t first = config_.null_slot ? 1 : 0;
  for (const std::uint32_t slot : slots) {
    if (slot < first || slot >= config_.slots[0]) return Fail("slot " + Num(slot) + " in a table");
  }
  const std::uint32_t same = std::min(table.changed_from, old.size);
  if (old.dropped == table.dropped) {
    for (std::uint32_t i = table.dropped; i < same; ++i) {
      Expect(before[i - old.dropped] == table.slots[i], "a table entry changed without notice");
    }
    Expect(before == slots || table.version != old.version, "the table changed, its version not");
  }
  reference_.SetSlots(live.model, std::move(slots));
  live.model.loading = LoadingSlots(live);
}

std::set<std::uint32_t> ModelWorld::LoadingSlots(const Live& live) const {
  std::set<std::uint32_t> loading;
  if (!live.loading) return loading;
  const BlockPool& pool = manager_->pool();
  for (std::uint32_t b = 0; b < pool.capacity(); ++b) {
    const BlockId block(b);
    if (pool.copy(block, kHbmTier) != CopyState::kWriting || pool.phase(block) != Phase::kReuse)
      continue;
    const std::uint32_t slot = pool.slot(block, kHbmTier).value();
    if (live.computed.contains(slot)) continue;  // a step has touched it
    if (std::find(live.model.slots.begin(), live.model.slots.end(), slot) !=
        live.model.slots.end()) {
      loading.insert(slot);
    }
  }
  return loading;
}

void ModelWorld::CheckAll() {
  const PoolCounts c = manager_->counts();
  Expect(c.free + c.held + c.cached + c.claimed + c.moving + c.quarantined ==
             manager_->slots(kHbmTier),
         "the classes do not sum to " + Num(manager_->slots(kHbmTier)) + ": " + Text(c));
  std::vector<const ModelSequence*> sequences;
  for (const auto& live : live_) sequences.push_back(&live->model);
  const auto [least, most] = reference_.InUse(sequences);
  Expect(c.held >= least.size() && c.held <= most.size(),
         Num(c.held) + " slots are held, the reference knows of " + Num(least.size()) + " to " +
             Num(most.size()));
  for (std::uint32_t b = 0; b < phases_.size(); ++b) {
    if (manager_->pool().phase(BlockId(b)) == phases_[b]) continue;
    Fail("block " + Num(b) + " changed its phase unobserved");
    break;
  }
  if (!engine_->violations().empty()) Fail("transfer rule: " + engine_->violations().front());
  const Status audit = manager_->Audit();
  Expect(audit.ok(), "Audit: " + std::string(audit.message()));
  const State state = Look();
  for (std::uint32_t space = 0; space < reference_.spaces(); ++space) {
    if (reference_.alive(space)) {
      const std::string wrong = reference_.CheckIndex(space, state.seen[space]);
      Expect(wrong.empty(), wrong);
    }
  }
  for (const auto& live : live_) {
    if (live->model.running) CheckUnwritten(*live);
  }
  if (config_.event_capacity != 0) CheckMirror();
  engine_->ClearRecords();
}

// The events since the last step, applied to the mirror, give what a snapshot gives.
void ModelWorld::CheckMirror() {
  manager_->DrainEvents(events_);
  for (const Event& e : events_.events) {
    if (events_.lost == 0) Expect(e.number == ++event_number_, "the event numbers have a gap");
    if (events_.lost != 0) continue;
    const MirrorKey key{e.ns.value(), e.digest, e.tier};
    const bool stored = e.kind == EventKind::kStored;
    const auto copies = [&] {
      std::uint32_t n = 0;
      for (TierIndex t = 0; t < config_.slots.size(); ++t) {
        n += mirror_.contains({e.ns.value(), e.digest, t}) ? 1 : 0;
      }
      return n;
    };
    const bool first = copies() == 0;
    if (stored ? !mirror_.insert(key).second : mirror_.erase(key) == 0) {
      return Fail("event " + Num(e.number) + ": tier " + Num(e.tier) +
                  (stored ? " stored twice" : " removed what is not there"));
    }
    Expect(e.first_or_last == (stored ? first : copies() == 0),
           "event " + Num(e.number) + ": first_or_last is wrong");
  }
  const EventSnapshot snapshot = manager_->Snapshot();
  std::set<MirrorKey> now;
  for (const Event& e : snapshot.stored) now.insert({e.ns.value(), e.digest, e.tier});
  Expect(now.size() == snapshot.stored.size(), "the snapshot names a copy twice");
  if (events_.lost != 0) {
    mirror_ = now;
    event_number_ = snapshot.number;
  }
  Expect(event_number_ == snapshot.number, "the snapshot's number is not the last event's");
  if (now != mirror_) {
    Fail("the mirror has " + Num(mirror_.size()) + " copies, the snapshot " + Num(now.size()));
  }
}

void ModelWorld::OnTransition(const TransitionEvent& event) noexcept {
  Expect(IsLegal(event.from, event.to), "an illegal transition was observed");
  for (const BlockId b : event.blocks) {
    if (b.value() >= phases_.size() || phases_[b.value()] != event.from) {
      return Fail("block " + Num(b.value()) + ": a transition from " +
                  std::string(ToString(event.from)) + " to " + std::string(ToString(event.to)) +
                  ", but it was " + std::string(ToString(phases_[b.value()])));
    }
    phases_[b.value()] = event.to;
  }
}

void ModelWorld::OnTransferStart(const TransferEvent& event) noexcept {
  Expect(transfers_.emplace(event.id.value(), false).second, "a transfer started twice");
}

void ModelWorld::OnTransferEnd(const TransferEvent& event) noexcept {
  const auto it = transfers_.find(event.id.value());
  if (it == transfers_.end()) return Fail("a transfer ended that had not started");
  Expect(!it->second, "a transfer ended twice");
  it->second = true;
}

}  // namespace tidepool::testing
