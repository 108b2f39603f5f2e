#include "refs.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "policies.h"
#include "report.h"
#include "tidepool/testing/flat_cache.h"
#include "tierings.h"

namespace policy_lab {
namespace {

using tidepool::StatusOr;

/// Farthest next use leaves; a reference that is never used again is let in like any other.
std::uint64_t BeladyMisses(const std::vector<std::uint32_t>& references, std::uint32_t distinct,
                           std::uint32_t capacity) {
  constexpr std::size_t kNone = SIZE_MAX;
  std::vector<std::size_t> next(references.size());
  std::vector<std::size_t> upcoming(distinct, kNone);
  for (std::size_t i = references.size(); i-- > 0;) {
    next[i] = upcoming[references[i]];
    upcoming[references[i]] = i;
  }
  std::set<std::pair<std::size_t, std::uint32_t>> resident;  // (next use, id)
  std::uint64_t misses = 0;
  for (std::size_t i = 0; i < references.size(); ++i) {
    const std::uint32_t id = references[i];
    if (resident.erase({i, id}) == 0) {
      ++misses;
      if (resident.size() == capacity) resident.erase(std::prev(resident.end()));
    }
    resident.emplace(next[i], id);
  }
  return misses;
}

std::uint64_t PolicyMisses(const std::vector<std::uint32_t>& references, const PolicyEntry& entry,
                           std::uint32_t capacity, const Settings& settings) {
  tidepool::testing::FlatCache cache(entry.make({.settings = &settings, .seed = settings.seed}),
                                     capacity);
  std::uint64_t misses = 0;
  for (const std::uint32_t id : references) {
    misses += cache.Reference(tidepool::testing::FlatKey(0, id)) ? 0 : 1;
  }
  return misses;
}

}  // namespace

StatusOr<RefsResults> RunRefs(std::string_view text, const std::string& name,
                              const Settings& settings) {
  std::unordered_map<std::string_view, std::uint32_t> ids;
  std::vector<std::uint32_t> references;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const auto id = static_cast<std::uint32_t>(ids.size());
    references.push_back(ids.try_emplace(line, id).first->second);
  }
  if (references.empty()) return absl::InvalidArgumentError(name + ": has no references");
  RefsResults results{.name = name, .references = references.size(), .distinct = ids.size()};
  for (const Capacity& capacity : settings.capacities) {
    for (const std::string& policy : settings.policies) {
      const PolicyEntry& entry = *FindSystem(policy).policy;  // one tier: nothing to copy
      const std::uint64_t misses =
          entry.needs_future
              ? BeladyMisses(references, static_cast<std::uint32_t>(ids.size()), capacity.blocks)
              : PolicyMisses(references, entry, capacity.blocks, settings);
      results.rows.push_back({policy, capacity.blocks, misses});
    }
  }
  return results;
}

StatusOr<RefsResults> RunRefsFile(const std::string& path, const Settings& settings) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "rb"), [](std::FILE* f) { return std::fclose(f); });
  if (file == nullptr) {
    return absl::InvalidArgumentError("cannot read " + path + ": " + std::strerror(errno));
  }
  std::string text;
  std::vector<char> buffer(1u << 18);
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), n);
  }
  if (std::ferror(file.get()) != 0) return absl::InvalidArgumentError("cannot read " + path);
  return RunRefs(text, path, settings);
}

std::string RefsTable(const RefsResults& results) {
  std::string out =
      Format("%s: %llu references, %llu distinct\n\n%10s  %-12s %12s %12s\n", results.name.c_str(),
             static_cast<unsigned long long>(results.references),
             static_cast<unsigned long long>(results.distinct), "blocks", "policy", "misses",
             "miss ratio");
  for (const RefsRow& row : results.rows) {
    out += Format("%10u  %-12s %12llu %12.4f\n", row.capacity_blocks, row.policy.c_str(),
                  static_cast<unsigned long long>(row.misses),
                  static_cast<double>(row.misses) / static_cast<double>(results.references));
  }
  return out;
}

std::string RefsCsv(const RefsResults& results) {
  std::string out = "policy,capacity_blocks,references,misses\n";
  for (const RefsRow& row : results.rows) {
    out += row.policy + Format(",%u,%llu,%llu\n", row.capacity_blocks,
                               static_cast<unsigned long long>(results.references),
                               static_cast<unsigned long long>(row.misses));
  }
  return out;
}

std::string RefsJson(const RefsResults& results) {
  const auto references = static_cast<double>(results.references);
  std::string out = "{\"config\": {\"refs\": " + Quoted(results.name) +
                    ", \"references\": " + Number(references) +
                    ", \"distinct_blocks\": " + Number(static_cast<double>(results.distinct)) +
                    "},\n \"rows\": [";
  for (std::size_t i = 0; i < results.rows.size(); ++i) {
    const RefsRow& row = results.rows[i];
    const auto misses = static_cast<double>(row.misses);
    out += (i == 0 ? "\n  " : ",\n  ") + ("{\"policy\": " + Quoted(row.policy)) +
           ", \"capacity_blocks\": " + Number(row.capacity_blocks) +
           ", \"hit_ratio\": " + Number(1 - misses / references) +
           ", \"hits\": " + Number(references - misses) + ", \"misses\": " + Number(misses) + "}";
  }
  return out + "\n ]}\n";
}

}  // namespace policy_lab
