// Time: who is served when. Everything about memory is in turn_server.cc.
#include "replay.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <queue>
#include <string>
#include <thread>
#include <utility>

#include "turn_server.h"

namespace agent_replay {
namespace {

using tidepool::Status;
using tidepool::StatusOr;

// Where the trace does not say how long a turn is served.
constexpr std::int64_t kMsPerOutputToken = 20;
// From admission to the start of prefill: a quarter of the service time, at most this.
constexpr std::int64_t kMaxStartDelayMs = 1000;

enum class EventKind : std::uint8_t { kArrive, kStart, kEnd };

struct Event {
  std::int64_t time_ms;
  std::uint64_t number;  // first come, first served among equals
  EventKind kind;
  std::uint32_t request;
  friend bool operator>(const Event& a, const Event& b) {
    return std::pair(a.time_ms, a.number) > std::pair(b.time_ms, b.number);
  }
};

class Replayer {
 public:
  Replayer(const Trace& trace, const Schedule& schedule, const ReplayOptions& options,
           const std::function<void(const Progress&)>& progress, TurnServer& server)
      : trace_(trace),
        schedule_(schedule),
        options_(options),
        progress_(progress),
        server_(server) {}

  Status RunLockstep();
  Status RunOverlapping();
  [[nodiscard]] std::int64_t now_ms() const { return now_ms_; }

 private:
  Status ServeAlone(std::uint32_t request);
  Status Handle(const Event& event);
  Status Arrive(std::uint32_t request);
  Status Start(std::uint32_t request);
  Status End(std::uint32_t request);
  Status RetryWaiting();
  [[nodiscard]] std::int64_t BusyMs(std::uint32_t request) const {
    const Request& r = trace_.requests[request];
    return r.busy_ms >= 0 ? r.busy_ms : r.output_tokens * kMsPerOutputToken;
  }
  [[nodiscard]] std::int64_t StartDelayMs(std::uint32_t request) const {
    return std::min(BusyMs(request) / 4, kMaxStartDelayMs);
  }
  void Push(std::int64_t time_ms, EventKind kind, std::uint32_t request) {
    events_.push({time_ms, next_event_++, kind, request});
  }
  void AdvanceTo(std::int64_t time_ms) {
    if (options_.pace == Pace::kWallClock) WaitUntil(time_ms);
    now_ms_ = std::max(now_ms_, time_ms);
    server_.SetTime(now_ms_);
  }
  void WaitUntil(std::int64_t time_ms);
  void Report();

