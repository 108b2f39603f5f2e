#include "tidepool/testing/fake_transfer_engine.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace tidepool::testing {
namespace {

constexpr int kScribble = 0xDB;

Completion Terminal(TransferId id, TransferResult result, std::uint32_t layers) {
  return {.id = id, .terminal = true, .result = result, .layers_done = layers};
}

bool SameSlot(TierIndex tier_a, SlotId a, TierIndex tier_b, SlotId b) {
  return tier_a == tier_b && a == b;
}

Duration SecondsToDuration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

FakeTransferEngine::FakeTransferEngine(FakeEngineOptions options)
    : options_(options), random_(options.seed) {}

FakeTransferEngine::~FakeTransferEngine() = default;

// --- what the test does ---------------------------------------------------------------------

bool FakeTransferEngine::Finish(TransferId id, TransferResult result) {
  Copy* copy = Find(id);
  if (copy == nullptr || copy->dropped) return false;
  End(static_cast<std::size_t>(copy - in_flight_.data()), result);
  return true;
}

void FakeTransferEngine::FinishAll(TransferResult result) {
  for (std::size_t i = 0; i < in_flight_.size();) {
    if (in_flight_[i].dropped) {
      ++i;
    } else {
      End(i, result);
    }
  }
}

bool FakeTransferEngine::Progress(TransferId id, std::uint32_t layers) {
  Copy* copy = Find(id);
  if (copy == nullptr) return false;
  MoveLayers(*copy, layers);
  undelivered_.push_back({.id = id, .layers_done = copy->layers_done});
  return true;
}

bool FakeTransferEngine::Repeat(TransferId id) {
  const auto it = std::find_if(ended_.rbegin(), ended_.rend(),
                               [id](const Completion& done) { return done.id == id; });
  if (it == ended_.rend()) return false;
  undelivered_.push_back(*it);
  return true;
}

bool FakeTransferEngine::Drop(TransferId id) {
  Copy* copy = Find(id);
  if (copy == nullptr) return false;
  copy->dropped = true;
  return true;
}

void FakeTransferEngine::Undrop(TransferId id) {
  if (Copy* copy = Find(id)) copy->dropped = false;
}

bool FakeTransferEngine::Corrupt(TransferId id) {
  Copy* copy = Find(id);
  if (copy == nullptr) return false;
  copy->corrupt = true;
  return true;
}

void FakeTransferEngine::ReverseUndelivered() { std::ranges::reverse(undelivered_); }

void FakeTransferEngine::SetLink(TierIndex from, TierIndex to, double bytes_per_second,
                                 Duration latency) {
  Link& link = LinkOf(from, to);
  link.bytes_per_second = bytes_per_second;
  link.latency = latency;
}

std::vector<CopyRequest> FakeTransferEngine::InFlight() const {
  std::vector<CopyRequest> requests;
  requests.reserve(in_flight_.size());
  for (const Copy& copy : in_flight_) requests.push_back(copy.request);
  return requests;
}

void FakeTransferEngine::ClearRecords() {
  submitted_.clear();
  cancelled_.clear();
  ended_.clear();
}

std::span<std::byte> FakeTransferEngine::Bytes(TierIndex tier, SlotId slot, std::uint32_t layer) {
  const Arena& arena = tiers_[tier].arena;
  return {arena.At(slot, layer), static_cast<std::size_t>(arena.layer_bytes)};
}

// --- TransferEngine -------------------------------------------------------------------------

Status FakeTransferEngine::Attach(std::span<const TierBinding> tiers, Observer*) {
  tiers_.assign(tiers.begin(), tiers.end());
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    TierBinding& tier = tiers_[i];
    if (tier.arena.layer_base.empty()) {
      StatusOr<Arena> arena =
          AllocateHostArena(tier.slots, tier.layers, tier.slot_bytes / tier.layers);
      if (!arena.ok()) {
        return Status(arena.status().code(), "fake engine: tier " + std::to_string(i) + ": " +
                                                 std::string(arena.status().message()));
      }
      tier.arena = *std::move(arena);
    }
  }
  for (TierIndex from = 0; from < tiers_.size(); ++from) {
    for (TierIndex to = 0; to < tiers_.size(); ++to) {
      Link& link = LinkOf(from, to);
      if (link.bytes_per_second > 0) continue;  // set before Attach
      link.bytes_per_second =
          std::min(tiers_[from].prior_bytes_per_second, tiers_[to].prior_bytes_per_second);
      link.latency = std::max(tiers_[from].prior_latency, tiers_[to].prior_latency);
    }
  }
  return {};
}

