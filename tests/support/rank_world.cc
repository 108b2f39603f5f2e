#include "tests/support/rank_world.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace tidepool::testing {
namespace {

constexpr std::uint32_t kTokens = 4;  // of a block
constexpr std::uint64_t kCellBytes = 8;
constexpr std::uint64_t kLayerBytes = kTokens * kCellBytes;
constexpr std::size_t kMaxLive = 5;

std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 31);
}

/// The bytes of token `n` - 1 of a sequence on one rank and layer.
std::uint64_t Cell(std::span<const Token> tokens, std::size_t n, std::uint32_t rank,
                   std::uint32_t layer) {
  std::uint64_t kv = Mix(rank, layer);
  for (const Token t : tokens.first(n)) kv = Mix(kv, static_cast<std::uint32_t>(t));
  return kv;
}

}  // namespace

// --- FakeWorker. ----------------------------------------------------------------------------

FakeWorker::FakeWorker(std::uint32_t rank, std::vector<std::uint32_t> slots, std::uint32_t layers,
                       std::uint64_t layer_bytes)
    : rank_(rank), layers_(layers) {
  for (const std::uint32_t n : slots) {
    arenas_.push_back(AllocateHostArena(n, layers, layer_bytes).value());
  }
}

void FakeWorker::Fail(const std::string& what) {
  if (violation_.empty()) violation_ = "rank " + std::to_string(rank_) + ": " + what;
}

std::uint64_t FakeWorker::Checksum(TierIndex tier, SlotId slot) const {
  std::uint64_t sum = 1;
  for (std::uint32_t l = 0; l < layers_; ++l) {
    for (std::uint64_t i = 0; i < arenas_[tier].layer_bytes; ++i) {
      sum = Mix(sum, static_cast<std::uint64_t>(At(tier, slot, l)[i]));
    }
  }
  return sum;
}

void FakeWorker::Receive(const RankPlan& plan) {
  for (const FreedSlot& freed : plan.freed) checksums_.erase(freed.slot.value());
  for (const TransferId id : plan.cancels) {
    const auto at = std::ranges::find(held_, id, &CopyRequest::id);
    if (at == held_.end() || begun_.contains(id.value())) continue;  // too late
    late_.push_back({.id = id, .terminal = true, .result = TransferResult::kCancelled});
    held_.erase(at);
  }
  const auto urgency = [](const CopyRequest& c) {
    return std::tuple(c.transfer_class, c.deadline);
  };
  if (!std::ranges::is_sorted(plan.copies, {}, urgency)) Fail("a plan is not in order of urgency");
  held_.insert(held_.end(), plan.copies.begin(), plan.copies.end());
  std::ranges::stable_sort(held_, {}, urgency);
}

void FakeWorker::Move(const CopyRequest& copy, std::vector<Completion>& done) {
  if (copy.from != kHbmTier) {
    const auto known = checksums_.find(copy.source.value());
    if (known == checksums_.end()) {
      Fail("load of slot " + std::to_string(copy.source.value()) + ", which holds nothing");
    } else if (known->second != Checksum(copy.from, copy.source)) {
      Fail("slot " + std::to_string(copy.source.value()) + " has changed since it was written");
    }
  } else if (checksums_.contains(copy.destination.value())) {
    Fail("slot " + std::to_string(copy.destination.value()) + " was not given up");
  }
  for (std::uint32_t l = 0; l < layers_; ++l) {
    std::memcpy(At(copy.to, copy.destination, l), At(copy.from, copy.source, l),
                arenas_[copy.from].layer_bytes);
  }
  if (copy.to != kHbmTier)
    checksums_[copy.destination.value()] = Checksum(copy.to, copy.destination);
  done.push_back({.id = copy.id, .terminal = true, .layers_done = layers_});
}

