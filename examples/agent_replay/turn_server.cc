#include "turn_server.h"

#include <time.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "chrome_trace.h"
#include "random.h"
#ifdef TIDEPOOL_HAVE_URING
#include "tidepool/transfer/uring_file_io.h"
#endif

namespace agent_replay {
namespace {

using tidepool::Admission;
using tidepool::Outcome;
using tidepool::Status;
using tidepool::StatusOr;

// Virtual time passes in jumps, so nothing may expire by it.
constexpr tidepool::Duration kForever = std::chrono::hours(24 * 365 * 10);
constexpr tidepool::Duration kTransferTimeout = std::chrono::seconds(60);
// Rounds of Poll and WaitIdle in which nothing moved, until a turn has to wait for others.
constexpr int kIdleRounds = 3;
constexpr int kMaxFailedLoads = 8;
constexpr std::uint32_t kMaxPaused = 8192;
constexpr std::uint32_t kMaxSequences = 16'383;
const tidepool::TimelineId kTimeline = 0;
constexpr std::uint64_t kTailBit = std::uint64_t{1} << 63;  // tails are no block ids

/// Adds the CPU time of its scope to a counter.
class CpuTimer {
 public:
  explicit CpuTimer(std::uint64_t& sum_ns) : sum_ns_(sum_ns), start_ns_(Now()) {}
  ~CpuTimer() { sum_ns_ += Now() - start_ns_; }
  CpuTimer(const CpuTimer&) = delete;
  CpuTimer& operator=(const CpuTimer&) = delete;

 private:
  static std::uint64_t Now() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
           static_cast<std::uint64_t>(now.tv_nsec);
  }
  std::uint64_t& sum_ns_;
  std::uint64_t start_ns_;
};

std::uint64_t TailKey(const Request& request) {
  return (Mix(Mix(request.scope) ^ request.session) + request.turn) | kTailBit;
}

StatusOr<std::unique_ptr<tidepool::FileIo>> MakeFileIo(const ReplayOptions& options) {
  if (options.make_file_io) return options.make_file_io();
  if (options.io == FileBackend::kUring) {
#ifdef TIDEPOOL_HAVE_URING
    return tidepool::MakeUringFileIo();
#else
    return absl::InvalidArgumentError("--io uring: this build has no io_uring component");
#endif
  }
  // One thread keeps copies in order, and lockstep is about order.
  return options.pace == Pace::kLockstep ? tidepool::MakeThreadFileIo(1)
                                         : tidepool::MakeThreadFileIo();
}

/// Length of the common prefix, in blocks.
std::uint64_t CommonBlocks(const Trace& trace, const Request& a, const Request& b) {
  const std::span<const BlockRange> x = trace.RangesOf(a);
  const std::span<const BlockRange> y = trace.RangesOf(b);
  std::uint64_t common = 0;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i].first != y[i].first) break;
    common += std::min(x[i].count(), y[i].count());
    if (x[i].last != y[i].last) break;
  }
  return common;
}

double Microseconds(std::uint64_t ns) { return static_cast<double>(ns) / 1000; }

TimeSummary Summary(std::vector<std::uint64_t> ns) {
  if (ns.empty()) return {};
  std::sort(ns.begin(), ns.end());
  std::uint64_t sum = 0;
  for (const std::uint64_t n : ns) sum += n;
  return {.mean_us = Microseconds(sum) / static_cast<double>(ns.size()),
          .p50_us = Microseconds(ns[ns.size() / 2]),
          .p99_us = Microseconds(ns[ns.size() * 99 / 100])};
}

Status RequestError(std::uint32_t request, const std::string& what) {
  return absl::InternalError("request " + std::to_string(request) + ": " + what);
}

std::string Name(Outcome outcome) { return std::string(tidepool::ToString(outcome)); }

}  // namespace

TurnServer::TurnServer(const Trace& trace, const Schedule& schedule, const ReplayOptions& options)
    : trace_(trace),
      schedule_(schedule),
      options_(options),
      max_blocks_(MaxRequestBlocks(options.tier_blocks[0])),
      clock_(options.pace == Pace::kWallClock),
      sessions_(schedule.sessions) {}

