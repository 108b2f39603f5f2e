// Closed loop: an engine with a first-come queue for memory, and users that wait for answers.
#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "run.h"

namespace policy_lab {
namespace {

using tidepool::Outcome;
using tidepool::Status;
using tidepool::StatusOr;

constexpr int kMaxIdleTries = 1000;
constexpr Duration kReleaseAgain = std::chrono::milliseconds(20);

class ClosedLoopRun {
 public:
  explicit ClosedLoopRun(const RunSpec& spec)
      : spec_(spec),
        workload_(*spec.workload),
        cache_(spec),
        meter_(*spec.workload, *spec.settings),
        waits_(spec.workload->sessions) {}

  StatusOr<RunFigures> Run() {
    if (Status s = cache_.Create(); !s.ok()) return s;
    for (std::uint32_t i = 0; i < workload_.requests.size(); ++i) {
      if (workload_.requests[i].turn == 0) arrivals_.emplace(spec_.schedule->arrival[i], i);
    }
    while (!arrivals_.empty() || !completions_.empty() || !queue_.empty() || !loading_.empty()) {
      const TimePoint next = NextEvent();
      if (next == tidepool::kNever) return absl::InternalError("the replay is stuck");
      if (Status s = StepTo(next); !s.ok()) return s;
    }
    RunFigures figures = meter_.Finish(cache_.now());
    figures.refused_requests = refused_;
    cache_.Report(figures);
    return figures;
  }

 private:
  struct Running {
    std::uint32_t request = kNoRequest;
    TimePoint granted{};
    double queue_s = 0;
    double room_s = 0;
    Cache::Grant grant;
    TimePoint taken_until = tidepool::kNever;  // a block that it computes instead of loading it
    TimePoint loaded{};
  };
  using Event = std::pair<TimePoint, std::uint32_t>;
  using Events = std::priority_queue<Event, std::vector<Event>, std::greater<>>;

  [[nodiscard]] TimePoint NextEvent() const {
    TimePoint next = cache_.engine().NextDone();
    if (next != tidepool::kNever) next = std::max(next, cache_.now() + kEngineStep);
    if (!arrivals_.empty()) next = std::min(next, arrivals_.top().first);
    if (!completions_.empty()) next = std::min(next, completions_.top().first);
    for (const std::uint32_t slot : loading_) next = std::min(next, running_[slot].taken_until);
    if (!releases_.empty() && next != tidepool::kNever) {
      next = std::min(next, releases_.top().time);
    }
    // A queue that only idle polls can move: see PlaceHead.
    if (next == tidepool::kNever && !queue_.empty()) next = cache_.now();
    return next;
  }

  Status StepTo(TimePoint now) {
    if (!queue_.empty() && head_waits_for_room_)
      queue_.front().room_s += ToSeconds(now - cache_.now());
    cache_.SetTime(now);
    bool try_head = false;
    while (!completions_.empty() && completions_.top().first <= now) {
      const std::uint32_t slot = completions_.top().second;
      completions_.pop();
      if (Status s = Complete(slot); !s.ok()) return s;
      try_head = true;
    }
    while (!arrivals_.empty() && arrivals_.top().first <= now) {
      const std::uint32_t request = arrivals_.top().second;
      EndWait(request);
      queue_.push_back({request, now});
      // Unknown at a session's first request, and when everything of it has left.
      (void)cache_.manager().SessionArrived(workload_.requests[request].session);
      arrivals_.pop();
      try_head |= queue_.size() == 1;
    }
    if (Status s = CommitTaken(); !s.ok()) return s;
    const std::uint64_t moved = cache_.manager().stats().dropped_blocks + Copies();
    cache_.manager().Poll();
    cache_.Promote();
    ReleaseDue();
    try_head |= moved != cache_.manager().stats().dropped_blocks + Copies();
    if (Status s = StartLoaded(); !s.ok()) return s;
    const bool idle = completions_.empty() && arrivals_.empty() && loading_.empty() &&
                      cache_.engine().NextDone() == tidepool::kNever;
    if (try_head || idle) {
      if (Status s = PlaceHeads(); !s.ok()) return s;
    }
    const tidepool::PoolCounts counts = cache_.manager().counts();
    meter_.Occupy(now, counts.held, counts.cached);
    if (spec_.trace != nullptr) spec_.trace->Sample(cache_.manager(), now);
    return absl::OkStatus();
  }

  // Grows with each copy that ends.
  [[nodiscard]] std::uint64_t Copies() {
    std::uint64_t bytes = 0;
    for (const std::uint64_t b : cache_.manager().stats().bytes_in) bytes += b;
    return bytes;
  }

  [[nodiscard]] std::uint32_t DecodeBlocks(const LabRequest& r) const {
    return r.output_tokens / workload_.block_tokens;
  }

