#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "examples/agent_replay/random.h"

namespace policy_lab {
namespace {

using agent_replay::Random;
using tidepool::WaitClass;

constexpr std::uint64_t kStartStream = 0x57a7;
constexpr std::size_t kClasses = 5;

std::vector<std::uint32_t> OrderBy(const std::vector<TimePoint>& arrival) {
  std::vector<std::uint32_t> order(arrival.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return arrival[a] < arrival[b]; });
  return order;
}

}  // namespace

Duration Seconds(double seconds) {
  return Duration(std::llround(std::clamp(seconds, -9e9, 9e9) * 1e9));
}

Schedule MakeSchedule(const Workload& workload, const ScopeStart& start, std::uint64_t seed) {
  Schedule schedule;
  schedule.seed = seed;
  Random random(seed, kStartStream);
  std::vector<Duration> offset(workload.scopes(), Duration(0));
  double start_s = 0;
  for (std::uint32_t scope = 0; scope < workload.scopes(); ++scope) {
    if (start.kind == StartKind::kFile)
      offset[scope] = Milliseconds(workload.scope_first_ms[scope]);
    if (start.kind != StartKind::kPoisson) continue;
    if (scope > 0) start_s += random.Exponential(start.mean_s);
    offset[scope] = Seconds(start_s);
  }
  for (const LabRequest& r : workload.requests) {
    schedule.arrival.push_back(TimePoint(offset[r.scope] + Milliseconds(r.time_ms)));
  }
  schedule.order = OrderBy(schedule.arrival);
  return schedule;
}

NominalTimes NoHoldTimes(const Schedule& schedule) {
  return {schedule.arrival, schedule.arrival, schedule.order};
}

NominalTimes ClosedLoopTimes(const Workload& workload, const Schedule& schedule,
                             const Settings& settings) {
  const std::size_t n = workload.requests.size();
  NominalTimes times{std::vector<TimePoint>(n), std::vector<TimePoint>(n), {}};
  const BlockCost cost(settings.prefill, workload.block_tokens);
  std::vector<bool> seen(workload.distinct_blocks);
  using Arrival = std::pair<TimePoint, std::uint32_t>;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (workload.requests[i].turn == 0) arrivals.emplace(schedule.arrival[i], i);
  }
  while (!arrivals.empty()) {
    const auto [now, index] = arrivals.top();
    arrivals.pop();
    const LabRequest& r = workload.requests[index];
    std::uint32_t hit = 0;
    bool all = true;
    ForEachRun(workload, r, 0, r.blocks, [&](std::uint32_t block, std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        all = all && seen[block + i];
        hit += all ? 1 : 0;
        seen[block + i] = true;
      }
    });
    times.arrival[index] = now;
    times.completion[index] = now + Seconds(ServiceSeconds(settings, r, cost.Range(hit, r.blocks)));
    if (r.next != kNoRequest) {
      const Duration gap = Milliseconds(workload.requests[r.next].gap_ms);
      arrivals.emplace(times.completion[index] + gap, r.next);
    }
  }
  times.order = OrderBy(times.arrival);
  return times;
}

double ServiceSeconds(const Settings& settings, const LabRequest& request, double prefill_s) {
  if (settings.service == Service::kTrace && request.busy_ms >= 0) {
    return static_cast<double>(request.busy_ms) / 1000;
  }
  return prefill_s + request.output_tokens * settings.decode_s;
}

Hints::Hints(const Workload& workload, const Settings& settings, std::uint64_t seed)
    : workload_(workload), settings_(settings), seed_(seed), turns_by_class_(kClasses) {
  for (std::uint32_t i = 0; i < workload.requests.size(); ++i) {
    const LabRequest& r = workload.requests[i];
    if (r.turn > 0) turns_by_class_[static_cast<std::size_t>(r.wait_before)].push_back(i);
  }
}

// What another session's wait of the same class was; says nothing of this one's end.
Duration Hints::StrangersGap(const LabRequest& request, std::uint64_t draw) const {
  const auto& turns = turns_by_class_[static_cast<std::size_t>(request.wait_after)];
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const LabRequest& other = workload_.requests[turns[(draw + i) % turns.size()]];
    if (other.session != request.session) return Milliseconds(other.gap_ms);
  }
  return Duration::max();
}

tidepool::PauseHint Hints::AtEnd(std::uint32_t request, Duration until_next) const {
  const LabRequest& r = workload_.requests[request];
  tidepool::PauseHint hint{.wait = r.wait_after};
  if (!settings_.hint_log_sd.has_value()) return hint;
  Random random(seed_ ^ 0x41175, request);
  const double factor = std::exp(*settings_.hint_log_sd * random.Normal());
  const Duration truth = r.next != kNoRequest ? until_next : StrangersGap(r, random.Next());
  if (truth == Duration::max()) return hint;
  hint.expected_return = Seconds(ToSeconds(truth) * factor);
  hint.expected_return_log_sd = static_cast<float>(*settings_.hint_log_sd);
  return hint;
}

}  // namespace policy_lab