bool FakeTransferEngine::Supports(TierIndex from, TierIndex to) const noexcept {
  return from != to && from < tiers_.size() && to < tiers_.size() &&
         tiers_[from].slot_bytes == tiers_[to].slot_bytes &&
         tiers_[from].layers == tiers_[to].layers;
}

std::size_t FakeTransferEngine::Submit(std::span<const CopyRequest> copies) noexcept {
  const std::size_t room =
      options_.max_in_flight - std::min(options_.max_in_flight, in_flight_.size());
  std::size_t accepted = std::min({copies.size(), options_.accept_limit, room});
  if (options_.automatic && accepted > 0 && Chance(options_.faults.refuse)) {
    accepted = random_() % accepted;
  }
  // Before the new copies join: what ended earlier must not be followed by one of them.
  if (options_.clock != nullptr) AdvanceLinks(options_.clock->Now());
  for (const CopyRequest& request : copies.first(accepted)) {
    submitted_.push_back(request);
    CheckConflicts(request);
    Copy copy{.request = request};
    copy.sequence = next_sequence_++;
    if (options_.clock != nullptr) copy.submitted_at = options_.clock->Now();
    Plan(copy);
    if (!Usable(request)) {
      copy.planned = TransferResult::kFailed;
    } else {
      if (options_.check_sources) copy.source_hash = SourceHash(request);
      if (options_.copy_at_submit) {
        MoveLayers(copy, tiers_[request.from].layers);
        copy.layers_done = 0;
        copy.bytes_moved = true;
      }
    }
    in_flight_.push_back(std::move(copy));
  }
  if (options_.clock != nullptr) AdvanceLinks(options_.clock->Now());
  return accepted;
}

void FakeTransferEngine::Poll(std::vector<Completion>& completions) noexcept {
  ++polls_;
  const std::size_t first = undelivered_.size();
  if (options_.clock != nullptr) {
    AdvanceLinks(options_.clock->Now());
  } else if (options_.automatic) {
    EndDue();
  }
  if (options_.automatic) Shuffle(first);
  std::erase_if(late_, [&](const Late& late) {
    if (late.due_poll > polls_) return false;
    undelivered_.push_back(late.completion);
    return true;
  });
  completions.insert(completions.end(), undelivered_.begin(), undelivered_.end());
  undelivered_.clear();
}

bool FakeTransferEngine::Wait(Duration timeout) noexcept {
  if (!undelivered_.empty()) return true;
  if (options_.clock != nullptr) {
    const TimePoint now = options_.clock->Now();
    const std::optional<TimePoint> next = NextDone();
    if (!next.has_value()) return false;
    if (*next <= now) return true;
    const bool in_time = *next - now <= timeout;
    options_.clock->Advance(in_time ? *next - now : timeout);
    return in_time;
  }
  if (!options_.automatic) return false;
  std::optional<std::uint64_t> due;
  for (const Copy& copy : in_flight_) {
    if (!copy.dropped) due = std::min(due.value_or(copy.due_poll), copy.due_poll);
  }
  if (due.has_value() && *due > polls_ + 1) polls_ = *due - 1;
  return due.has_value();
}

void FakeTransferEngine::Cancel(TransferId id) noexcept {
  cancelled_.push_back(id);
  Copy* copy = Find(id);
  const bool manual = !options_.automatic && options_.clock == nullptr;
  if (copy == nullptr || copy->dropped || manual) return;
  const bool running = copy->done_at.has_value();
  if (running || Chance(options_.faults.finish_anyway)) return;
  End(static_cast<std::size_t>(copy - in_flight_.data()), TransferResult::kCancelled);
}

void FakeTransferEngine::Withdraw(TransferId id) noexcept {
  const Copy* copy = Find(id);
  if (copy != nullptr && copy->layers_done > 0) {
    cancelled_.push_back(id);
    return;
  }
  Cancel(id);
}

void FakeTransferEngine::OnSlotFreed(TierIndex tier, SlotId slot) noexcept {
  for (const Copy& copy : in_flight_) {
    const CopyRequest& request = copy.request;
    if (SameSlot(tier, slot, request.from, request.source)) {
      Violation(request, "source freed under a live copy");
    }
    if (SameSlot(tier, slot, request.to, request.destination)) {
      Violation(request, "destination freed under a live copy");
    }
  }
}

TransferEstimate FakeTransferEngine::EstimateCost(TierIndex from, TierIndex to,
                                                  std::uint64_t bytes) const noexcept {
  const Link& link = LinkOf(from, to);
  TransferEstimate estimate{.method = "prior"};
  if (link.bytes_per_second > 0) {
    const double total = static_cast<double>(bytes + QueuedBytes(from, to));
    estimate.time = link.latency + SecondsToDuration(total / link.bytes_per_second);
  }
  estimate.margin = estimate.time / 2;
  return estimate;
}