  Status PlaceHeads() {
    int idle_tries = 0;
    while (!queue_.empty()) {
      const auto [request, arrived, room_s] = queue_.front();
      const LabRequest& r = workload_.requests[request];
      if (std::uint64_t{r.blocks} + 1 + DecodeBlocks(r) > spec_.capacity_blocks) {
        queue_.pop_front();
        head_waits_for_room_ = false;
        Refuse(request);
        continue;
      }
      Cache::Grant grant = cache_.Admit(request, r.blocks, DecodeBlocks(r));
      if (grant.outcome == Outcome::kBusy) {
        lookup_s_ += grant.lookup_s;
        const tidepool::Shortfall& lacks = grant.shortfall;
        head_waits_for_room_ =
            std::uint64_t{lacks.available} + lacks.evictable + lacks.in_flight >= lacks.needed;
        if (Progressing()) return absl::OkStatus();
        // Nothing runs and nothing moves: polls alone must free what the request needs.
        cache_.manager().Poll();
        if (++idle_tries < kMaxIdleTries) continue;
      }
      if (grant.outcome != Outcome::kOk) {
        return absl::InternalError("request " + std::to_string(request) + " was refused: " +
                                   std::string(tidepool::ToString(grant.outcome)));
      }
      queue_.pop_front();
      head_waits_for_room_ = false;
      grant.lookup_s += std::exchange(lookup_s_, 0);
      Start(request, arrived, room_s, std::move(grant));
    }
    return absl::OkStatus();
  }

  [[nodiscard]] bool Progressing() const {
    return !completions_.empty() || !loading_.empty() ||
           cache_.engine().NextDone() != tidepool::kNever;
  }

  void Start(std::uint32_t request, TimePoint arrived, double room_s, Cache::Grant grant) {
    std::uint32_t slot;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(running_.size());
      running_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    running_[slot] = {.request = request,
                      .granted = cache_.now(),
                      .queue_s = ToSeconds(cache_.now() - arrived),
                      .room_s = room_s,
                      .grant = std::move(grant)};
    const bool loads = running_[slot].grant.ticket.Ready() == Outcome::kPending;
    const LabRequest& r = workload_.requests[request];
    if (r.turn > 0) {
      Window& window = waits_[r.session].window;
      window.in_hbm = loads ? 0 : running_[slot].grant.hits[0];
      meter_.Count(window);
    }
    if (loads) {
      loading_.push_back(slot);
      TakeNext(running_[slot]);
    } else {
      Compute(slot);
    }
  }

  // Its loads are done: what is left is computed, then the answer.
  void Compute(std::uint32_t slot) {
    Running& running = running_[slot];
    running.loaded = cache_.now();
    const LabRequest& r = workload_.requests[running.request];
    const double prefill_s =
        meter_.Count(running.request, {.hits = running.grant.hits,
                                       .limit = r.blocks,
                                       .queue_s = running.queue_s,
                                       .room_s = running.room_s,
                                       .lookup_s = running.grant.lookup_s,
                                       .transfer_s = ToSeconds(cache_.now() - running.granted)});
    completions_.emplace(cache_.now() + ServiceTime(r, prefill_s), slot);
  }

  [[nodiscard]] Duration ServiceTime(const LabRequest& r, double prefill_s) const {
    return policy_lab::Seconds(ServiceSeconds(*spec_.settings, r, prefill_s));
  }