Status TurnServer::Create() {
  // Four layers where they come out even: loads become usable layer by layer.
  layers_ = options_.block_bytes % (4 * 64) == 0 ? 4 : 1;
  layer_bytes_ = options_.block_bytes / layers_;
  tidepool::ManagerOptions o;
  o.layout = tidepool::KvLayout::Opaque(options_.block_bytes, options_.block_tokens, layers_);
  const auto add = [&](std::size_t tier, tidepool::TierSpec spec) {
    result_.tiers[tier].blocks = options_.tier_blocks[tier];
    if (options_.tier_blocks[tier] == 0) return;
    spec.bytes = 0;
    spec.slots = options_.tier_blocks[tier];
    o.tiers.push_back(std::move(spec));
    tier_of_.push_back(tier);
  };
  add(0, tidepool::Hbm(tidepool::HostArena(0)));
  add(1, tidepool::Dram(0));
  add(2,
      tidepool::Nvme(options_.nvme_path, 0, {.keep = options_.keep, .identity = "agent_replay"}));
  StatusOr<std::unique_ptr<tidepool::FileIo>> file_io = MakeFileIo(options_);
  if (!file_io.ok()) return file_io.status();
  tidepool::HostEngineOptions engine;
  engine.file_io = *std::move(file_io);
  o.engine = tidepool::MakeHostEngine(std::move(engine));
  engine_ = o.engine.get();
  result_.transfers = "host memory only";
  if (tier_of_.size() > 1) result_.transfers = o.engine->Describe();
  if (options_.tiering == Tiering::kTide && tier_of_.size() > 1) {
    tide_ = std::make_shared<tidepool::Tide>();
    o.migrator = tide_->MakePlanner();
  }
  o.policy = [this](tidepool::TierIndex tier) -> std::unique_ptr<tidepool::EvictionPolicy> {
    if (tide_ != nullptr && tier != tidepool::kHbmTier) return tide_->MakePolicy(tier);
    if (options_.policy == HbmPolicy::kLru) return tidepool::MakeLruPolicy();
    return tidepool::MakeSpearPolicy(tidepool::SpearForHits());
  };
  o.clock = &clock_;
  o.observer = options_.trace;
  o.demand_ttl = kForever;
  o.load_ttl = kForever;
  o.max_sequences = kMaxSequences;
  o.max_sequence_blocks = max_blocks_ + 1;
  StatusOr<std::unique_ptr<tidepool::KvCacheManager>> manager =
      tidepool::KvCacheManager::Create(std::move(o));
  if (!manager.ok()) return manager.status();
  manager_ = *std::move(manager);
  if (tier_of_.size() > 1) result_.transfers = manager_->DescribeTransfers();
  return absl::OkStatus();
}

void TurnServer::Poll() {
  manager_->Poll();
  if (options_.trace != nullptr) options_.trace->Sample(*manager_, clock_.Now());
}

// --- The trace. ---

void TurnServer::TraceWait(std::uint32_t request, const Session& session) {
  if (options_.trace == nullptr || !session.returns) return;
  const GapKind kind = trace_.requests[request].gap_kind;
  const char* name = kind == GapKind::kTool   ? "wait: tool"
                     : kind == GapKind::kUser ? "wait: user"
                                              : "wait";
  options_.trace->Part(schedule_.session[request], name, session.ended, clock_.Now());
}

void TurnServer::TraceTurn(std::uint32_t request, const Session& session) {
  if (options_.trace == nullptr) return;
  const std::uint32_t track = schedule_.session[request];
  options_.trace->Part(track, "turn", session.begun, session.ended);
  options_.trace->Part(track, "queue", session.begun, session.placed);
  options_.trace->Part(track, "load", session.placed, session.started);
  options_.trace->Part(track, "compute", session.started, session.ended);
  options_.trace->Sample(*manager_, clock_.Now());
}

// --- Room. ---

