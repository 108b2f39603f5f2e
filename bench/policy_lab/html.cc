// The page: self-contained, inline SVG, readable without colours (each line has a dash pattern).
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "report.h"

namespace policy_lab {
namespace {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct Chart {
  std::string title, x_label, y_label;
  bool log_x = false;
  bool dots = false;
  double y_max = 0;  ///< 0: the largest value
  std::vector<Line> lines;
};

constexpr double kWidth = 720, kHeight = 330;
constexpr double kLeft = 64, kRight = 150, kTop = 12, kBottom = 48;
constexpr std::array<const char*, 10> kColors = {"#1f5fa8", "#c2571a", "#2b8a3e", "#8a2be2",
                                                 "#b02a4b", "#00838f", "#8d6e00", "#5d4037",
                                                 "#455a64", "#d81b60"};
constexpr std::array<const char*, 5> kDashes = {"", "7 3", "2 3", "9 3 2 3", "4 4"};

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// Maps values to pixels and names the ticks of one axis.
struct Axis {
  double low = 0, high = 1;
  bool log = false;

  [[nodiscard]] double Share(double value) const {
    if (!log) return (value - low) / (high - low);
    return (std::log(std::max(value, low)) - std::log(low)) / (std::log(high) - std::log(low));
  }
  [[nodiscard]] std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (log) {
      for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high;
           decade *= 10) {
        for (const double step : {1.0, 2.0, 5.0}) {
          if (step * decade >= low * .999 && step * decade <= high * 1.001) {
            ticks.push_back(step * decade);
          }
        }
      }
      return ticks;
    }
    const double raw = (high - low) / 5;
    const double unit = std::pow(10, std::floor(std::log10(raw)));
    const double step = raw / unit < 1.5 ? unit : raw / unit < 3.5 ? 2 * unit : 5 * unit;
    for (double t = std::ceil(low / step) * step; t <= high + step * 1e-6; t += step) {
      ticks.push_back(std::abs(t) < step * 1e-9 ? 0 : t);
    }
    return ticks;
  }
};

std::string TickText(double value) {
  if (std::abs(value) >= 1e6) return Format("%gM", value / 1e6);
  if (std::abs(value) >= 1e4) return Format("%gk", value / 1e3);
  return Format("%g", value);
}

std::pair<Axis, Axis> AxesOf(const Chart& chart) {
  Axis x{.low = HUGE_VAL, .high = -HUGE_VAL, .log = chart.log_x};
  Axis y{.low = 0, .high = chart.y_max};
  for (const Line& line : chart.lines) {
    for (const auto& [px, py] : line.points) {
      x.low = std::min(x.low, px);
      x.high = std::max(x.high, px);
      if (chart.y_max == 0) y.high = std::max(y.high, py);
    }
  }
  if (!(x.low < x.high)) {
    x.low = std::isfinite(x.low) ? x.low * .9 : 0;
    x.high = std::max(x.low + 1, x.low / .9 * 1.1);
  }
  if (!(y.high > 0)) y.high = 1;
  return {x, y};
}

std::string Svg(const Chart& chart) {
  const auto [x, y] = AxesOf(chart);
  const double plot_width = kWidth - kLeft - kRight, plot_height = kHeight - kTop - kBottom;
  const auto px = [&, x_axis = x](double v) { return kLeft + x_axis.Share(v) * plot_width; };
  const auto py = [&, y_axis = y](double v) { return kTop + (1 - y_axis.Share(v)) * plot_height; };
  std::string out = Format("<h2>%s</h2>\n", Escaped(chart.title).c_str());
  out += Format("<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n", kWidth, kHeight,
                Escaped(chart.title).c_str());
  std::vector<double> x_ticks = x.Ticks();
  if (chart.dots && !chart.lines.empty()) {  // the capacities themselves
    x_ticks.clear();
    for (const auto& point : chart.lines[0].points) x_ticks.push_back(point.first);
  }
  for (const double tick : x_ticks) {
    out += Format("<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%.1f\"/>", px(tick),
                  px(tick), kTop, kTop + plot_height);
    out += Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", px(tick),
                  kTop + plot_height + 16, TickText(tick).c_str());
  }
  for (const double tick : y.Ticks()) {
    out += Format("<line class=\"grid\" x1=\"%g\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", kLeft,
                  kLeft + plot_width, py(tick), py(tick));
    out += Format("<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", kLeft - 6,
                  py(tick) + 4, TickText(tick).c_str());
  }
  out += Format("<text class=\"label\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
                kLeft + plot_width / 2, kHeight - 10, Escaped(chart.x_label).c_str());
  out += Format(
      "<text class=\"label\" transform=\"translate(15 %.1f) rotate(-90)\" "
      "text-anchor=\"middle\">%s</text>\n",
      kTop + plot_height / 2, Escaped(chart.y_label).c_str());
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const char* color = kColors[i % kColors.size()];
    const char* dash = kDashes[i % kDashes.size()];
    out += Format("<polyline stroke=\"%s\" stroke-dasharray=\"%s\" points=\"", color, dash);
    for (const auto& [vx, vy] : chart.lines[i].points) {
      out += Format("%.1f,%.1f ", px(vx), py(vy));
    }
    out += "\"/>\n";
    for (const auto& [vx, vy] : chart.lines[i].points) {
      if (!chart.dots) break;
      out += Format("<circle fill=\"%s\" r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>", color, px(vx), py(vy));
    }
    const double at = kTop + 10 + 18 * static_cast<double>(i);
    out += Format(
        "<line stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" x1=\"%g\" x2=\"%g\" "
        "y1=\"%g\" y2=\"%g\"/><text x=\"%g\" y=\"%g\">%s</text>\n",
        color, dash, kWidth - kRight + 12, kWidth - kRight + 40, at, at, kWidth - kRight + 46,
        at + 4, Escaped(chart.lines[i].name).c_str());
  }
  return out + "</svg>\n";
}