  const Trace& trace_;
  const Schedule& schedule_;
  const ReplayOptions& options_;
  const std::function<void(const Progress&)>& progress_;
  TurnServer& server_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t now_ms_ = 0;
  std::uint64_t next_event_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  struct Waiting {
    std::uint32_t request;
    std::int64_t since_ms;
  };
  std::deque<Waiting> waiting_;
};

void Replayer::Report() {
  const ReplayResult& result = server_.result();
  const double tokens = static_cast<double>(std::max<std::uint64_t>(1, result.prompt_tokens));
  progress_({result.requests, trace_.requests.size(),
             1 - static_cast<double>(result.recomputed_tokens) / tokens});
}

// Sleeps until the trace's time has come, polling as an engine does that has nothing else to do.
// What took longer than the trace says makes everything after it later.
void Replayer::WaitUntil(std::int64_t time_ms) {
  constexpr std::chrono::microseconds kStep(500);
  while (true) {
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start_;
    now_ms_ = std::max(now_ms_, static_cast<std::int64_t>(spent.count() * options_.time_scale));
    if (now_ms_ >= time_ms) return;
    server_.Poll();
    std::this_thread::sleep_for(kStep);
  }
}

// --- One at a time. ---

Status Replayer::RunLockstep() {
  for (const std::uint32_t request : schedule_.order) {
    AdvanceTo(schedule_.arrival_ms[request]);
    if (Status s = ServeAlone(request); !s.ok()) return s;
    Report();
  }
  return absl::OkStatus();
}

Status Replayer::ServeAlone(std::uint32_t request) {
  if (Status s = server_.Drain(); !s.ok()) return s;
  server_.Begin(request);
  while (true) {
    const StatusOr<bool> placed = server_.Place(request);
    if (!placed.ok()) return placed.status();
    if (!*placed) {
      return absl::InternalError("request " + std::to_string(request) +
                                 " finds no room although nothing else runs");
    }
    const StatusOr<bool> started = server_.Start(request);
    if (!started.ok()) return started.status();
    if (*started) return server_.End(request);
  }
}

// --- As the trace has it. ---

Status Replayer::RunOverlapping() {
  for (const std::uint32_t request : schedule_.order) {  // equal arrivals keep this order
    if (schedule_.first_turns[schedule_.session[request]] == request) {
      Push(schedule_.arrival_ms[request], EventKind::kArrive, request);
    }
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    AdvanceTo(event.time_ms);
    server_.Poll();
    if (Status s = Handle(event); !s.ok()) return s;
    Report();
  }
  if (waiting_.empty()) return absl::OkStatus();
  return absl::InternalError(std::to_string(waiting_.size()) +
                             " turns find no room although nothing runs");
}

Status Replayer::Handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kArrive:
      server_.Begin(event.request);
      return Arrive(event.request);
    case EventKind::kStart:
      return Start(event.request);
    case EventKind::kEnd:
      return End(event.request);
  }
  return absl::OkStatus();
}

Status Replayer::Arrive(std::uint32_t request) {
  const StatusOr<bool> placed = server_.Place(request);
  if (!placed.ok()) return placed.status();
  if (*placed) {
    Push(now_ms_ + StartDelayMs(request), EventKind::kStart, request);
  } else {
    ++server_.result().waits;
    waiting_.push_back({request, now_ms_});
  }
  return absl::OkStatus();
}

Status Replayer::Start(std::uint32_t request) {
  const StatusOr<bool> started = server_.Start(request);
  if (!started.ok()) return started.status();
  if (!*started) return Arrive(request);
  Push(now_ms_ + BusyMs(request) - StartDelayMs(request), EventKind::kEnd, request);
  return absl::OkStatus();
}

Status Replayer::End(std::uint32_t request) {
  if (Status s = server_.End(request); !s.ok()) return s;
  const std::uint32_t next = schedule_.next_turn[request];
  if (next != kNoRequest) {
    Push(std::max(now_ms_, schedule_.arrival_ms[next]), EventKind::kArrive, next);
  }
  return RetryWaiting();
}

// In order of arrival; a later one that fits may pass an earlier one that does not.
Status Replayer::RetryWaiting() {
  std::deque<Waiting> waiting;
  waiting.swap(waiting_);
  for (const Waiting& w : waiting) {
    const StatusOr<bool> placed = server_.Place(w.request);
    if (!placed.ok()) return placed.status();
    if (!*placed) {
      waiting_.push_back(w);
      continue;
    }
    server_.result().wait_ms += now_ms_ - w.since_ms;
    Push(now_ms_ + StartDelayMs(w.request), EventKind::kStart, w.request);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<ReplayResult> RunReplay(const Trace& trace, const Schedule& schedule,
                                 const ReplayOptions& options,
                                 const std::function<void(const Progress&)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  TurnServer server(trace, schedule, options);
  if (Status s = server.Create(); !s.ok()) return s;
  Replayer replayer(trace, schedule, options, progress, server);
  if (Status s =
          options.pace == Pace::kLockstep ? replayer.RunLockstep() : replayer.RunOverlapping();
      !s.ok()) {
    return s;
  }
  if (Status s = server.Summarize(); !s.ok()) return s;
  ReplayResult result = std::move(server.result());
  result.virtual_ms = replayer.now_ms();
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace agent_replay