void TurnServer::Begin(std::uint32_t index) {
  Session& session = SessionOf(index);
  const Request& request = trace_.requests[index];
  TraceWait(index, session);
  session.begun = clock_.Now();
  // Unknown at a session's first request, and when everything of it has left.
  if (tide_ != nullptr) (void)manager_->SessionArrived(schedule_.session[index]);
  const std::uint32_t blocks = std::min(request.blocks, max_blocks_);
  session.kept_blocks = 0;
  if (session.returns) {
    const std::uint64_t common = CommonBlocks(trace_, RequestOf(session), request);
    session.kept_blocks =
        static_cast<std::uint32_t>(std::min<std::uint64_t>({common, session.blocks, blocks}));
  }
  if (session.stage == Stage::kPaused) {
    --paused_;
    // A prompt that did not only grow was rewritten: what is left of it, a fresh match finds.
    const bool grew = blocks >= session.blocks &&
                      CommonBlocks(trace_, RequestOf(session), request) >= session.blocks;
    if (!grew) Drop(session);
  }
  // The end of the prompt that fills no block, in the library's tokens; at least one, so that each
  // full block can be a hit.
  const std::uint64_t full = std::uint64_t{request.blocks} * trace_.block_tokens;
  const bool whole = blocks == request.blocks;
  const std::uint64_t rest = whole && request.input_tokens > full ? request.input_tokens - full : 0;
  const std::uint64_t tail = std::clamp<std::uint64_t>(
      rest * options_.block_tokens / trace_.block_tokens, 1, options_.block_tokens - 1);
  session.request = index;
  session.blocks = blocks;
  session.tokens = blocks * options_.block_tokens + static_cast<std::uint32_t>(tail);
  session.cpu_ns = 0;
  session.failed_loads = 0;
  session.stalled = false;
  if (!whole) {
    ++result_.clipped_requests;
    result_.clipped_blocks += request.blocks - blocks;
  }
}

void TurnServer::BuildPrompt(const Session& session) {
  const Request& request = RequestOf(session);
  prompt_.resize(session.tokens);
  std::span<tidepool::Token> rest(prompt_);
  ForEachBlock(trace_, request, session.blocks, [&](std::uint64_t id) {
    FillTokens({request.scope, id}, rest.first(options_.block_tokens));
    rest = rest.subspan(options_.block_tokens);
  });
  FillTailTokens(TailKey(request), rest);
}

std::uint64_t TurnServer::Activity() const {
  const tidepool::ManagerStats& stats = manager_->stats();
  std::uint64_t sum = stats.offloads + stats.loads + stats.dropped_blocks;
  for (std::size_t t = 0; t < tier_of_.size(); ++t) sum += stats.bytes_in[t] + stats.evicted[t];
  return sum;
}

StatusOr<bool> TurnServer::Place(std::uint32_t request) {
  Session& session = SessionOf(request);
  BuildPrompt(session);
  for (int idle_rounds = 0; idle_rounds < kIdleRounds;) {
    const Outcome outcome = TryPlace(session);
    if (outcome == Outcome::kOk) {
      session.placed = clock_.Now();
      return true;
    }
    if (outcome != Outcome::kBusy) {
      return RequestError(request, "its " + std::to_string(session.blocks) +
                                       " blocks were refused: " + Name(outcome));
    }
    if (!session.stalled) ++result_.stalls;
    session.stalled = true;
    const std::uint64_t before = Activity();
    manager_->Poll();
    if (Status s = Drain(); !s.ok()) return s;
    idle_rounds = Activity() == before ? idle_rounds + 1 : 0;
  }
  if (session.stage == Stage::kResumed) Drop(session);
  return false;
}

Outcome TurnServer::TryPlace(Session& session) {
  if (session.stage == Stage::kNone) return AdmitTurn(session);
  if (session.stage == Stage::kPaused) {
    const Outcome outcome = ResumeTurn(session);
    if (outcome != Outcome::kOk) return outcome;
  }
  return AppendTurn(session);
}

Outcome TurnServer::AdmitTurn(Session& session) {
  const auto before = manager_->stats().hit_tokens;
  Admission admission;
  {
    const CpuTimer timer(session.cpu_ns);
    admission = manager_->Admit(
        {.session = schedule_.session[session.request], .tokens = prompt_, .timeline = kTimeline});
  }
  if (!admission.granted()) return admission.outcome;
  const auto& after = manager_->stats().hit_tokens;
  session.hit_tokens.fill(0);
  for (std::size_t t = 0; t < tier_of_.size(); ++t) {
    session.hit_tokens[tier_of_[t]] = after[t] - before[t];
  }
  session.sequence = std::move(admission.sequence);
  session.ticket = std::move(admission.ticket);
  const std::uint32_t hit = admission.ready_tokens + admission.loading_tokens;
  session.hit_blocks = hit / options_.block_tokens;
  session.recomputed_tokens = session.tokens - hit;
  session.resumed = false;
  session.stage = Stage::kAdmitted;
  return Outcome::kOk;
}