template <typename Take>
void ForEachCapacity(const Results& results, Take take) {
  std::vector<const ResultRow*> rows;
  for (std::size_t i = 0; i < results.rows.size(); ++i) {
    rows.push_back(&results.rows[i]);
    const bool last = i + 1 == results.rows.size() ||
                      results.rows[i + 1].capacity_blocks != results.rows[i].capacity_blocks;
    if (!last) continue;
    take(rows);
    rows.clear();
  }
}

Chart OverCapacity(const Results& results, const char* title, const char* y_label,
                   const std::function<double(const ResultRow&)>& value) {
  Chart chart{.title = title, .x_label = "HBM capacity, blocks", .y_label = y_label};
  chart.log_x = true;
  chart.dots = true;
  for (const ResultRow& row : results.rows) {
    auto line = std::find_if(chart.lines.begin(), chart.lines.end(),
                             [&](const Line& l) { return l.name == row.policy; });
    if (line == chart.lines.end()) {
      chart.lines.push_back({row.policy, {}});
      line = chart.lines.end() - 1;
    }
    line->points.emplace_back(row.capacity_blocks, value(row));
  }
  for (Line& line : chart.lines) std::sort(line.points.begin(), line.points.end());
  return chart;
}

Chart TtftCdf(const std::vector<const ResultRow*>& rows) {
  Chart chart{.title = Format("TTFT at %.0f blocks, first seed", rows[0]->capacity_blocks),
              .x_label = "seconds to the first token",
              .y_label = "share of requests"};
  chart.log_x = true;
  chart.y_max = 1;
  for (const ResultRow* row : rows) {
    Line line{row->policy, {}};
    constexpr std::size_t kPoints = 160;
    for (std::size_t i = 0; i <= kPoints && !row->ttft_s.empty(); ++i) {
      const std::size_t at = i * (row->ttft_s.size() - 1) / kPoints;
      const double share = static_cast<double>(at + 1) / static_cast<double>(row->ttft_s.size());
      line.points.emplace_back(std::max(1e-3, static_cast<double>(row->ttft_s[at])), share);
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

Chart Occupancy(const std::vector<const ResultRow*>& rows) {
  Chart chart{.title = Format("Occupancy at %.0f blocks, first seed", rows[0]->capacity_blocks),
              .x_label = "hours since the first arrival",
              .y_label = "blocks in HBM"};
  for (const ResultRow* row : rows) {
    Line used{row->policy, {}};
    for (const OccupancySample& s : row->occupancy) {
      used.points.emplace_back(s.at_s / 3600, s.held + s.cached);
    }
    chart.lines.push_back(std::move(used));
  }
  Line held{"held (" + rows[0]->policy + ")", {}};
  for (const OccupancySample& s : rows[0]->occupancy) {
    held.points.emplace_back(s.at_s / 3600, s.held);
  }
  chart.lines.push_back(std::move(held));
  return chart;
}

std::string Head(const Settings& settings, const Results& results) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>policy_lab</title>\n<style>\n"
      "body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#fff;max-width:760px;"
      "margin:2em auto;padding:0 1em}\n"
      "h1{font-size:1.5em;margin-bottom:.2em}h2{font-size:1.05em;margin:1.8em 0 .3em}\n"
      "pre{background:#f6f6f4;padding:.8em;overflow-x:auto;font-size:12px;line-height:1.35}\n"
      "svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#333}\n"
      "svg .label{fill:#000}svg .grid{stroke:#e4e4e0}\n"
      "svg polyline{fill:none;stroke-width:2;stroke-linejoin:round}\n"
      "</style></head><body>\n<h1>policy_lab</h1>\n";
  return out + "<pre>" + Escaped(Table(settings, results)) + "</pre>\n";
}

}  // namespace

std::string Html(const Settings& settings, const Results& results) {
  std::string out = Head(settings, results);
  Chart hits = OverCapacity(results, "Hit ratio over capacity", "hit ratio",
                            [](const ResultRow& row) { return row.Of("hit_ratio").mean; });
  hits.y_max = 1;
  out += Svg(hits);
  out += Svg(OverCapacity(results, "Recompute cost over capacity", "cost, first blocks",
                          [](const ResultRow& row) { return row.Of("recompute_cost").mean; }));
  ForEachCapacity(results, [&](const auto& rows) { out += Svg(TtftCdf(rows)); });
  ForEachCapacity(results, [&](const auto& rows) { out += Svg(Occupancy(rows)); });
  return out + "</body></html>\n";
}

}  // namespace policy_lab
