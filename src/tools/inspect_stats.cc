// Layout, state, slots by state, blocks by namespace.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "src/tools/inspect.h"
#include "src/tools/inspect_census.h"
#include "src/tools/json.h"

namespace tidepool::tools {
namespace {

// The process that holds a flock on the file. From /proc/locks, because trying for the lock could
// make an owner fail that starts at this moment. None seen is no proof: other containers' locks do
// not show.
std::optional<std::int64_t> LockHolder(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return std::nullopt;
  char name[64];
  std::snprintf(name, sizeof(name), "%02x:%02x:%ju", major(info.st_dev), minor(info.st_dev),
                static_cast<std::uintmax_t>(info.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, type, advisory, mode, file;
    std::int64_t pid = 0;
    if (!(words >> number >> type >> advisory >> mode >> pid >> file)) continue;
    if (type == "FLOCK" && file == name) return pid;
  }
  return std::nullopt;
}

void LayoutJson(JsonWriter& json, const SlotFileLayout& layout) {
  json.Open('{', "layout");
  json.Member("version", kSlotFileVersion);
  json.Member("identity", std::string_view(layout.identity));
  json.Member("fingerprint", std::string_view(Hex(layout.fingerprint())));
  json.Member("digest_check", std::string_view(Hex(layout.digest_check)));
  json.Member("slots", layout.slots);
  json.Member("slot_bytes", layout.slot_bytes);
  json.Member("slot_stride", layout.slot_stride);
  json.Member("layers", layout.layers);
  json.Member("block_tokens", layout.block_tokens);
  json.Member("stores_tokens", layout.stores_tokens);
  json.Member("segments", layout.segments());
  json.Member("header_bytes", layout.header_bytes());
  json.Member("headers_offset", layout.headers_offset());
  json.Member("payloads_offset", layout.payloads_offset());
  json.Member("file_bytes", layout.file_bytes());
  json.Close();
}

void StateJson(JsonWriter& json, const SlotFileReader& reader) {
  if (const StatusOr<SlotFileState>& state = reader.state(); state.ok()) {
    json.Open('{', "state");
    json.Member("sequence", state->sequence);
    json.Member("epoch", state->epoch);
    json.Member("least_generation", state->least_generation);
    json.Open('[', "dropped");
    for (const SlotFileState::Dropped& dropped : state->dropped) {
      json.Open('{');
      json.Member("root", std::string_view(Hex(dropped.root)));
      json.Member("generation", dropped.generation);
      json.Close();
    }
    json.Close();
    json.Close();
  } else {
    json.Null("state");
  }
  json.Open('[', "state_pages");
  for (const std::uint32_t index : {0u, 1u}) {
    json.Member({}, std::string_view(StatePageText(reader, index)));
  }
  json.Close();
}

void StatsJson(const SlotFileReader& reader, const Census& census, const InspectOptions& options) {
  JsonWriter json(stdout);
  json.Open('{');
  json.Member("file", std::string_view(options.path));
  json.Member("bytes", reader.file_bytes());
  if (const auto holder = LockHolder(reader.fd())) {
    json.Member("lock_holder", *holder);
  } else {
    json.Null("lock_holder");
  }
  LayoutJson(json, reader.layout());
  StateJson(json, reader);
  json.Open('{', "slots");
  for (std::size_t i = 0; i < kVerdicts; ++i) {
    json.Member(ToString(static_cast<Verdict>(i)), census.counts[i]);
  }
  json.Member("beyond the end", reader.layout().slots - reader.readable_slots());
  json.Close();
  json.Member("current_bytes", census.count(Verdict::kCurrent) * reader.layout().slot_bytes);
  json.Open('[', "namespaces");
  for (const auto& [root, space] : census.namespaces) {
    json.Open('{');
    json.Member("root", std::string_view(Hex(root)));
    json.Member("blocks", space.blocks);
    json.Member("bytes", space.blocks * reader.layout().slot_bytes);
    json.Member("least_generation", space.least_generation);
    json.Member("largest_generation", space.largest_generation);
    json.Member("deepest_position", space.deepest_position);
    json.Close();
  }
  json.Close();
  json.Close();
}

void LayoutText(const SlotFileReader& reader, const InspectOptions& options) {
  const SlotFileLayout& layout = reader.layout();
  std::printf("file         %s: %" PRIu64 " bytes of %" PRIu64 "\n", options.path.c_str(),
              reader.file_bytes(), layout.file_bytes());
  if (const auto holder = LockHolder(reader.fd())) {
    std::printf("owner        process %" PRId64
                " holds the lock: slots that are being written may look damaged\n",
                *holder);
  } else {
    std::printf("owner        none seen\n");
  }
  std::printf("identity     \"%s\"\n", Escaped(layout.identity).c_str());
  std::printf("format       version %" PRIu32 ", fingerprint %s, digest check %s\n",
              kSlotFileVersion, Hex(layout.fingerprint()).c_str(),
              Hex(layout.digest_check).c_str());
  std::printf("slots        %" PRIu32 " of %" PRIu64 " bytes, stride %" PRIu64 ", from %" PRIu64
              "; %" PRIu32 " layers, %" PRIu32 " segments\n",
              layout.slots, layout.slot_bytes, layout.slot_stride, layout.payloads_offset(),
              layout.layers, layout.segments());
  std::printf("headers      %" PRIu32 " bytes each, from %" PRIu64 "; blocks of %" PRIu32
              " tokens, which are %s\n",
              layout.header_bytes(), layout.headers_offset(), layout.block_tokens,
              layout.stores_tokens ? "stored" : "not stored");
}

void StateText(const SlotFileReader& reader) {
  if (const StatusOr<SlotFileState>& state = reader.state(); state.ok()) {
    std::printf("state        sequence %" PRIu64 ", epoch %" PRIu64 ", least generation %" PRIu64
                ", %zu namespaces dropped\n",
                state->sequence, state->epoch, state->least_generation, state->dropped.size());
  } else {
    std::printf("state        none is sound: nothing in the file counts\n");
  }
  for (const std::uint32_t index : {0u, 1u}) {
    std::printf("state page %" PRIu32 " %s\n", index, StatePageText(reader, index).c_str());
  }
}

// "current 2, torn 1".
std::string SlotsText(const SlotFileReader& reader, const Census& census) {
  std::string text;
  const auto add = [&text](std::string_view name, std::uint64_t count) {
    if (count == 0) return;
    if (!text.empty()) text += ", ";
    text += std::string(name) + " " + std::to_string(count);
  };
  for (std::size_t i = 0; i < kVerdicts; ++i)
    add(ToString(static_cast<Verdict>(i)), census.counts[i]);
  add("beyond the end", reader.layout().slots - reader.readable_slots());
  return text;
}

void StatsText(const SlotFileReader& reader, const Census& census, const InspectOptions& options) {
  LayoutText(reader, options);
  StateText(reader);
  std::printf("by state     %s\n", SlotsText(reader, census).c_str());
  std::printf("payload      %" PRIu64 " bytes in current slots\n",
              census.count(Verdict::kCurrent) * reader.layout().slot_bytes);
  for (const auto& [root, space] : census.namespaces) {
    std::printf("namespace    %s: %" PRIu64 " blocks, %" PRIu64 " bytes, generations %" PRIu64
                " to %" PRIu64 ", deepest position %" PRIu32 "\n",
                Hex(root).c_str(), space.blocks, space.blocks * reader.layout().slot_bytes,
                space.least_generation, space.largest_generation, space.deepest_position);
  }
}

}  // namespace

StatusOr<int> Stats(SlotFileReader& reader, const InspectOptions& options) {
  const StatusOr<Census> census = Census::Take(reader);
  if (!census.ok()) return census.status();
  options.json ? StatsJson(reader, *census, options) : StatsText(reader, *census, options);
  return kAllMatches;
}

}  // namespace tidepool::tools