  Status StartLoaded() {
    for (std::size_t i = 0; i < loading_.size();) {
      const Outcome outcome = running_[loading_[i]].grant.ticket.Ready();
      if (outcome == Outcome::kPending) {
        TakeNext(running_[loading_[i]]);
        ++i;
        continue;
      }
      if (outcome != Outcome::kOk) return absl::InternalError("a modelled load failed");
      Compute(loading_[i]);
      loading_.erase(loading_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return absl::OkStatus();
  }

  // The prefill of a request that still loads is its own: it computes the first missing block if
  // that ends before the loads do.
  void TakeNext(Running& running) {
    if (!cache_.two_ended() || running.taken_until != tidepool::kNever) return;
    const LabRequest& r = workload_.requests[running.request];
    const BlockCost cost(spec_.settings->prefill, workload_.block_tokens);
    if (cache_.LoadSeconds(running.grant) < cost.Range(r.blocks, r.blocks + 1)) return;
    const tidepool::TakenLoads taken = running.grant.sequence.TakeLoads(1);
    if (taken.tokens == 0) return;
    const std::uint64_t position = taken.first_token / kBlockTokens;
    running.taken_until = cache_.now() + policy_lab::Seconds(cost.Range(position, position + 1));
  }

  Status CommitTaken() {
    for (const std::uint32_t slot : loading_) {
      Running& running = running_[slot];
      if (running.taken_until > cache_.now()) continue;
      running.taken_until = tidepool::kNever;
      const Outcome outcome = running.grant.sequence.CommitTaken(tidepool::Fence::Done());
      if (outcome != Outcome::kOk) return absl::InternalError("computed blocks were refused");
    }
    return absl::OkStatus();
  }

  // Served elsewhere: it takes its time and holds nothing here.
  void Refuse(std::uint32_t request) {
    ++refused_;
    const LabRequest& r = workload_.requests[request];
    const double prefill_s = meter_.Count(request, {});
    meter_.Complete(request);
    Follow(r, cache_.now() + ServiceTime(r, prefill_s));
  }

  void BeginWait(std::uint32_t request) {
    const LabRequest& r = workload_.requests[request];
    waits_[r.session] = {.request = request, .since = cache_.now(), .window = {}};
    if (r.next == kNoRequest || !spec_.settings->release_after_s) return;
    const Duration after = policy_lab::Seconds(*spec_.settings->release_after_s);
    releases_.push({cache_.now() + after, request, kReleaseAgain});
  }

  void EndWait(std::uint32_t request) {
    const LabRequest& r = workload_.requests[request];
    Wait& wait = waits_[r.session];
    const std::uint32_t before = std::exchange(wait.request, kNoRequest);
    if (before == kNoRequest) return;
    const LabRequest& last = workload_.requests[before];
    if (spec_.trace != nullptr) spec_.trace->Part(r.session, "wait", wait.since, cache_.now());
    Window& window = wait.window;
    window.blocks = CommonBlocks(workload_, last, r);
    window.idle_block_s = last.blocks * ToSeconds(cache_.now() - wait.since);
    window.freed_block_s =
        wait.released * ToSeconds(cache_.now() - wait.since) - wait.released_late_s;
    if (spec_.settings->has_dram()) window.moving = cache_.Look(before, window.blocks).moving;
  }

  // Tries again, less and less often, while some of the session's blocks are not clean yet.
  void ReleaseDue() {
    while (!releases_.empty() && releases_.top().time <= cache_.now()) {
      Release due = releases_.top();
      releases_.pop();
      Wait& wait = waits_[workload_.requests[due.request].session];
      if (wait.request != due.request) continue;  // it has returned
      const Cache::Released released = cache_.Release(due.request);
      wait.released += released.gone;
      wait.released_late_s += released.gone * ToSeconds(cache_.now() - wait.since);
      if (released.left == 0) continue;
      due.time = cache_.now() + due.again;
      due.again *= 2;
      releases_.push(due);
    }
  }

  void Follow(const LabRequest& r, TimePoint completion) {
    if (r.next == kNoRequest) return;
    arrivals_.emplace(completion + Milliseconds(workload_.requests[r.next].gap_ms), r.next);
  }

  Status Complete(std::uint32_t slot) {
    Running running = std::move(running_[slot]);
    free_.push_back(slot);
    meter_.Complete(running.request);
    const LabRequest& r = workload_.requests[running.request];
    Follow(r, cache_.now());
    const TimePoint next = r.next == kNoRequest
                               ? tidepool::kNever
                               : cache_.now() + Milliseconds(workload_.requests[r.next].gap_ms);
    if (spec_.trace != nullptr) {
      const TimePoint arrived = running.granted - policy_lab::Seconds(running.queue_s);
      spec_.trace->Part(r.session, "turn", arrived, cache_.now());
      spec_.trace->Part(r.session, "queue", arrived, running.granted);
      spec_.trace->Part(r.session, "load", running.granted, running.loaded);
      spec_.trace->Part(r.session, "compute", running.loaded, cache_.now());
    }
    BeginWait(running.request);
    return cache_.Finish(running.request, std::move(running.grant.sequence), next);
  }

  const RunSpec& spec_;
  const Workload& workload_;
  Cache cache_;
  Meter meter_;
  struct Waiting {
    std::uint32_t request;
    TimePoint arrived;
    double room_s = 0;  // at the head, while room was being evicted
  };
  std::deque<Waiting> queue_;
  bool head_waits_for_room_ = false;
  struct Wait {
    std::uint32_t request = kNoRequest;  // the turn before it; none: it does not wait
    TimePoint since{};
    std::uint32_t released = 0;  // blocks
    double released_late_s = 0;  // sum over them of the time since the wait began
    Window window;
  };
  std::vector<Wait> waits_;  // by session
  struct Release {
    TimePoint time;
    std::uint32_t request;
    Duration again;
    friend bool operator>(const Release& a, const Release& b) {
      return std::pair(a.time, a.request) > std::pair(b.time, b.request);
    }
  };
  std::priority_queue<Release, std::vector<Release>, std::greater<>> releases_;
  std::vector<Running> running_;
  std::vector<std::uint32_t> free_;     // unused places in running_
  std::vector<std::uint32_t> loading_;  // places whose loads are under way
  Events arrivals_;                     // requests
  Events completions_;                  // places in running_
  std::uint64_t refused_ = 0;
  double lookup_s_ = 0;  // of refused tries of the queue's head
};

}  // namespace

StatusOr<RunFigures> RunClosedLoop(const RunSpec& spec) { return ClosedLoopRun(spec).Run(); }

}  // namespace policy_lab