Outcome TurnServer::ResumeTurn(Session& session) {
  const std::uint32_t old_tokens = session.sequence.tokens();
  const std::uint32_t old_blocks = old_tokens / options_.block_tokens;
  manager_->Poll();  // what has finished is harvested here, so that Lookup sees what Resume sees
  found_.clear();
  manager_->Lookup(std::span(prompt_).first(std::size_t{old_blocks} * options_.block_tokens),
                   tidepool::NamespaceId(0), found_);
  found_tiers_.clear();
  for (const tidepool::BlockId b : found_) {
    found_tiers_.push_back(manager_->pool().best_tier(b));
  }
  Admission admission;
  {
    const CpuTimer timer(session.cpu_ns);
    admission = session.sequence.Resume();
  }
  if (!admission.granted()) return admission.outcome;
  SplitHits(admission.ready_tokens + admission.loading_tokens, old_blocks, session);
  session.ticket = std::move(admission.ticket);
  // The end of the old prompt came back as it was, if nothing took it meanwhile.
  if (admission.ready_tokens == old_tokens) CheckTail(session, old_blocks);
  session.resumed = true;
  session.stage = Stage::kResumed;
  return CutTail(session, old_blocks * options_.block_tokens);
}

/// The old prompt ends where its full blocks end. Loads may be in the way; in lockstep they always
/// end before anything else happens.
Outcome TurnServer::CutTail(Session& session, std::uint32_t tokens) {
  const auto truncate = [&] {
    const CpuTimer timer(session.cpu_ns);
    return session.sequence.Truncate(tokens);
  };
  Outcome outcome = Outcome::kStillLoading;
  if (options_.pace != Pace::kLockstep) outcome = truncate();
  if (outcome != Outcome::kStillLoading) return outcome;
  if (Drain().ok() && session.ticket.Ready() != Outcome::kLoadFailed) return truncate();
  ++result_.failed_loads;
  Drop(session);
  return Outcome::kBusy;  // to be placed by a fresh match
}

/// By tier of the topmost copy, as Admit counts.
void TurnServer::SplitHits(std::uint32_t hit_tokens, std::uint32_t old_blocks, Session& session) {
  session.hit_blocks = std::min(old_blocks, hit_tokens / options_.block_tokens);
  session.recomputed_tokens = session.tokens - session.hit_blocks * options_.block_tokens;
  session.hit_tokens.fill(0);
  for (std::uint32_t i = 0; i < session.hit_blocks; ++i) {
    const std::size_t tier = i < found_tiers_.size() && found_tiers_[i] < tier_of_.size()
                                 ? tier_of_[found_tiers_[i]]
                                 : 0;
    session.hit_tokens[tier] += options_.block_tokens;
  }
}

Outcome TurnServer::AppendTurn(Session& session) {
  const CpuTimer timer(session.cpu_ns);
  const Outcome outcome =
      session.sequence.Append(std::span(prompt_).subspan(session.sequence.tokens()));
  if (outcome == Outcome::kOk) session.stage = Stage::kAdmitted;
  return outcome;
}

void TurnServer::Drop(Session& session) {
  const CpuTimer timer(session.cpu_ns);
  session.ticket = {};
  session.sequence.Finish();
  session.stage = Stage::kNone;
}

// --- Bytes. ---