std::vector<Completion> FakeWorker::Work(const RankFaults& faults, std::mt19937_64& random) {
  const auto chance = [&](double p) {
    return p > 0 && static_cast<double>(random() >> 11) * 0x1p-53 < p;
  };
  std::vector<Completion> done = std::exchange(late_, {});
  std::vector<CopyRequest> rest;
  for (const CopyRequest& copy : held_) {
    if (chance(faults.layers)) {
      const auto some = static_cast<std::uint32_t>(random() % layers_);
      std::uint32_t& moved = begun_[copy.id.value()];
      for (; moved < some; ++moved) {
        std::memcpy(At(copy.to, copy.destination, moved), At(copy.from, copy.source, moved),
                    arenas_[copy.from].layer_bytes);
      }
      done.push_back({.id = copy.id, .layers_done = moved});
    }
    if (chance(faults.late)) {
      rest.push_back(copy);
      continue;
    }
    begun_.erase(copy.id.value());
    if (chance(faults.fail)) {
      for (std::uint32_t l = 0; l < layers_; ++l) {
        std::memset(At(copy.to, copy.destination, l), 0xDB, arenas_[copy.to].layer_bytes);
      }
      done.push_back({.id = copy.id, .terminal = true, .result = TransferResult::kFailed});
    } else {
      Move(copy, done);
    }
    if (chance(faults.repeat)) done.push_back(done.back());
    if (chance(faults.repeat)) late_.push_back(done.back());
  }
  held_ = std::move(rest);
  if (chance(faults.nonsense)) {
    done.push_back({.id = TransferId(random()), .terminal = true});
    done.push_back({.id = TransferId(), .layers_done = 1});
    if (!held_.empty()) done.push_back({.id = held_[0].id, .layers_done = layers_ + 9});
  }
  for (Completion& c : done) {
    if (chance(faults.reorder)) std::swap(c, done[random() % done.size()]);
  }
  return done;
}

void FakeWorker::Execute(const StepWork& work) {
  for (const SlotId slot : work.zero) {
    for (std::uint32_t l = 0; l < layers_; ++l) {
      std::memset(At(kHbmTier, slot, l), 0, arenas_[kHbmTier].layer_bytes);
    }
  }
  for (const DeviceCopy& copy : work.copies) {
    for (std::uint32_t l = 0; l < layers_; ++l) {
      std::memcpy(At(kHbmTier, copy.destination, l), At(kHbmTier, copy.source, l),
                  arenas_[kHbmTier].layer_bytes);
    }
  }
}

void FakeWorker::Die() {
  held_.clear();
  begun_.clear();
  late_.clear();
  checksums_.clear();
  for (const Arena& arena : arenas_) {
    for (std::uint32_t s = 0; s < arena.slots; ++s) {
      for (std::uint32_t l = 0; l < layers_; ++l) {
        std::memset(arena.At(SlotId(s), l), 0xEE, arena.layer_bytes);
      }
    }
  }
}

// --- RankWorld. -----------------------------------------------------------------------------

ManagerOptions RankWorld::Options(const RankWorldOptions& options) {
  ManagerOptions manager;
  manager.layout = KvLayout::Opaque(kLayerBytes * options.layers, kTokens, options.layers);
  TierSpec hbm = Hbm(UnreachableArena(options.hbm, options.layers, kLayerBytes));
  TierSpec dram{.kind = TierKind::kDram, .slots = options.dram};
  dram.arena = UnreachableArena(options.dram, options.layers, kLayerBytes);
  manager.tiers = {std::move(hbm), std::move(dram)};
  return manager;
}

RankWorld::RankWorld(const RankWorldOptions& options) : options_(options), random_(options.seed) {
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    workers_.emplace_back(r, std::vector{options.hbm, options.dram}, options.layers, kLayerBytes);
  }
  ManagerOptions manager = Options(options);
  auto engine =
      std::make_unique<RankEngine>(RankEngineOptions{.ranks = options.ranks,
                                                     .max_queued_copies = 6,
                                                     .freed_slots = true,
                                                     .clock = &clock_,
                                                     .exchange = [this](Duration) { Exchange(); }});
  engine_ = engine.get();
  manager.engine = std::move(engine);
  manager.clock = &clock_;
  manager.input_log = options.input_log;
  manager_ = std::move(KvCacheManager::Create(std::move(manager)).value());
}