double FakeTransferEngine::BytesPerSecond(TierIndex from, TierIndex to) const noexcept {
  return LinkOf(from, to).bytes_per_second;
}

std::uint64_t FakeTransferEngine::QueuedBytes(TierIndex from, TierIndex to) const noexcept {
  std::uint64_t bytes = 0;
  for (const Copy& copy : in_flight_) {
    if (copy.request.from == from && copy.request.to == to) bytes += tiers_[from].slot_bytes;
  }
  return bytes;
}

// --- inside ---------------------------------------------------------------------------------

bool FakeTransferEngine::Chance(double probability) {
  if (probability <= 0) return false;
  return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
}

std::uint32_t FakeTransferEngine::DelayPolls() {
  return 1 + static_cast<std::uint32_t>(random_() % std::max(1u, options_.faults.max_delay_polls));
}

FakeTransferEngine::Copy* FakeTransferEngine::Find(TransferId id) {
  const auto it =
      std::ranges::find_if(in_flight_, [id](const Copy& copy) { return copy.request.id == id; });
  return it == in_flight_.end() ? nullptr : &*it;
}

FakeTransferEngine::Link& FakeTransferEngine::LinkOf(TierIndex from, TierIndex to) {
  return links_[std::size_t{from} % kMaxTiers * kMaxTiers + to % kMaxTiers];
}

const FakeTransferEngine::Link& FakeTransferEngine::LinkOf(TierIndex from, TierIndex to) const {
  return links_[std::size_t{from} % kMaxTiers * kMaxTiers + to % kMaxTiers];
}

bool FakeTransferEngine::Usable(const CopyRequest& request) const {
  return Supports(request.from, request.to) &&
         request.source.value() < tiers_[request.from].slots &&
         request.destination.value() < tiers_[request.to].slots;
}

std::uint64_t FakeTransferEngine::SourceHash(const CopyRequest& request) const {
  const Arena& arena = tiers_[request.from].arena;
  std::uint64_t hash = 0;
  for (std::uint32_t layer = 0; layer < tiers_[request.from].layers; ++layer) {
    hash = XXH3_64bits_withSeed(arena.At(request.source, layer), arena.layer_bytes, hash);
  }
  return hash;
}

void FakeTransferEngine::CheckConflicts(const CopyRequest& request) {
  if (!Usable(request)) return Violation(request, "no such direction or slot");
  for (const Copy& copy : in_flight_) {
    const CopyRequest& other = copy.request;
    if (other.id == request.id) Violation(request, "id is in use");
    if (SameSlot(request.to, request.destination, other.to, other.destination)) {
      Violation(request, "destination is written by a live copy");
    }
    if (SameSlot(request.to, request.destination, other.from, other.source)) {
      Violation(request, "destination is read by a live copy");
    }
    if (SameSlot(request.from, request.source, other.to, other.destination)) {
      Violation(request, "source is written by a live copy");
    }
  }
}

void FakeTransferEngine::Violation(const CopyRequest& request, std::string_view what) {
  violations_.push_back(
      "transfer " + std::to_string(request.id.value()) + " of block " +
      std::to_string(request.block.value()) + ", tier " + std::to_string(request.from) + " slot " +
      std::to_string(request.source.value()) + " to tier " + std::to_string(request.to) + " slot " +
      std::to_string(request.destination.value()) + ": " + std::string(what));
}

void FakeTransferEngine::Plan(Copy& copy) {
  copy.due_poll = polls_ + 1;
  if (!options_.automatic) return;
  const FakeFaults& faults = options_.faults;
  const std::uint32_t tiers = (1u << copy.request.from) | (1u << copy.request.to);
  if (Chance(faults.fail) || (tiers & faults.dead_tiers) != 0) {
    copy.planned = TransferResult::kFailed;
  }
  if (Chance(faults.time_out)) copy.planned = TransferResult::kTimedOut;
  if (Chance(faults.delay)) copy.due_poll += DelayPolls();
  copy.repeat = Chance(faults.duplicate);
  copy.report_progress = Chance(faults.progress);
}

void FakeTransferEngine::MoveLayers(Copy& copy, std::uint32_t layers) {
  if (!Usable(copy.request)) return;
  const Arena& from = tiers_[copy.request.from].arena;
  const Arena& to = tiers_[copy.request.to].arena;
  layers = std::min(layers, tiers_[copy.request.from].layers);
  for (std::uint32_t layer = copy.layers_done; layer < layers && !copy.bytes_moved; ++layer) {
    std::memcpy(to.At(copy.request.destination, layer), from.At(copy.request.source, layer),
                from.layer_bytes);
  }
  copy.layers_done = std::max(copy.layers_done, layers);
}