StatusOr<bool> TurnServer::Start(std::uint32_t request) {
  Session& session = SessionOf(request);
  bad_positions_.clear();
  Outcome outcome = Outcome::kOk;
  std::chrono::nanoseconds waited{0};
  for (std::uint32_t layer = 0; layer < layers_ && outcome == Outcome::kOk; ++layer) {
    const auto asked = std::chrono::steady_clock::now();
    outcome = session.ticket.WaitReady(layer, kTransferTimeout);
    waited += std::chrono::steady_clock::now() - asked;
    if (outcome == Outcome::kOk && Verifies()) CheckReused(session, layer);
  }
  if (outcome == Outcome::kOk) {
    if (Verifies()) WriteRecomputed(session);
    outcome = CommitTurn(session);
  }
  if (outcome == Outcome::kLoadFailed) {
    ++result_.failed_loads;
    if (++session.failed_loads > kMaxFailedLoads) {
      return RequestError(request, "its loads failed again and again");
    }
    Drop(session);
    return false;
  }
  if (outcome != Outcome::kOk) return RequestError(request, "could not commit: " + Name(outcome));
  session.started = clock_.Now();
  load_wait_ns_.push_back(static_cast<std::uint64_t>(waited.count()));
  if (session.returns) {
    ++result_.tide.windows;
    const bool loaded = session.hit_tokens[1] + session.hit_tokens[2] != 0;
    result_.tide.windows_met += !loaded && session.hit_blocks >= session.kept_blocks ? 1 : 0;
  }
  if (Verifies()) {
    result_.verified_blocks += session.hit_blocks;
    result_.mismatches += bad_positions_.size();
  }
  for (std::size_t t = 0; t < kTiers; ++t) result_.tiers[t].hit_tokens += session.hit_tokens[t];
  result_.prompt_tokens += session.tokens;
  result_.recomputed_tokens += session.recomputed_tokens;
  result_.resumed += session.resumed ? 1 : 0;
  return true;
}

/// The last layer's bytes may be there a moment before the loads are known to be good.
Outcome TurnServer::CommitTurn(Session& session) {
  const auto commit = [&] {
    const CpuTimer timer(session.cpu_ns);
    return session.sequence.Commit(session.tokens, {kTimeline, step_});
  };
  ++step_;
  const Outcome outcome = commit();
  if (outcome != Outcome::kStillLoading) return outcome;
  return Drain().ok() ? commit() : outcome;
}

void TurnServer::CheckReused(Session& session, std::uint32_t layer) {
  const Request& request = RequestOf(session);
  const tidepool::BlockTable table = session.sequence.block_table();
  std::uint32_t position = 0;
  ForEachBlock(trace_, request, session.hit_blocks, [&](std::uint64_t id) {
    const BlockIdentity block{request.scope, id};
    if (!CheckPayload(LayerSeed(layer), block, Bytes(table.slots[position], layer))) {
      Mismatch(block, position);
    }
    ++position;
  });
}

void TurnServer::CheckTail(Session& session, std::uint32_t position) {
  if (!Verifies()) return;
  const BlockIdentity tail{RequestOf(session).scope, session.tail_key};
  const tidepool::BlockTable table = session.sequence.block_table();
  bool good = true;
  for (std::uint32_t layer = 0; layer < layers_; ++layer) {
    good = good && CheckPayload(LayerSeed(layer), tail, Bytes(table.slots[position], layer));
  }
  ++result_.verified_blocks;
  if (good) return;
  Mismatch(tail, position);
  ++result_.mismatches;
}

void TurnServer::Mismatch(BlockIdentity block, std::uint32_t position) {
  bad_positions_.insert(position);
  if (!result_.first_mismatch.empty()) return;
  result_.first_mismatch = "block " + std::to_string(block.id) + " of scope " +
                           std::to_string(block.scope) + " at position " + std::to_string(position);
}

void TurnServer::WriteRecomputed(Session& session) {
  const Request& request = RequestOf(session);
  const tidepool::BlockTable table = session.sequence.block_table();
  const auto write = [&](BlockIdentity block, std::uint32_t position) {
    for (std::uint32_t layer = 0; layer < layers_; ++layer) {
      FillPayload(LayerSeed(layer), block, Bytes(table.slots[position], layer));
    }
  };
  std::uint32_t position = 0;
  ForEachBlock(trace_, request, session.blocks, [&](std::uint64_t id) {
    if (position >= session.hit_blocks) write({request.scope, id}, position);
    ++position;
  });
  session.tail_key = TailKey(request);
  write({request.scope, session.tail_key}, session.blocks);
}

// --- The end. ---

