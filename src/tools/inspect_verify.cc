// Reads the payload of every sound header, those included that no longer count.
#include <cinttypes>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "src/tools/inspect.h"
#include "src/tools/inspect_census.h"
#include "src/tools/json.h"

namespace tidepool::tools {
namespace {

std::uint64_t MissingBytes(const SlotFileReader& reader) {
  const std::uint64_t wanted = reader.layout().file_bytes();
  return wanted > reader.file_bytes() ? wanted - reader.file_bytes() : 0;
}

struct Findings {
  struct Slot {
    std::uint32_t slot = 0;
    Verdict verdict = Verdict::kEmpty;
    std::vector<std::uint32_t> segments;
  };
  std::uint64_t verified = 0;  // payloads read
  std::uint64_t changed = 0;   // written while they were read
  std::vector<Slot> mismatches;
};

// A payload that does not match the header it was read under, but by now there is another one.
StatusOr<bool> ChangedSince(SlotFileReader& reader, SlotFileReader::Entry& entry) {
  const std::uint64_t generation = entry.header.generation;
  if (Status status = reader.ReadHeader(entry.slot, entry); !status.ok()) return status;
  return entry.state != HeaderState::kSound || entry.header.generation != generation;
}

Status VerifySlot(SlotFileReader& reader, const Census& census, SlotFileReader::Entry& entry,
                  Findings& findings) {
  ++findings.verified;
  const Verdict verdict = census.Judge(entry);
  StatusOr<std::vector<std::uint32_t>> segments = reader.MismatchedSegments(entry.header);
  if (!segments.ok()) return segments.status();
  if (segments->empty()) return absl::OkStatus();
  const StatusOr<bool> changed = ChangedSince(reader, entry);
  if (!changed.ok()) return changed.status();
  if (*changed) {
    ++findings.changed;
  } else {
    findings.mismatches.push_back({entry.slot, verdict, *std::move(segments)});
  }
  return absl::OkStatus();
}

void VerifyJson(const SlotFileReader& reader, const Census& census, const Findings& findings,
                const InspectOptions& options, bool matches) {
  JsonWriter json(stdout);
  json.Open('{');
  json.Member("file", std::string_view(options.path));
  json.Member("matches", matches);
  json.Member("payloads", findings.verified);
  json.Member("payload_bytes", findings.verified * reader.layout().slot_bytes);
  json.Member("changed_while_read", findings.changed);
  json.Open('[', "mismatches");
  for (const Findings::Slot& slot : findings.mismatches) {
    json.Open('{');
    json.Member("slot", slot.slot);
    json.Member("state", ToString(slot.verdict));
    json.Open('[', "segments");
    for (const std::uint32_t segment : slot.segments) json.Member({}, segment);
    json.Close();
    json.Close();
  }
  json.Close();
  for (const Verdict verdict : {Verdict::kTorn, Verdict::kMisplaced, Verdict::kForeign}) {
    json.Member(ToString(verdict), census.count(verdict));
  }
  json.Open('[', "state_pages");
  for (const std::uint32_t index : {0u, 1u}) {
    json.Member({}, std::string_view(StatePageText(reader, index)));
  }
  json.Close();
  json.Member("missing_bytes", MissingBytes(reader));
  json.Close();
}

void VerifyText(const SlotFileReader& reader, const Census& census, const Findings& findings) {
  for (const Findings::Slot& slot : findings.mismatches) {
    std::printf("slot %" PRIu32 " (%s): payload does not match, segments", slot.slot,
                std::string(ToString(slot.verdict)).c_str());
    for (const std::uint32_t segment : slot.segments) std::printf(" %" PRIu32, segment);
    std::printf("\n");
  }
  for (const std::uint32_t index : {0u, 1u}) {
    if (StatePageSound(reader, index)) continue;
    std::printf("state page %" PRIu32 ": %s\n", index, StatePageText(reader, index).c_str());
  }
  if (const std::uint64_t missing = MissingBytes(reader); missing != 0) {
    std::printf("the file ends %" PRIu64 " bytes early\n", missing);
  }
  std::printf("%" PRIu64 " payloads of %" PRIu64 " bytes read, %zu do not match", findings.verified,
              reader.layout().slot_bytes, findings.mismatches.size());
  if (findings.changed != 0) std::printf(", %" PRIu64 " changed meanwhile", findings.changed);
  std::printf("; headers: %" PRIu64 " torn, %" PRIu64 " misplaced, %" PRIu64 " foreign\n",
              census.count(Verdict::kTorn), census.count(Verdict::kMisplaced),
              census.count(Verdict::kForeign));
}

}  // namespace

StatusOr<int> Verify(SlotFileReader& reader, const InspectOptions& options) {
  const StatusOr<Census> census = Census::Take(reader);
  if (!census.ok()) return census.status();
  Findings findings;
  bool matches = reader.state().ok() && StatePageSound(reader, 0) && StatePageSound(reader, 1) &&
                 MissingBytes(reader) == 0;
  for (SlotFileReader::Entry entry; reader.Next(entry);) {
    if (Damaged(census->Judge(entry))) matches = false;
    if (entry.state != HeaderState::kSound) continue;
    if (Status status = VerifySlot(reader, *census, entry, findings); !status.ok()) return status;
  }
  if (!reader.status().ok()) return reader.status();
  matches = matches && findings.mismatches.empty();
  options.json ? VerifyJson(reader, *census, findings, options, matches)
               : VerifyText(reader, *census, findings);
  return matches ? kAllMatches : kMismatch;
}

}  // namespace tidepool::tools