RankWorld::~RankWorld() { EndAll(); }

bool RankWorld::Chance(double probability) {
  return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
}

void RankWorld::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

// Texts share their beginnings: two symbols, of which one is rare.
std::vector<Token> RankWorld::Prompt() {
  std::vector<Token> tokens(1 + random_() % (5 * kTokens));
  for (std::size_t i = 0; i < tokens.size(); i += kTokens) {
    const Token symbol = random_() % 4 == 0 ? 2 : 1;
    for (std::size_t k = i; k < std::min(i + kTokens, tokens.size()); ++k) {
      tokens[k] = 100 * symbol + static_cast<Token>(k);
    }
  }
  return tokens;
}

int RankWorld::Admit(const std::vector<Token>& tokens, SessionId session) {
  Admission admission =
      manager_->Admit({.session = session, .request = RequestId(1000 + next_), .tokens = tokens});
  if (!admission.granted()) return -1;
  Live& live = live_[next_];
  live.tokens = tokens;
  live.handle = std::move(admission.sequence);
  Take(live, std::move(admission));
  return next_++;
}

void RankWorld::Take(Live& live, Admission admission) {
  live.loading = admission.loading_tokens != 0;
  loaded_ += admission.loading_tokens;
  live.ticket = std::move(admission.ticket);
  if (!live.loading) Compute(live);
}

// The step: device work first, then every rank writes what is not committed yet.
void RankWorld::Compute(Live& live) {
  manager_->DrainStepWork(Fence::Done(), work_);
  const std::uint32_t from = live.handle.committed();
  const auto n = static_cast<std::uint32_t>(live.tokens.size());
  const BlockTable table = live.handle.block_table();
  for (std::uint32_t r = 0; r < options_.ranks; ++r) {
    workers_[r].Execute(work_);
    for (std::uint32_t i = from; i < n; ++i) {
      for (std::uint32_t l = 0; l < options_.layers; ++l) {
        const std::uint64_t cell = Cell(live.tokens, i + 1, r, l);
        std::memcpy(workers_[r].At(kHbmTier, SlotId(table.slots[i / kTokens]), l) +
                        i % kTokens * kCellBytes,
                    &cell, kCellBytes);
      }
    }
  }
  if (live.handle.Commit(n, Fence::Done()) != Outcome::kOk) Fail("Commit was refused");
}

// Loads that have ended, well or not.
void RankWorld::Settle(Live& live) {
  if (!live.loading) return;
  const Outcome outcome = live.ticket.Ready();
  if (outcome == Outcome::kPending) return;
  live.loading = false;
  if (outcome == Outcome::kLoadFailed) live.tokens.resize(live.handle.tokens());
  if (live.handle.tokens() != live.tokens.size()) Fail("tokens() is not what it should be");
  Verify(live);
  if (!live.tokens.empty()) Compute(live);
}

void RankWorld::Verify(const Live& live) {
  if (live.loading || live.handle.paused()) return;
  const BlockTable table = const_cast<Sequence&>(live.handle).block_table();
  const std::uint32_t n = live.handle.committed();
  for (std::uint32_t r = 0; r < options_.ranks; ++r) {
    for (std::uint32_t i = 0; i < n; ++i) {
      for (std::uint32_t l = 0; l < options_.layers; ++l) {
        const std::uint64_t want = Cell(live.tokens, i + 1, r, l);
        if (std::memcmp(workers_[r].At(kHbmTier, SlotId(table.slots[i / kTokens]), l) +
                            i % kTokens * kCellBytes,
                        &want, kCellBytes) != 0) {
          return Fail("rank " + std::to_string(r) + ": token " + std::to_string(i) + " of " +
                      std::to_string(n) + " has wrong bytes in layer " + std::to_string(l));
        }
        ++verified_;
      }
    }
  }
}

