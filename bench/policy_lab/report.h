// policy_lab/report.h - results as a table for a terminal, CSV, JSON and a self-contained page.
//
// Thread contract: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "experiment.h"
#include "settings.h"

namespace policy_lab {

/// The constants that the results depend on.
std::string Constants(const Settings& settings, const Results& results);
std::string Table(const Settings& settings, const Results& results);
std::string Csv(const Results& results);
std::string Json(const Settings& settings, const Results& results);
std::string Html(const Settings& settings, const Results& results);

std::string_view ToString(Mode mode);
/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...);
/// A JSON string with its quotes.
std::string Quoted(std::string_view text);
/// A JSON number; null for what JSON has no number for.
std::string Number(double value);

}  // namespace policy_lab
