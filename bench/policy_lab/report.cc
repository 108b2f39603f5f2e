// Table, CSV, JSON. The page is in html.cc.
#include "report.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace policy_lab {
namespace {

std::string CapacityText(const ResultRow& row) {
  std::string text = Format("%.0f", row.capacity_blocks);
  if (row.held_multiple != 0) text += Format(" (%gx)", row.held_multiple);
  return text;
}

std::string PlusMinus(const Estimate& estimate, const char* format, bool several) {
  std::string text = Format(format, estimate.mean);
  if (several)
    text +=
        " \u00b1" +
        Format(format, estimate.half_width).substr(Format(format, 0.0).starts_with('+') ? 1 : 0);
  return text;
}

/// Pads to a width in characters; counts no continuation bytes.
std::string Pad(const std::string& text, std::size_t width, bool left = false) {
  std::size_t size = 0;
  for (const char c : text) size += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  const std::string space(width > size ? width - size : 0, ' ');
  return left ? text + space : space + text;
}

std::string TimeText(double ms) {
  if (ms < 1000) return Format("%.0fms", ms);
  return Format(ms < 100e3 ? "%.1fs" : "%.0fs", ms / 1000);
}

void AppendEstimate(std::string_view name, const Estimate& estimate, std::string& out) {
  out += ", " + Quoted(name) + ": " + Number(estimate.mean) + ", " +
         Quoted(std::string(name) + "_ci") + ": " + Number(estimate.half_width);
}

std::string JsonList(const Settings& settings) {
  std::string list;
  for (const std::string& policy : settings.policies) {
    list += (list.empty() ? "" : ", ") + Quoted(policy);
  }
  return "[" + list + "]";
}

std::string JsonRow(const Results& results, const ResultRow& row) {
  std::string out =
      "{\"policy\": " + Quoted(row.policy) +
      ", \"capacity_blocks\": " + Number(std::round(row.capacity_blocks)) +
      ", \"capacity_held\": " + (row.held_multiple == 0 ? "null" : Number(row.held_multiple));
  for (std::size_t i = 0; i < row.figures.size(); ++i) {
    if (results.Shows(i)) AppendEstimate(Figures()[i].name, row.figures[i], out);
  }
  if (row.hit_points_vs_lru) AppendEstimate("hit_points_vs_lru", *row.hit_points_vs_lru, out);
  if (row.cost_ratio_vs_lru) AppendEstimate("cost_ratio_vs_lru", *row.cost_ratio_vs_lru, out);
  return out + "}";
}

std::string JsonConfig(const Settings& s, const Results& r) {
  std::string out = "{\"trace\": " + Quoted(r.trace) + ", \"mode\": " + Quoted(ToString(s.mode)) +
                    ", \"scope_start\": " + Quoted(r.scope_start) +
                    ", \"part\": " + Quoted(Format("%u/%u", s.part.index, s.part.of));
  if (s.train) {
    out += ", \"train\": " + Quoted(s.train->path.empty() ? s.train->preset : s.train->path) +
           ", \"train_part\": " + Quoted(Format("%u/%u", s.train_part.index, s.train_part.of));
  }
  const auto number = [&out](const char* name, double value) {
    out += Format(", \"%s\": ", name) + Number(value);
  };
  number("seed", static_cast<double>(s.seed));
  number("seeds", s.seeds);
  number("requests", static_cast<double>(r.requests));
  number("sessions", r.sessions);
  number("scopes", r.scopes);
  number("prompt_blocks", static_cast<double>(r.prompt_blocks));
  number("distinct_blocks", static_cast<double>(r.distinct_blocks));
  number("block_tokens", r.trace_block_tokens);
  number("block_mb", s.block_bytes / 1e6);
  number("dram_blocks", s.dram_blocks);
  number("dram_times", s.dram_times);
  number("nvme_blocks", s.nvme_blocks);
  number("prefill_ms", s.prefill.c0_seconds * 1e3);
  number("prefill_slope_blocks", s.prefill.slope_blocks);
  out += Format(", \"service\": \"%s\"", s.service == Service::kModel ? "model" : "trace");
  number("decode_ms", s.decode_s * 1e3);
  number("cost_slope_blocks", kCostSlopeBlocks);
  number("between_sd", s.source.between_sd);
  number("hint_log_sd", s.hint_log_sd.value_or(NAN));
  number("held_mean_unconstrained", r.held_mean);
  out += ", \"link_gbs\": [";
  for (std::size_t i = 0; i < s.link_gbs.size(); ++i) {
    out += (i == 0 ? "" : ", ") + Number(s.link_gbs[i]);
  }
  out += Format("], \"nvme_link\": \"%s\"",
                s.nvme_link == LinkSharing::kShared ? "shared" : "each_way");
  number("release_after_s", s.release_after_s.value_or(NAN));
  const bool signalled = s.completion == Completion::kSignalled;
  const bool normal = s.priority == tidepool::Priority::kNormal;
  out += Format(", \"completion\": %s, \"priority\": \"%s\"", signalled ? "true" : "false",
                normal ? "normal" : "background");
  return out + ", \"policies\": " + JsonList(s) + "}";
}

}  // namespace