void RankWorld::Finish(int sequence) {
  const auto at = live_.find(sequence);
  if (at != live_.end()) live_.erase(at);
}

void RankWorld::Exchange(bool all) {
  const RankFaults none;
  do {
    for (std::uint32_t r = 0; r < options_.ranks; ++r) {
      if (!all && Chance(0.2)) continue;  // a message is late
      engine_->DrainPlan(r, plan_);
      workers_[r].Receive(plan_);
      clock_.Advance(std::chrono::microseconds(50));
      engine_->Report(r, workers_[r].Work(all ? none : options_.faults, random_));
    }
    if (all) manager_->Poll();
  } while (all && (engine_->outstanding() != 0 || manager_->table_sizes().transfers != 0));
}

void RankWorld::Step() {
  const auto pick = [&](bool paused) -> Live* {
    std::vector<Live*> some;
    for (auto& [number, live] : live_) {
      if (live.handle.paused() == paused && !live.loading) some.push_back(&live);
    }
    return some.empty() ? nullptr : some[random_() % some.size()];
  };
  std::string step = "exchange";
  switch (random_() % 12) {
    case 0:
    case 1:
      step = "admit";
      if (live_.size() < kMaxLive) Admit(Prompt(), SessionId(random_() % 4));
      break;
    case 2:
      step = "finish";
      if (!live_.empty()) Finish(std::next(live_.begin(), random_() % live_.size())->first);
      break;
    case 3:
      step = "append";
      if (Live* live = pick(false); live != nullptr && live->tokens.size() < 6 * kTokens) {
        const auto t = static_cast<Token>(100 + live->tokens.size());
        if (live->handle.Append(t) == Outcome::kOk) {
          live->tokens.push_back(t);
          Compute(*live);
        }
      }
      break;
    case 4:
      step = "pause";
      if (Live* live = pick(false)) {
        (void)(random_() % 3 == 0 ? live->handle.Preempt(PreemptMode::kOffload)
                                  : live->handle.Pause({.wait = WaitClass::kTool}));
      }
      break;
    case 5:
      step = "resume";
      if (Live* live = pick(true)) {
        Admission admission = live->handle.Resume();
        if (admission.granted()) Take(*live, std::move(admission));
      }
      break;
    case 6:
      step = "offload";
      (void)manager_->Offload(Prompt());
      break;
    case 7:
      step = "onboard";
      (void)manager_->Onboard(Prompt());
      break;
    case 8:
      step = "evict";
      (void)manager_->Evict(static_cast<TierIndex>(random_() % 2), random_() % 3);
      break;
    default:
      Exchange();
      break;
  }
  if (random_() % 2 == 0) manager_->Poll();
  for (auto& [number, live] : live_) Settle(live);
  Check(step);
}

void RankWorld::Check(const std::string& step) {
  if (const Status audit = manager_->Audit(); !audit.ok()) {
    Fail("after " + step + ": " + std::string(audit.message()));
  }
  if (engine_->outstanding() > manager_->table_sizes().transfers) {
    Fail("after " + step + ": the engine has more copies than the manager");
  }
  for (const FakeWorker& worker : workers_) {
    if (!worker.violation().empty()) Fail("after " + step + ": " + worker.violation());
  }
  for (const auto& [number, live] : live_) Verify(live);
}

void RankWorld::WindDown() {
  EndAll();
  Exchange(true);
  manager_->Poll();
  manager_->DrainStepWork(Fence::Done(), work_);
  Check("the end");
  const PoolCounts counts = manager_->counts();
  if (counts.held + counts.moving + counts.quarantined != 0) Fail("slots are left behind");
  for (std::uint32_t r = 0; r < options_.ranks; ++r) {
    engine_->DrainPlan(r, plan_);
    if (!plan_.copies.empty() || !workers_[r].held().empty()) Fail("a rank has copies left");
  }
}

}  // namespace tidepool::testing
