#include "src/testing/conformance_world.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tidepool/testing/fake_transfer_engine.h"
#include "tidepool/testing/policy_decorator.h"

namespace tidepool::testing {
namespace {

constexpr std::uint64_t kBlockBytes = 16;
constexpr std::uint32_t kSessions = 12;  // at a time
constexpr std::uint32_t kSharedTokens = 10;
constexpr TimelineId kTimeline = 0;

// Looks at the answers.
class WatchedPolicy final : public PolicyDecorator {
 public:
  WatchedPolicy(std::unique_ptr<EvictionPolicy> policy, std::string* violation)
      : PolicyDecorator(std::move(policy)), violation_(violation) {}

  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override {
    view_ = blocks;
    tier_ = tier;
    policy().Attach(blocks, tier, slots);
  }
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    const std::vector<BlockId> before = victims;
    policy().SelectVictims(query, signals, victims);
    std::vector<BlockId> again = before;
    policy().SelectVictims(query, signals, again);
    if (violation_->empty()) *violation_ = Wrong(query, before, victims, again);
  }

 private:
  [[nodiscard]] std::string Wrong(const VictimQuery& query, const std::vector<BlockId>& before,
                                  const std::vector<BlockId>& after,
                                  const std::vector<BlockId>& again) const {
    if (after != again) return "SelectVictims: asked twice, answered differently";
    if (after.size() < before.size() || !std::equal(before.begin(), before.end(), after.begin())) {
      return "SelectVictims changed what the list held before";
    }
    std::vector<BlockId> named(after.begin() + static_cast<std::ptrdiff_t>(before.size()),
                               after.end());
    if (named.size() > query.blocks) return "SelectVictims named more blocks than asked for";
    for (const BlockId b : named) {
      if (b.value() >= view_.capacity()) return "SelectVictims named a block that does not exist";
      if (view_.Copy(b, tier_) != CopyState::kValid) {
        return "SelectVictims named a block that the tier does not hold";
      }
      if (query.filter != nullptr && !query.filter->Allows(b)) {
        return "SelectVictims named a block that the filter bars";
      }
    }
    std::sort(named.begin(), named.end());
    const bool twice = std::adjacent_find(named.begin(), named.end()) != named.end();
    return twice ? "SelectVictims named a block twice" : "";
  }

  std::string* violation_;
  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = 0;
};

ManagerOptions OptionsOf(const WorldOptions& world, const Clock* clock) {
  ManagerOptions options;
  options.layout = KvLayout::Opaque(kBlockBytes, ConformanceWorld::kBlockTokens);
  for (std::size_t t = 0; t < world.slots.size(); ++t) {
    options.tiers.push_back(t == 0 ? Hbm(HostArena(0)) : Dram(0));
    options.tiers.back().slots = world.slots[t];
  }
  options.clock = clock;
  options.recompute = {.c0_seconds = 1e-3, .c1_seconds_per_token = 1e-6};
  FakeEngineOptions engine{.automatic = true, .seed = world.seed};
  if (world.faults) engine.faults = {.fail = 0.05, .delay = 0.3, .reorder = 0.3, .refuse = 0.1};
  options.engine = std::make_unique<FakeTransferEngine>(engine);
  return options;
}

}  // namespace

PolicyMaker Watched(const PolicyMaker& make, std::string* violation) {
  return [&make, violation](TierIndex tier) {
    return std::make_unique<WatchedPolicy>(make(tier), violation);
  };
}

ConformanceWorld::ConformanceWorld(const PolicyMaker& make, WorldOptions options)
    : options_(std::move(options)), random_(options_.seed) {
  ManagerOptions manager = OptionsOf(options_, &clock_);
  const PolicyMaker watched = Watched(make, &violation_);
  manager.policy = [this, &watched](TierIndex tier) {
    std::unique_ptr<EvictionPolicy> policy = watched(tier);
    policies_.push_back(policy.get());
    return policy;
  };
  auto created = KvCacheManager::Create(std::move(manager));
  if (created.ok()) manager_ = *std::move(created);
}

ConformanceWorld::~ConformanceWorld() = default;

// --- Single steps. ---