Status TurnServer::End(std::uint32_t request) {
  Session& session = SessionOf(request);
  const std::uint32_t next = schedule_.next_turn[request];
  const bool tool = next != kNoRequest && trace_.requests[next].gap_kind == GapKind::kTool;
  Outcome outcome = Outcome::kOk;
  {
    const CpuTimer timer(session.cpu_ns);
    outcome = manager_->CompleteStep(kTimeline, step_);
    session.ticket = {};
    if (outcome == Outcome::kOk && tool && paused_ < kMaxPaused) {
      outcome = session.sequence.Pause({.wait = tidepool::WaitClass::kTool});
      session.stage = Stage::kPaused;
      ++paused_;
    } else if (outcome == Outcome::kOk) {
      outcome = session.sequence.Finish(tidepool::Fence::Done(),
                                        {.wait = next == kNoRequest ? tidepool::WaitClass::kUnknown
                                                                    : tidepool::WaitClass::kUser});
      session.stage = Stage::kNone;
    }
  }
  session.ended = clock_.Now();
  session.returns = true;
  TraceTurn(request, session);
  if (next == kNoRequest) manager_->CompleteSession(schedule_.session[request]);
  metadata_ns_.push_back(session.cpu_ns);
  ++result_.requests;
  return outcome == Outcome::kOk ? absl::OkStatus()
                                 : RequestError(request, "could not end: " + Name(outcome));
}

Status TurnServer::Drain() {
  const bool lockstep = options_.pace == Pace::kLockstep;
  if (lockstep ? DrainByRounds() : manager_->WaitIdle(kTransferTimeout)) return absl::OkStatus();
  return absl::DeadlineExceededError("transfers do not finish: " + manager_->DescribeTransfers());
}

/// As WaitIdle, but the manager is asked to go on only when every copy has ended: its next decision
/// then depends on what was copied, not on how fast.
bool TurnServer::DrainByRounds() {
  const auto end = std::chrono::steady_clock::now() + kTransferTimeout;
  while (true) {
    while (QueuedBytes() != 0) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    manager_->Poll();
    if (manager_->table_sizes().transfers == 0) return true;
  }
}

std::uint64_t TurnServer::QueuedBytes() const {
  std::uint64_t bytes = 0;
  const auto tiers = static_cast<tidepool::TierIndex>(tier_of_.size());
  for (tidepool::TierIndex from = 0; from < tiers; ++from) {
    for (tidepool::TierIndex to = 0; to < tiers; ++to) bytes += engine_->QueuedBytes(from, to);
  }
  return bytes;
}

void TurnServer::SummarizeTide(const tidepool::ManagerStats& stats) {
  TideSummary& tide = result_.tide;
  tide.prefetched = stats.prefetched;
  tide.prefetched_used = stats.prefetched_used;
  tide.prefetched_wasted = stats.prefetched_wasted;
  if (tide_ == nullptr) return;
  const tidepool::TideCounters& counters = tide_->counters();
  tide.pool_copies = counters.pool_copies;
  tide.demand_copies = counters.demand_copies;
  tide.held_back = counters.held_back;
  tide.duplicates_left = counters.duplicates_left;
  tide.only_copies_left = counters.only_copies_left;
}

Status TurnServer::Summarize() {
  if (Status s = Drain(); !s.ok()) return s;
  const tidepool::ManagerStats& stats = manager_->stats();
  for (std::size_t t = 0; t < tier_of_.size(); ++t) {
    TierResult& tier = result_.tiers[tier_of_[t]];
    tier.bytes_in = stats.bytes_in[t];
    tier.bytes_out = stats.bytes_out[t];
    tier.evicted = stats.evicted[t];
    tier.used_blocks = manager_->used_slots(static_cast<tidepool::TierIndex>(t));
  }
  result_.failed_offloads = stats.offloads_failed;
  result_.stored_found = manager_->recovery().recovered;
  result_.stored_used = stats.stored_used;
  result_.dropped_dirty = stats.dropped_dirty;
  SummarizeTide(stats);
  result_.load_wait = Summary(load_wait_ns_);
  result_.metadata = Summary(metadata_ns_);
  result_.metadata_bytes = manager_->metadata_bytes();
  result_.metadata_bytes_per_block = static_cast<double>(result_.metadata_bytes) /
                                     static_cast<double>(manager_->pool().capacity());
  return manager_->Audit();
}

}  // namespace agent_replay
