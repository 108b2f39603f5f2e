#include "cache.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace policy_lab {
namespace {

using tidepool::CopyState;
using tidepool::Outcome;
using tidepool::Status;
using tidepool::TierIndex;

// Virtual time passes in jumps, so nothing may expire by it.
constexpr tidepool::Duration kForever = std::chrono::hours(24 * 365 * 10);
constexpr std::uint32_t kMaxSequences = 16'383;

LinkModel ModelOf(const Settings& settings) {
  LinkModel model{.block_bytes = settings.block_bytes, .instant = settings.mode == Mode::kNoHold};
  for (std::size_t i = 0; i < model.bytes_per_second.size(); ++i) {
    const std::size_t last = settings.link_gbs.size() - 1;
    model.bytes_per_second[i] = settings.link_gbs[std::min(i, last)] * 1e9;
  }
  model.shared[1] = settings.nvme_link == LinkSharing::kShared;
  return model;
}

tidepool::CostModel ManagerCost(const Settings& settings, std::uint32_t trace_block_tokens) {
  const BlockCost cost(settings.prefill, trace_block_tokens);
  return {.c0_seconds = cost.base_s, .c1_seconds_per_token = cost.slope_s / kBlockTokens};
}

Status UnexpectedOutcome(std::string_view what, std::uint32_t request, Outcome outcome) {
  return absl::InternalError("request " + std::to_string(request) + ": " + std::string(what) +
                             " answered " + std::string(tidepool::ToString(outcome)));
}

}  // namespace

Cache::Cache(const RunSpec& spec)
    : spec_(spec),
      hints_(*spec.workload, *spec.settings, spec.schedule->seed),
      last_request_(spec.workload->sessions, kNoRequest) {
  const bool tiering_looks = spec.tiering != nullptr && spec.tiering->needs_future;
  if (spec.policy->needs_future || spec.lower_policy->needs_future || tiering_looks) {
    const std::uint32_t largest = spec.capacity_blocks - 1;
    future_ = std::make_unique<Future>(*spec.workload, *spec.nominal, spec.settings->mode, largest);
  }
}

std::uint32_t Cache::DramBlocks() const {
  return spec_.settings->DramBlocks(spec_.capacity_blocks);
}

std::uint32_t Cache::tiers() const {
  return 1 + (DramBlocks() != 0) + (spec_.settings->nvme_blocks != 0);
}

PolicyContext Cache::Context() const {
  return {.settings = spec_.settings,
          .future = future_.get(),
          .training = spec_.training,
          .seed = spec_.schedule->seed};
}

std::unique_ptr<tidepool::EvictionPolicy> Cache::MakePolicy(TierIndex tier) {
  const bool hbm = tier == tidepool::kHbmTier;
  const PolicyEntry& entry = hbm ? *spec_.policy : *spec_.lower_policy;
  std::unique_ptr<tidepool::EvictionPolicy> policy =
      !hbm && tiering_.lower ? tiering_.lower(tier) : entry.make(Context());
  if (hbm && spec_.settings->release_after_s) {
    auto releasable = std::make_unique<ReleasablePolicy>(std::move(policy));
    releasable_ = releasable.get();
    policy = std::move(releasable);
  }
  return MakeTimedPolicy(std::move(policy), &decisions_[tier], future_.get(), &prefetches_);
}

Status Cache::Create() {
  const Settings& settings = *spec_.settings;
  const LinkModel model = ModelOf(settings);
  tidepool::ManagerOptions o;
  o.layout = tidepool::KvLayout::Opaque(kRealBlockBytes, kBlockTokens);
  const auto add = [&](tidepool::TierKind kind, std::uint32_t blocks) {
    if (blocks == 0) return;
    tidepool::TierSpec tier{.kind = kind, .slots = blocks};
    if (!o.tiers.empty()) {
      tier.prior_bytes_per_second =
          model.bytes_per_second[o.tiers.size() - 1] * kRealBlockBytes / settings.block_bytes;
      tier.prior_latency = model.latency;
    }
    o.tiers.push_back(std::move(tier));
  };
  add(tidepool::TierKind::kHbm, spec_.capacity_blocks);
  add(tidepool::TierKind::kDram, DramBlocks());
  add(tidepool::TierKind::kRemote, settings.nvme_blocks);  // kNvme would want a file
  const TieringEntry& entry = spec_.tiering != nullptr ? *spec_.tiering : Tierings().front();
  tiering_ = entry.make(Context());
  o.migrator = std::move(tiering_.migrator);
  o.policy = [this](TierIndex tier) { return MakePolicy(tier); };
  auto engine = std::make_unique<LinkEngine>(model, &clock_, &prefetches_);
  engine_ = engine.get();
  o.engine = std::move(engine);
  o.clock = &clock_;
  o.observer = spec_.trace;
  o.recompute = ManagerCost(settings, spec_.workload->block_tokens);
  o.match_partial_tail = false;
  o.max_sequences = kMaxSequences;
  o.demand_ttl = kForever;
  o.load_ttl = kForever;
  tidepool::StatusOr<std::unique_ptr<tidepool::KvCacheManager>> manager =
      tidepool::KvCacheManager::Create(std::move(o));
  if (!manager.ok()) return manager.status();
  manager_ = *std::move(manager);
  return absl::OkStatus();
}

void Cache::BuildPrompt(std::uint32_t request, std::uint32_t blocks, std::uint32_t more_tokens) {
  const LabRequest& r = spec_.workload->requests[request];
  prompt_.assign(std::size_t{blocks} * kBlockTokens + more_tokens, 0);
  std::size_t at = 0;
  ForEachRun(*spec_.workload, r, 0, blocks, [&](std::uint32_t block, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i, at += kBlockTokens) {
      prompt_[at] = static_cast<tidepool::Token>(block + i);
    }
  });
}

