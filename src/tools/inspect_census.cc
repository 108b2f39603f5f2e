#include "src/tools/inspect_census.h"

#include <algorithm>

namespace tidepool::tools {
namespace {

Verdict OfStanding(HeaderStanding standing) {
  switch (standing) {
    case HeaderStanding::kCurrent:
      return Verdict::kCurrent;
    case HeaderStanding::kOtherEpoch:
      return Verdict::kOtherEpoch;
    case HeaderStanding::kCleared:
      return Verdict::kCleared;
    case HeaderStanding::kDropped:
      return Verdict::kDropped;
  }
  return Verdict::kDropped;
}

}  // namespace

std::string_view ToString(Verdict verdict) {
  constexpr std::array<std::string_view, kVerdicts> kNames = {
      "current",  "superseded", "other epoch", "cleared", "dropped",
      "no state", "foreign",    "misplaced",   "torn",    "empty"};
  return kNames[static_cast<std::size_t>(verdict)];
}

StatusOr<Census> Census::Take(SlotFileReader& reader) {
  Census census;
  census.state_ = reader.state();
  SlotFileReader::Entry entry;
  reader.Rewind();
  while (reader.Next(entry)) census.Consider(entry);
  if (!reader.status().ok()) return reader.status();
  reader.Rewind();
  while (reader.Next(entry)) census.Count(entry);
  if (!reader.status().ok()) return reader.status();
  reader.Rewind();
  return census;
}

// Slots come in order: of equal generations the first one stays.
void Census::Consider(const SlotFileReader::Entry& entry) {
  if (entry.state != HeaderState::kSound || !state_.ok()) return;
  if (StandingOf(entry.header, *state_) != HeaderStanding::kCurrent) return;
  const Best candidate{entry.header.generation, entry.slot};
  const auto [at, fresh] = best_.try_emplace(entry.header.identity.digest, candidate);
  if (!fresh && candidate.generation > at->second.generation) at->second = candidate;
}

void Census::Count(const SlotFileReader::Entry& entry) {
  const Verdict verdict = Judge(entry);
  ++counts[static_cast<std::size_t>(verdict)];
  if (verdict != Verdict::kCurrent) return;
  Namespace& space = namespaces[entry.header.identity.root];
  const std::uint64_t generation = entry.header.generation;
  ++space.blocks;
  space.least_generation = std::min(space.least_generation, generation);
  space.largest_generation = std::max(space.largest_generation, generation);
  space.deepest_position = std::max(space.deepest_position, entry.header.identity.position);
}

Verdict Census::Judge(const SlotFileReader::Entry& entry) const {
  switch (entry.state) {
    case HeaderState::kEmpty:
      return Verdict::kEmpty;
    case HeaderState::kTorn:
      return Verdict::kTorn;
    case HeaderState::kMisplaced:
      return Verdict::kMisplaced;
    case HeaderState::kForeign:
      return Verdict::kForeign;
    case HeaderState::kSound:
      break;
  }
  if (!state_.ok()) return Verdict::kStateless;
  const Verdict verdict = OfStanding(StandingOf(entry.header, *state_));
  if (verdict != Verdict::kCurrent) return verdict;
  const auto at = best_.find(entry.header.identity.digest);
  const bool best = at == best_.end() || at->second.slot == entry.slot;
  return best ? Verdict::kCurrent : Verdict::kSuperseded;
}

}  // namespace tidepool::tools