std::string Format(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char buffer[512];
  const int size = std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return std::string(buffer, static_cast<std::size_t>(std::min<int>(size, sizeof buffer - 1)));
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += Format("\\u%04x", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string Number(double value) {
  if (!std::isfinite(value)) return "null";
  if (value == std::round(value) && std::abs(value) < 1e15) return Format("%.0f", value);
  return Format("%.8g", value);
}

std::string_view ToString(Mode mode) { return mode == Mode::kNoHold ? "no_hold" : "engine"; }

std::string Constants(const Settings& s, const Results& r) {
  std::string out = Format(
      "%s: %llu requests, %u sessions, %u scopes, %.3g M prompt blocks of %u tokens, %.3g M "
      "distinct\n",
      r.trace.c_str(), static_cast<unsigned long long>(r.requests), r.sessions, r.scopes,
      static_cast<double>(r.prompt_blocks) / 1e6, r.trace_block_tokens,
      static_cast<double>(r.distinct_blocks) / 1e6);
  out += Format("mode %s, starts %s, seeds %llu-%llu, part %u/%u",
                std::string(ToString(s.mode)).c_str(), r.scope_start.c_str(),
                static_cast<unsigned long long>(s.seed),
                static_cast<unsigned long long>(s.seed + s.seeds - 1), s.part.index, s.part.of);
  if (s.train) {
    out += Format(", trained on %s part %u/%u",
                  (s.train->path.empty() ? s.train->preset : s.train->path).c_str(),
                  s.train_part.index, s.train_part.of);
  }
  out += Format(
      "\nprefill %g ms x (1 + p/%g) a 64-token block, decode %g ms a token, recompute cost 1 + "
      "p/%g a block\n",
      s.prefill.c0_seconds * 1e3, s.prefill.slope_blocks, s.decode_s * 1e3, kCostSlopeBlocks);
  out += s.hint_log_sd ? Format("hints with log-sd %g", *s.hint_log_sd) : "no hints";
  out += s.completion == Completion::kSignalled ? ", completion signalled"
                                                : ", completion not signalled";
  out += s.priority == tidepool::Priority::kNormal ? ", priority normal" : ", priority background";
  if (s.has_dram()) {
    out += s.dram_times > 0 ? Format("; DRAM %g x HBM", s.dram_times)
                            : Format("; DRAM %u blocks", s.dram_blocks);
    if (s.nvme_blocks != 0) out += Format(", NVMe %u", s.nvme_blocks);
    out += Format(", block %g MB, links", s.block_bytes / 1e6);
    for (const double gbs : s.link_gbs) out += Format(" %g", gbs);
    out += " GB/s";
    if (s.nvme_blocks != 0) {
      out += s.nvme_link == LinkSharing::kShared ? " (the last one both ways together)"
                                                 : " (each way)";
    }
    if (!s.lower_policy.empty()) out += ", " + s.lower_policy + " below HBM";
  }
  out += '\n';
  if (r.held_mean > 0) {
    out += Format("held without constraint: mean %.0f blocks, p50 %.0f, p90 %.0f\n", r.held_mean,
                  r.held_p50, r.held_p90);
  }
  return out;
}

std::string Table(const Settings& settings, const Results& results) {
  const bool several = settings.seeds > 1;
  const bool tiers = settings.has_dram();
  std::string out = Constants(settings, results) + '\n';
  std::size_t width = 11;
  for (const ResultRow& row : results.rows) width = std::max(width, row.policy.size() + 1);
  out += Pad("blocks", 12) + "  " + Pad("policy", width, true) +
         Pad("hit ratio", several ? 14 : 10) + Pad("points", several ? 13 : 8) +
         Pad("cost/lru", several ? 13 : 9);
  if (tiers) out += Pad("hbm", 7) + Pad("dram", 7) + Pad("room s", 8) + Pad("met", 7);
  if (tiers) out += Pad("GB down", 9) + Pad("up", 8);
  out += Pad("amat ms", 9) + Pad("ttft p50", 9) + Pad("p99", 8) + Pad("ns/victim", 10) + '\n';
  double last = -1;
  for (const ResultRow& row : results.rows) {
    if (last >= 0 && row.capacity_blocks != last) out += '\n';
    last = row.capacity_blocks;
    const bool lru = row.policy == "lru";
    out += Pad(CapacityText(row), 12) + "  " + Pad(row.policy, width, true) +
           Pad(PlusMinus(row.Of("hit_ratio"), "%.4f", several), several ? 14 : 10);
    out += Pad(
        row.hit_points_vs_lru && !lru ? PlusMinus(*row.hit_points_vs_lru, "%+.2f", several) : "-",
        several ? 13 : 8);
    out += Pad(
        row.cost_ratio_vs_lru && !lru ? PlusMinus(*row.cost_ratio_vs_lru, "%.3f", several) : "-",
        several ? 13 : 9);
    if (tiers) {
      const auto cell = [&](const char* format, const char* figure, std::size_t size) {
        out += Pad(Format(format, row.Of(figure).mean), size);
      };
      cell("%.4f", "hit_ratio_hbm", 7);
      cell("%.4f", "hit_ratio_dram", 7);
      cell("%.0f", "room_wait_s", 8);
      const double windows = row.Of("windows").mean;
      out += Pad(windows == 0 ? "-" : Format("%.3f", row.Of("windows_met").mean / windows), 7);
      cell("%.0f", "gb_down_to_dram", 9);
      cell("%.0f", "gb_up_from_dram", 8);
    }
    out += Pad(Format("%.3f", row.Of("amat_ms").mean), 9) +
           Pad(TimeText(row.Of("ttft_p50_ms").mean), 9) +
           Pad(TimeText(row.Of("ttft_p99_ms").mean), 8) +
           Pad(Format("%.0f", row.Of("decision_ns").mean), 10) + '\n';
  }
  return out;
}

std::string Csv(const Results& results) {
  std::string out = "policy,capacity_blocks,capacity_held";
  for (std::size_t i = 0; i < Figures().size(); ++i) {
    const std::string name(Figures()[i].name);
    if (results.Shows(i)) out += "," + name + "," + name + "_ci";
  }
  out += ",hit_points_vs_lru,hit_points_vs_lru_ci,cost_ratio_vs_lru,cost_ratio_vs_lru_ci\n";
  const auto append = [&out](const std::optional<Estimate>& estimate) {
    out += estimate ? "," + Number(estimate->mean) + "," + Number(estimate->half_width) : ",,";
  };
  for (const ResultRow& row : results.rows) {
    out += row.policy + Format(",%.0f,", row.capacity_blocks);
    if (row.held_multiple != 0) out += Number(row.held_multiple);
    for (std::size_t i = 0; i < row.figures.size(); ++i) {
      if (results.Shows(i)) append(row.figures[i]);
    }
    append(row.hit_points_vs_lru);
    append(row.cost_ratio_vs_lru);
    out += '\n';
  }
  return out;
}

std::string Json(const Settings& settings, const Results& results) {
  std::string out = "{\"config\": " + JsonConfig(settings, results) + ",\n \"rows\": [";
  for (std::size_t i = 0; i < results.rows.size(); ++i) {
    out += (i == 0 ? "\n  " : ",\n  ") + JsonRow(results, results.rows[i]);
  }
  return out + "\n ]}\n";
}

}  // namespace policy_lab
