// Slots, one a line, as they come: a file of a million of them is not kept in memory.
#include <cinttypes>
#include <cstdio>
#include <string>

#include "src/tools/inspect.h"
#include "src/tools/inspect_census.h"
#include "src/tools/json.h"

namespace tidepool::tools {
namespace {

void ListJson(JsonWriter& json, const SlotFileReader::Entry& entry, Verdict verdict,
              const InspectOptions& options) {
  const BlockIdentity& who = entry.header.identity;
  json.Open('{');
  json.Member("slot", entry.slot);
  json.Member("state", ToString(verdict));
  if (entry.state == HeaderState::kSound) {
    json.Member("position", who.position);
    json.Member("generation", entry.header.generation);
    json.Member("epoch", who.epoch);
    json.Member("digest", std::string_view(Hex(who.digest)));
    json.Member("parent", std::string_view(Hex(who.parent)));
    json.Member("root", std::string_view(Hex(who.root)));
    json.Member("content", std::string_view(Hex(who.content)));
    json.Member("tokens", who.tokens.size());
  }
  if (entry.state == HeaderState::kSound && options.tokens) {
    json.Open('[', "token_ids");
    for (const Token token : who.tokens) json.Member({}, token);
    json.Close();
  }
  json.Close();
}

void ListText(const SlotFileReader::Entry& entry, Verdict verdict, const InspectOptions& options) {
  const BlockIdentity& who = entry.header.identity;
  const auto state = std::string(ToString(verdict));
  if (entry.state != HeaderState::kSound) {
    std::printf("%10" PRIu32 "  %s\n", entry.slot, state.c_str());
    return;
  }
  std::printf("%10" PRIu32 "  %-13s  %8" PRIu32 "  %10" PRIu64 "  %5" PRIu64 "  %6zu  %s  %s\n",
              entry.slot, state.c_str(), who.position, entry.header.generation, who.epoch,
              who.tokens.size(), Hex(who.digest).c_str(), Hex(who.root).c_str());
  if (!options.tokens || who.tokens.empty()) return;
  std::printf("%10s ", "");
  for (const Token token : who.tokens) std::printf(" %" PRId32, token);
  std::printf("\n");
}

}  // namespace

StatusOr<int> List(SlotFileReader& reader, const InspectOptions& options) {
  const StatusOr<Census> census = Census::Take(reader);
  if (!census.ok()) return census.status();
  JsonWriter json(stdout);
  if (options.json) {
    json.Open('{');
    json.Member("file", std::string_view(options.path));
    json.Open('[', "slots");
  } else {
    std::printf("%10s  %-13s  %8s  %10s  %5s  %6s  %-32s  %s\n", "slot", "state", "position",
                "generation", "epoch", "tokens", "digest", "root");
  }
  for (SlotFileReader::Entry entry; reader.Next(entry);) {
    const Verdict verdict = census->Judge(entry);
    if (verdict == Verdict::kEmpty) continue;
    options.json ? ListJson(json, entry, verdict, options) : ListText(entry, verdict, options);
  }
  if (options.json) {
    json.Close();
    json.Close();
  }
  if (!reader.status().ok()) return reader.status();
  return kAllMatches;
}

}  // namespace tidepool::tools
