#include "figures.h"

#include <algorithm>
#include <utility>

#include "statistics.h"

namespace policy_lab {
namespace {

constexpr std::size_t kMaxSamples = 400;

}  // namespace

Meter::Meter(const Workload& workload, const Settings& settings)
    : workload_(workload),
      cost_(settings.prefill, workload.block_tokens),
      seen_(workload.distinct_blocks) {
  figures_.ttft_s.reserve(workload.requests.size());
}

double Meter::Count(std::uint32_t index, const Served& served) {
  const LabRequest& request = workload_.requests[index];
  std::uint32_t hits = 0;
  for (std::size_t t = 0; t < kMaxLabTiers; ++t) {
    figures_.hits[t] += served.hits[t];
    hits += served.hits[t];
  }
  ++figures_.requests;
  figures_.prompt_blocks += request.blocks;
  const double recompute_s = figures_.recompute_s;
  CountMisses(request, hits, served.limit);
  const double stall_s = served.transfer_s + figures_.recompute_s - recompute_s;
  const double prefill_s = cost_.Range(hits, request.blocks);
  figures_.queue_s += served.queue_s;
  figures_.room_s += served.room_s;
  figures_.lookup_s += served.lookup_s;
  figures_.transfer_s += served.transfer_s;
  figures_.prefill_s += prefill_s;
  figures_.ttft_s.push_back(
      static_cast<float>(served.queue_s + served.lookup_s + served.transfer_s + prefill_s));
  const auto append = [](std::vector<float>& to, double seconds) {
    to.push_back(static_cast<float>(seconds));
  };
  append(queue_, served.queue_s);
  append(room_, served.room_s);
  append(transfer_, served.transfer_s);
  append(prefill_, prefill_s);
  append(stall_, stall_s);
  return prefill_s;
}

void Meter::Count(const Window& window) {
  ++figures_.windows;
  figures_.windows_met += window.in_hbm >= window.blocks ? 1 : 0;
  figures_.windows_late += window.moving != 0 ? 1 : 0;
  figures_.idle_block_s += window.idle_block_s;
  figures_.freed_block_s += window.freed_block_s;
  figures_.return_blocks += window.blocks;
}

void Meter::CountMisses(const LabRequest& request, std::uint32_t hits, std::uint32_t limit) {
  std::uint32_t position = hits;
  ForEachRun(workload_, request, hits, request.blocks, [&](std::uint32_t block, std::uint32_t n) {
    for (std::uint32_t i = 0; i < n; ++i, ++position) {
      const double cost = RelativeCost(position);
      figures_.prefill_cost += cost;
      Seen& seen = seen_[block + i];
      if (seen == Seen::kNever) {
        seen = Seen::kBeingComputed;
        ++figures_.missed_compulsory;
        continue;
      }
      if (seen == Seen::kBeingComputed) {
        ++figures_.missed_concurrent;
        continue;
      }
      figures_.recompute_cost += cost;
      figures_.recompute_s += cost_.base_s + cost_.slope_s * position;
      ++(position < limit ? figures_.missed_evicted : figures_.missed_oversize);
    }
  });
}

void Meter::Complete(std::uint32_t index) {
  const LabRequest& request = workload_.requests[index];
  ForEachRun(workload_, request, 0, request.blocks, [&](std::uint32_t block, std::uint32_t n) {
    std::fill_n(seen_.begin() + block, n, Seen::kComputed);
  });
}

void Meter::Occupy(TimePoint at, std::uint32_t held, std::uint32_t cached) {
  const double seconds = ToSeconds(at - last_);
  if (seconds > 0 && now_.held > 0) {
    if (!held_.empty() && held_.back().blocks == now_.held) {
      held_.back().seconds += seconds;
    } else {
      held_.push_back({now_.held, seconds});
    }
  }
  last_ = at;
  now_ = {ToSeconds(at.time_since_epoch()), held, cached};
  Sample(at);
}

// Evenly spaced in time: when there are too many, every second one goes and the spacing doubles.
void Meter::Sample(TimePoint at) {
  std::vector<OccupancySample>& samples = figures_.occupancy;
  const double at_s = ToSeconds(at.time_since_epoch());
  if (!samples.empty() && at_s < samples.back().at_s + sample_every_s_) return;
  samples.push_back(now_);
  if (samples.size() < kMaxSamples) return;
  for (std::size_t i = 1; 2 * i < samples.size(); ++i) samples[i] = samples[2 * i];
  samples.resize(samples.size() / 2);
  sample_every_s_ *= 2;
}

RunFigures Meter::Finish(TimePoint end) {
  Occupy(std::max(end, last_), 0, 0);
  figures_.end_s = ToSeconds(end.time_since_epoch());
  figures_.queue_p99_s = QuantileOf(std::move(queue_), .99);
  figures_.room_p99_s = QuantileOf(std::move(room_), .99);
  figures_.transfer_p99_s = QuantileOf(std::move(transfer_), .99);
  figures_.prefill_p99_s = QuantileOf(std::move(prefill_), .99);
  figures_.stall_p50_s = QuantileOf(stall_, .5);
  figures_.stall_p99_s = QuantileOf(std::move(stall_), .99);
  std::sort(held_.begin(), held_.end(),
            [](const Held& a, const Held& b) { return a.blocks < b.blocks; });
  double total = 0, sum = 0;
  for (const Held& h : held_) total += h.seconds, sum += h.seconds * h.blocks;
  if (total > 0) figures_.held_mean = sum / total;
  double before = 0;
  for (const Held& h : held_) {
    if (before < .5 * total) figures_.held_p50 = h.blocks;
    if (before < .9 * total) figures_.held_p90 = h.blocks;
    before += h.seconds;
  }
  return std::move(figures_);
}

}  // namespace policy_lab