void FakeTransferEngine::Scribble(const CopyRequest& request) {
  const Arena& to = tiers_[request.to].arena;
  for (std::uint32_t layer = 0; layer < tiers_[request.to].layers; ++layer) {
    std::memset(to.At(request.destination, layer), kScribble, to.layer_bytes);
  }
}

void FakeTransferEngine::End(std::size_t index, TransferResult result) {
  Copy copy = std::move(in_flight_[index]);
  in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(index));
  const CopyRequest& request = copy.request;
  if (!Usable(request)) {
    result = TransferResult::kFailed;
  } else {
    if (options_.check_sources && SourceHash(request) != copy.source_hash) {
      Violation(request, "source changed while it was read");
    }
    if (result == TransferResult::kOk) {
      MoveLayers(copy, tiers_[request.from].layers);
      if (copy.corrupt) *Bytes(request.to, request.destination).data() ^= std::byte{0x40};
    } else if (options_.scribble_on_failure) {
      Scribble(request);
    }
  }
  ended_.push_back(Terminal(request.id, result, copy.layers_done));
  undelivered_.push_back(ended_.back());
  if (copy.repeat) late_.push_back({ended_.back(), polls_ + DelayPolls() - 1});
}

void FakeTransferEngine::EndDue() {
  for (std::size_t i = 0; i < in_flight_.size();) {
    Copy& copy = in_flight_[i];
    if (copy.dropped) {
      ++i;
      continue;
    }
    if (copy.report_progress) {
      copy.report_progress = false;
      Progress(copy.request.id,
               static_cast<std::uint32_t>(random_() % (tiers_[copy.request.from].layers + 1)));
    }
    if (copy.due_poll > polls_) {
      ++i;
    } else {
      End(i, copy.planned);
    }
  }
}

// One copy at a time moves on each link. When it is done the most urgent of those that were
// submitted by then follows: class, then deadline, then order of submission.
void FakeTransferEngine::AdvanceLinks(TimePoint now) {
  const auto more_urgent = [](const Copy& a, const Copy& b) {
    const auto key = [](const Copy& copy) {
      return std::tuple(copy.request.transfer_class, copy.request.deadline, copy.sequence);
    };
    return key(a) < key(b);
  };
  for (bool changed = true; changed;) {
    changed = false;
    std::array<Copy*, std::size_t{kMaxTiers} * kMaxTiers> next{};
    for (Copy& copy : in_flight_) {
      const std::size_t link =
          static_cast<std::size_t>(&LinkOf(copy.request.from, copy.request.to) - links_.data());
      const bool moving = next[link] != nullptr && next[link]->done_at.has_value();
      if (copy.dropped || moving) continue;
      if (next[link] == nullptr || copy.done_at.has_value() || more_urgent(copy, *next[link])) {
        next[link] = &copy;
      }
    }
    for (std::size_t link = 0; link < next.size() && !changed; ++link) {
      Copy* copy = next[link];
      if (copy == nullptr) continue;
      if (!copy->done_at.has_value()) {
        const double bytes = static_cast<double>(tiers_[copy->request.from].slot_bytes);
        const TimePoint start = std::max(links_[link].free_at, copy->submitted_at);
        copy->done_at = start + links_[link].latency +
                        SecondsToDuration(bytes / std::max(1.0, links_[link].bytes_per_second));
        links_[link].free_at = *copy->done_at;
        changed = true;
      } else if (*copy->done_at <= now) {
        End(static_cast<std::size_t>(copy - in_flight_.data()), copy->planned);
        changed = true;  // `next` points into in_flight_, which has moved
      }
    }
  }
}

void FakeTransferEngine::Shuffle(std::size_t first) {
  const std::size_t count = undelivered_.size() - first;
  for (std::size_t i = 0; i < count; ++i) {
    if (Chance(options_.faults.reorder)) {
      std::swap(undelivered_[first + i], undelivered_[first + random_() % count]);
    }
  }
}

std::optional<TimePoint> FakeTransferEngine::NextDone() const {
  std::optional<TimePoint> next;
  for (const Copy& copy : in_flight_) {
    if (copy.dropped || !copy.done_at.has_value()) continue;
    next = std::min(next.value_or(*copy.done_at), *copy.done_at);
  }
  return next;
}

}  // namespace tidepool::testing
