#include "report.h"

#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "format.h"

namespace agent_replay {
namespace {

/// 1234567 -> "1,234,567".
std::string Grouped(std::uint64_t n) {
  std::string digits = std::to_string(n);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string Bytes(std::uint64_t n) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(n);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? Format("%.0f B", value) : Format("%.1f %s", value, kUnits[unit]);
}

std::string Duration(std::int64_t ms) {
  const double s = static_cast<double>(ms) / 1000;
  return s < 120    ? Format("%.1f s", s)
         : s < 7200 ? Format("%.0f min", s / 60)
                    : Format("%.1f h", s / 3600);
}

double Share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::uint64_t OffloadedBytes(const ReplayResult& r) {
  return r.tiers[1].bytes_in + r.tiers[2].bytes_in;
}

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += Format("\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// Members of one JSON object, two to the indent.
class JsonObject {
 public:
  JsonObject& Add(std::string_view key, std::uint64_t value) {
    return Raw(key, std::to_string(value));
  }
  JsonObject& Add(std::string_view key, double value) { return Raw(key, Format("%.6g", value)); }
  JsonObject& Add(std::string_view key, std::string_view value) {
    return Raw(key, JsonString(value));
  }
  JsonObject& Raw(std::string_view key, std::string_view json) {
    ((text_ += text_.empty() ? "" : separator_) += JsonString(key)) += ": ";
    text_ += json;
    return *this;
  }
  void set_separator(const char* separator) { separator_ = separator; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  const char* separator_ = ", ";
  std::string text_;
};

std::string PaceText(const ReplayOptions& options) {
  if (options.pace == Pace::kLockstep) return "lockstep";
  if (options.pace == Pace::kOverlapping) return "sessions overlap as in the trace";
  return Format("the wall's clock, %g times as fast as the trace", options.time_scale);
}

std::string_view PaceName(Pace pace) {
  return pace == Pace::kLockstep ? "lockstep" : pace == Pace::kOverlapping ? "overlapping" : "wall";
}

template <typename Value>
std::string ByTier(const ReplayResult& result, Value value) {
  JsonObject object;
  for (std::size_t t = 0; t < kTiers; ++t) {
    if (result.tiers[t].blocks != 0)
      object.Add(kTierNames[t], std::uint64_t{value(result.tiers[t])});
  }
  return "{" + object.text() + "}";
}

}  // namespace

std::string Headline(const Subject& s) {
  const ReplayOptions& o = s.options;
  std::string out =
      Format("%s: %s requests of %u sessions, %s prompt blocks, %s distinct\n",
             s.trace.name.c_str(), Grouped(s.trace.requests.size()).c_str(), s.schedule.sessions,
             Grouped(PromptBlocks(s.trace)).c_str(), Grouped(UniqueBlocks(s.trace)).c_str());
  out += Format("  a block is %u tokens (%u in the trace) and %s of payload; policy %s, %s\n",
                o.block_tokens, s.trace.block_tokens, Bytes(o.block_bytes).c_str(),
                s.policy.c_str(), PaceText(o).c_str());
  if (s.schedule.scopes > 1) {
    out += Format("  %u scopes without a common clock: Poisson starts, mean %.4g s, seed %llu\n",
                  s.schedule.scopes, s.start_gap_s, static_cast<unsigned long long>(s.seed));
  }
  return out;
}

std::string Table(const ReplayResult& r) {
  std::string out = Format("\n%-12s %12s %12s %16s %8s %12s %12s\n", "tier", "blocks", "in use",
                           "hit tokens", "share", "copied in", "copied out");
  for (std::size_t t = 0; t < kTiers; ++t) {
    const TierResult& tier = r.tiers[t];
    if (tier.blocks == 0) continue;
    out += Format("%-12s %12s %12s %16s %7.2f%% %12s %12s\n", kTierNames[t],
                  Grouped(tier.blocks).c_str(), Grouped(tier.used_blocks).c_str(),
                  Grouped(tier.hit_tokens).c_str(), 100 * Share(tier.hit_tokens, r.prompt_tokens),
                  Bytes(tier.bytes_in).c_str(), Bytes(tier.bytes_out).c_str());
  }
  out += Format("%-12s %12s %12s %16s %7.2f%%\n\n", "recomputed", "", "",
                Grouped(r.recomputed_tokens).c_str(),
                100 * Share(r.recomputed_tokens, r.prompt_tokens));
  const auto line = [&out](const char* name, const std::string& value) {
    out += Format("%-26s ", name) + value + '\n';
  };
  line("requests", Grouped(r.requests) + " (" + Grouped(r.resumed) + " resumed)");
  line("offloaded, onboarded", Bytes(OffloadedBytes(r)) + ", " + Bytes(r.tiers[0].bytes_in));
  line("stalls", Grouped(r.stalls) + " (" + Grouped(r.waits) + " waited for running turns, " +
                     Duration(r.wait_ms) + " in all)");
  if (r.clipped_requests != 0) {
    line("larger than HBM", Grouped(r.clipped_requests) + " requests, served without their last " +
                                Grouped(r.clipped_blocks) + " blocks in all");
  }
  if (r.failed_loads + r.failed_offloads + r.dropped_dirty != 0) {
    line("failed", Grouped(r.failed_loads) + " loads, " + Grouped(r.failed_offloads) +
                       " offloads, " + Grouped(r.dropped_dirty) + " blocks dropped unsaved");
  }
  if (r.stored_found != 0) {
    line("of an earlier replay", Grouped(r.stored_found) + " blocks found in the file, " +
                                     Grouped(r.stored_used) + " asked for");
  }
  line("wait for loads, a turn",
       Format("p50 %.1f us, p99 %.1f us, mean %.1f us", r.load_wait.p50_us, r.load_wait.p99_us,
              r.load_wait.mean_us));
  const TideSummary& tide = r.tide;
  if (tide.pool_copies + tide.demand_copies != 0) {
    line("copied ahead, on demand", Grouped(tide.pool_copies) + ", " + Grouped(tide.demand_copies) +
                                        " blocks; the budget cut " + Grouped(tide.held_back) +
                                        " refreshes short");
    line("left the tiers below", Grouped(tide.duplicates_left) + " duplicates, " +
                                     Grouped(tide.only_copies_left) + " only-copies");
  }
  if (tide.prefetched != 0) {
    line("prefetched", Grouped(tide.prefetched) + " blocks, " + Grouped(tide.prefetched_used) +
                           " used, " + Grouped(tide.prefetched_wasted) + " wasted");
  }
  line("windows met", Grouped(tide.windows_met) + " of " + Grouped(tide.windows) +
                          ": nothing was loaded or computed again");
  line("metadata time a request", Format("p50 %.1f us, p99 %.1f us, mean %.1f us",
                                         r.metadata.p50_us, r.metadata.p99_us, r.metadata.mean_us));
  line("metadata a block", Format("%.1f bytes", r.metadata_bytes_per_block));
  line("time", Format("%.1f s for %s of the trace; ", r.wall_s, Duration(r.virtual_ms).c_str()) +
                   r.transfers);
  line("verified blocks", Grouped(r.verified_blocks));
  line("mismatches",
       Grouped(r.mismatches) + (r.mismatches == 0 ? "" : " - the first: " + r.first_mismatch));
  return out;
}

std::string Json(const Subject& s, const ReplayResult& r) {
  JsonObject o;
  o.set_separator(",\n  ");
  o.Add("mismatches", r.mismatches).Add("verified_blocks", r.verified_blocks);
  o.Raw("hit_tokens", ByTier(r, [](const TierResult& t) { return t.hit_tokens; }));
  o.Add("recomputed_tokens", r.recomputed_tokens).Add("prompt_tokens", r.prompt_tokens);
  o.Add("requests", r.requests).Add("resumed", r.resumed);
  o.Add("sessions", std::uint64_t{s.schedule.sessions});
  o.Add("stalls", r.stalls).Add("waits", r.waits);
  o.Add("wait_ms", static_cast<std::uint64_t>(r.wait_ms));
  o.Add("clipped_requests", r.clipped_requests).Add("clipped_blocks", r.clipped_blocks);
  o.Add("failed_loads", r.failed_loads).Add("failed_offloads", r.failed_offloads);
  o.Add("dropped_dirty", r.dropped_dirty);
  o.Add("stored_found", r.stored_found).Add("stored_used", r.stored_used);
  o.Add("offloaded_bytes", OffloadedBytes(r)).Add("onboarded_bytes", r.tiers[0].bytes_in);
  o.Raw("tier_blocks", ByTier(r, [](const TierResult& t) { return t.blocks; }));
  o.Raw("used_blocks", ByTier(r, [](const TierResult& t) { return t.used_blocks; }));
  o.Raw("bytes_in", ByTier(r, [](const TierResult& t) { return t.bytes_in; }));
  o.Raw("bytes_out", ByTier(r, [](const TierResult& t) { return t.bytes_out; }));
  o.Raw("evicted_blocks", ByTier(r, [](const TierResult& t) { return t.evicted; }));
  JsonObject time;
  time.Add("mean", r.metadata.mean_us).Add("p50", r.metadata.p50_us).Add("p99", r.metadata.p99_us);
  JsonObject load;
  load.Add("mean", r.load_wait.mean_us).Add("p50", r.load_wait.p50_us);
  load.Add("p99", r.load_wait.p99_us);
  o.Raw("load_wait_us_per_request", "{" + load.text() + "}");
  JsonObject tide;
  tide.Add("pool_copies", r.tide.pool_copies).Add("demand_copies", r.tide.demand_copies);
  tide.Add("held_back", r.tide.held_back).Add("duplicates_left", r.tide.duplicates_left);
  tide.Add("only_copies_left", r.tide.only_copies_left).Add("prefetched", r.tide.prefetched);
  tide.Add("prefetched_used", r.tide.prefetched_used);
  tide.Add("prefetched_wasted", r.tide.prefetched_wasted);
  tide.Add("windows", r.tide.windows).Add("windows_met", r.tide.windows_met);
  o.Raw("tide", "{" + tide.text() + "}");
  o.Add("time_scale", s.options.time_scale);
  o.Raw("metadata_us_per_request", "{" + time.text() + "}");
  o.Add("metadata_bytes", r.metadata_bytes);
  o.Add("metadata_bytes_per_block", r.metadata_bytes_per_block);
  o.Add("wall_s", r.wall_s).Add("virtual_ms", static_cast<std::uint64_t>(r.virtual_ms));
  o.Add("trace", std::string_view(s.trace.name));
  o.Add("prompt_blocks", PromptBlocks(s.trace)).Add("unique_blocks", UniqueBlocks(s.trace));
  o.Add("block_tokens", std::uint64_t{s.options.block_tokens});
  o.Add("trace_block_tokens", std::uint64_t{s.trace.block_tokens});
  o.Add("block_bytes", s.options.block_bytes);
  o.Add("policy", std::string_view(s.policy));
  o.Add("pace", PaceName(s.options.pace));
  o.Add("verified", std::string_view(s.options.verification == Verification::kOn ? "yes" : "no"));
  o.Add("seed", s.seed).Add("start_gap_s", s.start_gap_s);
  o.Add("transfers", std::string_view(r.transfers));
  o.Add("first_mismatch", std::string_view(r.first_mismatch));
  return "{\n  " + o.text() + "\n}\n";
}

ProgressBar::ProgressBar(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::Show(const Progress& progress) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  shown_ = true;
  constexpr std::size_t kWidth = 40;
  const double share = Share(progress.done, progress.total);
  std::string bar(kWidth, ' ');
  bar.replace(0, static_cast<std::size_t>(share * kWidth), static_cast<std::size_t>(share * kWidth),
              '#');
  std::fprintf(stderr, "\r[%s] %3.0f %%  %s of %s requests, %.1f %% hit", bar.c_str(), 100 * share,
               Grouped(progress.done).c_str(), Grouped(progress.total).c_str(),
               100 * progress.hit_share);
  std::fflush(stderr);
}

}  // namespace agent_replay