std::vector<Token> ConformanceWorld::Text(std::uint32_t text, std::uint32_t blocks) const {
  std::vector<Token> tokens(std::size_t{blocks} * kBlockTokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<Token>((text + 1) * 100'000 + i);
  }
  return tokens;
}

Sequence ConformanceWorld::Run(std::uint32_t text, std::uint32_t blocks, Priority priority) {
  const std::vector<Token> tokens = Text(text, blocks);
  Admission a = manager_->Admit({.session = SessionId(text),
                                 .request = RequestId(text),
                                 .tokens = tokens,
                                 .priority = priority,
                                 .timeline = kTimeline});
  Expect(a.granted(), "a request that fits was refused");
  if (a.granted()) {
    (void)a.sequence.Commit(static_cast<std::uint32_t>(tokens.size()), Fence::Done());
  }
  return std::move(a.sequence);
}

void ConformanceWorld::Cache(std::uint32_t text, std::uint32_t blocks, Priority priority,
                             const PauseHint& wait) {
  Sequence sequence = Run(text, blocks, priority);
  (void)sequence.Finish(Fence::Done(), wait);
}

std::uint32_t ConformanceWorld::Found(std::uint32_t text, std::uint32_t blocks) const {
  const std::vector<Token> tokens = Text(text, blocks);
  return manager_->Probe({.tokens = tokens}).tokens / kBlockTokens;
}

bool ConformanceWorld::FillHbm() {
  constexpr int kRounds = 50;
  const std::vector<Token> tokens = Text(1'000, manager_->slots(kHbmTier));
  for (int round = 0; round < kRounds; ++round) {
    Admission a = manager_->Admit(
        {.request = RequestId(1'000), .tokens = tokens, .priority = Priority::kCritical});
    if (a.granted()) return true;
    Settle();
  }
  return false;
}

std::vector<BlockId> ConformanceWorld::Victims(TierIndex tier, std::uint32_t count) {
  std::vector<BlockId> victims;
  policies_[tier]->SelectVictims({.blocks = count}, manager_->signals(), victims);
  return victims;
}

void ConformanceWorld::Expect(bool holds, const std::string& what) {
  if (!violation_.empty()) return;
  const Status audit = manager_->Audit();
  if (!audit.ok()) violation_ = audit.ToString();
  if (!holds) violation_ = what;
}

// --- Random steps. ---

void ConformanceWorld::RandomStep() {
  const std::uint32_t what = Below(20);
  if (live_.empty() || what < 5) {
    Admit();
  } else if (what < 8) {
    Grow(live_[Below(static_cast<std::uint32_t>(live_.size()))]);
  } else if (what < 12) {
    Leave(Below(static_cast<std::uint32_t>(live_.size())));
  } else if (what < 15) {
    Touch(live_[Below(static_cast<std::uint32_t>(live_.size()))]);
  } else if (what < 17) {
    MoveClock();
  } else if (what < 18) {
    ChangeRoom();
  } else {
    manager_->Poll();
    (void)manager_->CompleteStep(kTimeline, step_);
  }
  Expect(true, "");
}

std::vector<Token> ConformanceWorld::Prompt(std::uint32_t session, std::uint32_t tokens) const {
  std::vector<Token> prompt(tokens);
  for (std::uint32_t i = 0; i < tokens; ++i) {
    prompt[i] = static_cast<Token>(i < kSharedTokens ? i : (session + 1) * 1'000 + i);
  }
  return prompt;
}

void ConformanceWorld::Admit() {
  const std::uint32_t session = Below(kSessions);
  const std::uint32_t most = manager_->slots(kHbmTier) * kBlockTokens / 2;
  const std::uint32_t length = 1 + Below(std::max(most, 2u));
  const std::vector<Token> prompt = Prompt(session, length);
  Admission a = manager_->Admit({.session = SessionId(session),
                                 .request = RequestId(session),
                                 .tokens = prompt,
                                 .priority = static_cast<Priority>(Below(kPriorityCount)),
                                 .timeline = kTimeline,
                                 .critical_path = Below(4) == 0});
  if (!a.granted()) {
    manager_->Poll();
    return;
  }
  live_.push_back({std::move(a.sequence), session, length});
  Commit(live_.back());
}

void ConformanceWorld::Grow(Live& live) {
  const std::uint32_t added = 1 + Below(kBlockTokens * 2);
  const std::vector<Token> longer = Prompt(live.session, live.length + added);
  if (live.sequence.Append(std::span(longer).subspan(live.length)) != Outcome::kOk) return;
  live.length += added;
  Commit(live);
}

void ConformanceWorld::Commit(Live& live) {
  const Fence fence = Below(3) == 0 ? Fence{kTimeline, ++step_} : Fence::Done();
  (void)live.sequence.Commit(live.sequence.tokens(), fence);
  live.length = live.sequence.tokens();
}

void ConformanceWorld::Leave(std::size_t index) {
  Live& live = live_[index];
  const std::uint32_t how = Below(10);
  if (how < 3) {
    (void)live.sequence.Pause(RandomHint());
    return;
  }
  if (how < 4) {
    (void)live.sequence.Preempt(Below(2) == 0 ? PreemptMode::kOffload : PreemptMode::kRecompute);
    return;
  }
  (void)live.sequence.Finish(Fence::Done(), RandomHint());
  if (how == 9) (void)manager_->CompleteSession(SessionId(live.session));
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
}

void ConformanceWorld::Touch(Live& live) {
  const std::vector<Token> prompt = Prompt(live.session, std::max(live.length, 1u));
  switch (Below(6)) {
    case 0:
      return Fork(live);
    case 1:
      (void)live.sequence.Truncate(1 + Below(std::max(live.sequence.tokens(), 1u)));
      live.length = live.sequence.tokens();
      return;
    case 2:
      (void)manager_->UpdateExpectedReturn(SessionId(live.session), clock_.Now() + RandomDuration(),
                                           RandomHint().expected_return_log_sd);
      return;
    case 3:
      (void)manager_->Probe({.tokens = prompt});
      return;
    case 4:
      (void)manager_->Offload(prompt);
      return;
    default:
      (void)live.sequence.Resume();
  }
}

void ConformanceWorld::Fork(Live& live) {
  ForkResult fork = live.sequence.Fork();
  if (fork.outcome != Outcome::kOk) return;
  live_.push_back({std::move(fork.sequence), live.session, live.length});
}

void ConformanceWorld::MoveClock() {
  if (!options_.any_clock) {
    clock_.Advance(std::chrono::milliseconds(Below(20'000)));
  } else if (Below(2) == 0) {
    clock_.Set(TimePoint{std::chrono::seconds(Below(100'000))});
  }
}

void ConformanceWorld::ChangeRoom() {
  const auto tier = static_cast<TierIndex>(Below(static_cast<std::uint32_t>(policies_.size())));
  const std::uint32_t most = options_.slots[tier];
  switch (Below(10)) {
    case 0:
      (void)manager_->AdvanceEpoch();
      return;
    case 1:
      (void)manager_->Clear();
      return;
    case 2:
      (void)manager_->Resize(tier, most);
      return;
    case 3:
      (void)manager_->Resize(tier, most / 2 + Below(most / 2 + 1));
      return;
    default:
      (void)manager_->Evict(tier, 1 + Below(most));
  }
}

Duration ConformanceWorld::RandomDuration() {
  if (!options_.hostile_signals) return std::chrono::milliseconds(Below(60'000));
  switch (Below(4)) {
    case 0:
      return -std::chrono::hours(1);
    case 1:
      return Duration::max() / 2;
    case 2:
      return Duration::min() / 4;
    default:
      return Duration(0);
  }
}

PauseHint ConformanceWorld::RandomHint() {
  constexpr float kSpreads[] = {std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                -1.0f,
                                0.0f,
                                std::numeric_limits<float>::max()};
  PauseHint hint{.wait = static_cast<WaitClass>(Below(5)), .tool = Below(3)};
  if (Below(2) == 0) hint.expected_return = RandomDuration();
  hint.expected_return_log_sd = options_.hostile_signals ? kSpreads[Below(6)] : 0.5f;
  return hint;
}

void ConformanceWorld::Settle() {
  (void)manager_->CompleteStep(kTimeline, step_);
  manager_->Poll();
  (void)manager_->WaitIdle(std::chrono::seconds(1));
}

void ConformanceWorld::EndAll() {
  for (Live& live : live_) (void)live.sequence.Finish();
  live_.clear();
  Settle();
  for (std::uint32_t s = 0; s < kSessions; ++s) {
    manager_->CancelDemand(RequestId(s), SessionId(s));
    (void)manager_->CompleteSession(SessionId(s));
  }
  Settle();
}

void ConformanceWorld::Drain() {
  EndAll();
  for (TierIndex t = 0; t < policies_.size(); ++t) (void)manager_->Resize(t, options_.slots[t]);
  Settle();
  Expect(FillHbm(), "with nothing running, a request as large as HBM was not admitted");
  for (auto t = static_cast<TierIndex>(policies_.size()); t-- > 0;) {
    (void)manager_->Evict(t, std::numeric_limits<std::uint32_t>::max());
    Expect(manager_->used_slots(t) == 0,
           "tier " + std::to_string(t) + " keeps blocks that nothing protects");
  }
}

}  // namespace tidepool::testing