std::span<const tidepool::BlockId> Cache::Find(std::uint32_t request, std::uint32_t blocks) {
  BuildPrompt(request, blocks, 0);
  found_.clear();
  manager_->Lookup(prompt_, tidepool::NamespaceId(0), found_);
  return found_;
}

Cache::Residency Cache::Look(std::uint32_t request, std::uint32_t blocks) {
  const tidepool::BlockView view(&manager_->pool(), &manager_->index());
  Residency residency;
  for (const tidepool::BlockId b : Find(request, blocks)) {
    residency.in_hbm += view.Copy(b, tidepool::kHbmTier) == CopyState::kValid ? 1 : 0;
    bool moving = false;
    for (TierIndex t = 0; t < tiers(); ++t) moving |= view.Copy(b, t) == CopyState::kWriting;
    residency.moving += moving ? 1 : 0;
  }
  return residency;
}

Cache::Released Cache::Release(std::uint32_t request) {
  const tidepool::BlockView view(&manager_->pool(), &manager_->index());
  const auto path = Find(request, spec_.workload->requests[request].blocks);
  std::vector<tidepool::BlockId> own(path.rbegin(), path.rend());
  std::erase_if(own, [&](tidepool::BlockId b) {
    return view.Claims(b) > 1 || view.Copy(b, tidepool::kHbmTier) != CopyState::kValid;
  });
  const auto n = static_cast<std::uint32_t>(own.size());
  if (n == 0) return {};
  releasable_->NameOnly(own);
  const std::uint32_t gone = manager_->Evict(tidepool::kHbmTier, n);
  releasable_->NameOnly({});
  return {gone, n - gone};
}

void Cache::Promote() {
  if (tiering_.promotions == nullptr) return;
  tiering_.promotions->Serve([&](tidepool::SessionId session) {
    const std::uint32_t request = last_request_[session.value()];
    if (request == kNoRequest) return true;  // it runs
    BuildPrompt(request, spec_.workload->requests[request].blocks, 0);
    return manager_->Onboard(prompt_).outcome != Outcome::kBusy;
  });
}

Cache::Grant Cache::Admit(std::uint32_t request, std::uint32_t blocks,
                          std::uint32_t decode_blocks) {
  const LabRequest& r = spec_.workload->requests[request];
  BuildPrompt(request, blocks, 1);
  const auto before = manager_->stats().hit_tokens;
  const auto start = std::chrono::steady_clock::now();
  tidepool::Admission admission =
      manager_->Admit({.session = r.session,
                       .tokens = prompt_,
                       .priority = spec_.settings->priority,
                       .lookahead_tokens = decode_blocks * kBlockTokens,
                       .two_ended = tiering_.two_ended,
                       .recompute_if_sooner = tiering_.recompute_if_sooner});
  Grant grant;
  grant.lookup_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  grant.outcome = admission.outcome;
  grant.shortfall = admission.shortfall;
  if (!admission.granted()) return grant;
  last_request_[r.session] = kNoRequest;
  for (std::uint32_t t = 0; t < tiers(); ++t) {
    const std::uint64_t tokens = manager_->stats().hit_tokens[t] - before[t];
    grant.hits[t] = static_cast<std::uint32_t>(tokens / kBlockTokens);
  }
  grant.sequence = std::move(admission.sequence);
  grant.ticket = std::move(admission.ticket);
  return grant;
}

double Cache::LoadSeconds(const Grant& grant) const {
  double seconds = 0;
  for (const tidepool::LinkSignals& link : manager_->signals().links) {
    if (link.to != tidepool::kHbmTier || grant.hits[link.from] == 0) continue;
    seconds = std::max(seconds, std::chrono::duration<double>(link.latency).count());
  }
  return seconds;
}

Status Cache::Finish(std::uint32_t request, tidepool::Sequence sequence, TimePoint next_arrival) {
  const LabRequest& r = spec_.workload->requests[request];
  Outcome outcome = sequence.Commit(sequence.tokens(), tidepool::Fence::Done());
  if (outcome != Outcome::kOk) return UnexpectedOutcome("Commit", request, outcome);
  if (future_ != nullptr) future_->BeginRelease(request, now(), next_arrival);
  last_request_[r.session] = request;
  const Duration wait = r.next == kNoRequest ? Duration::max() : next_arrival - now();
  outcome = sequence.Finish(tidepool::Fence::Done(), hints_.AtEnd(request, wait));
  if (outcome != Outcome::kOk) return UnexpectedOutcome("Finish", request, outcome);
  if (r.next == kNoRequest && spec_.settings->completion == Completion::kSignalled) {
    (void)manager_->CompleteSession(r.session);  // unknown when nothing of it was published
  }
  return absl::OkStatus();
}

void Cache::Report(RunFigures& figures) const {
  figures.capacity_blocks = spec_.capacity_blocks;
  figures.victims = decisions_[0].victims;
  figures.select_ns = static_cast<double>(decisions_[0].select_ns);
  const auto n = static_cast<TierIndex>(tiers());
  for (TierIndex t = 1; t < n; ++t) {
    for (TierIndex other = 0; other < t; ++other) {
      figures.bytes_down[t] += engine_->MovedBytes(other, t);
      figures.bytes_up[t] += engine_->MovedBytes(t, other);
    }
  }
  figures.prefetches = prefetches_.counts();
  if (tiering_.tide != nullptr) figures.tide = tiering_.tide->counters();
}

}  // namespace policy_lab
