#include "tidepool/session_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "src/str_cat.h"
#include "src/time_math.h"

namespace tidepool {

using internal::AfterSeconds;
using internal::SecondsBetween;
using internal::StrCat;

namespace {

constexpr std::size_t kClasses = 3;  // other, tool, user
constexpr double kToolReturns = 200;
constexpr std::size_t kMaxTools = 256;
constexpr double kNow = 1e9;               // index of a session that is back already
constexpr std::uint32_t kSweepEvery = 64;  // events between two looks at all waiting sessions
constexpr double kDecayReturns = 20'000;
constexpr std::string_view kHeader = "tidepool-session-model 1";

std::size_t ClassOf(WaitClass wait) noexcept {
  if (wait == WaitClass::kTool) return 1;
  return wait == WaitClass::kUser ? 2 : 0;
}

// A GapTable and the curve read from it, which is renewed when the counts have changed enough.
struct Row {
  GapTable table;
  mutable ReturnCurve curve;
  mutable double median = 0;
  mutable std::uint32_t changes = 0;
  mutable bool fresh = false;

  void Changed() noexcept {
    if (++changes > 16 + table.returns() / 32) fresh = false;
  }
};

struct Record {
  SessionSignals last;  // as reported
  bool known = false;
  std::uint32_t turn = 0;
  std::uint16_t counted = 0;  // bins of the running wait that are counted as survived
  float gap_s = 0;            // EMA
  TimePoint hint_at{};
  TimePoint last_event{};
  std::array<TimeScale, kClasses> scales;
  [[nodiscard]] bool waiting() const noexcept {
    return last.state != SessionState::kRunning && last.state != SessionState::kCompleted &&
           last.state != SessionState::kWaitingCapacity;
  }
};

bool SameReport(const SessionSignals& a, const SessionSignals& b) noexcept {
  const bool same_sd =
      a.expected_return_log_sd == b.expected_return_log_sd ||
      (std::isnan(a.expected_return_log_sd) && std::isnan(b.expected_return_log_sd));
  return a.state == b.state && a.turn == b.turn && a.idle_since == b.idle_since &&
         a.wait_class == b.wait_class && a.tool == b.tool &&
         a.expected_return == b.expected_return && same_sd && a.priority == b.priority &&
         a.critical_path == b.critical_path;
}

double LogNormalSurvival(double x, double median, double sd) noexcept {
  if (!(x > 0)) return 1;
  return 0.5 * std::erfc(std::log(x / median) / (sd * 1.4142135623730951));
}

}  // namespace

struct SessionModel::Impl {
  explicit Impl(const Options& o) : options(o) {}

  struct WaitRows {
    std::size_t wait_class;
    bool first;
    std::uint32_t tool;
  };

  // --- Tables. ---
  static const Row& Fresh(const Row& row, const GapTable::Hazards& prior) {
    if (!row.fresh) Renew(row, prior);
    return row;
  }
  static void Renew(const Row& row, const GapTable::Hazards& prior) {
    row.curve = ReturnCurve(row.table.HazardsGiven(prior));
    const double never = row.curve.Survival(gap_bins::Edge(gap_bins::kCount - 1));
    std::size_t bin = 1;
    const double half = 0.5 * (1 + never);  // of those that return
    while (bin + 1 < gap_bins::kCount && row.curve.Survival(gap_bins::Edge(bin)) > half) ++bin;
    row.median = gap_bins::Edge(bin);
    row.changes = 0;
    row.fresh = true;
  }
  GapTable::Hazards ClassHazards(std::size_t c) const {
    if (c == 1) return classes[1].table.HazardsGiven(GapTable::ToolPrior());
    if (c == 2) return classes[2].table.HazardsGiven(GapTable::UserPrior());
    return classes[0].table.HazardsGiven(pooled.HazardsGiven(GapTable::AnyPrior()));
  }
  const Row& ClassRow(std::size_t c) const {
    const Row& row = classes[c];
    if (row.fresh) return row;
    if (c == 1) return Fresh(row, GapTable::ToolPrior());
    if (c == 2) return Fresh(row, GapTable::UserPrior());
    return Fresh(row, pooled.HazardsGiven(GapTable::AnyPrior()));
  }
  const Row& RowOf(const WaitRows& wait) const {
    if (wait.tool != 0 && wait.wait_class == 1) {
      const auto it = tools.find(wait.tool);
      if (it != tools.end() && it->second.table.returns() >= kToolReturns) {
        return it->second.fresh ? it->second : Fresh(it->second, ClassHazards(1));
      }
    }
    if (!options.first_turns) return ClassRow(wait.wait_class);
    const Row& row = turns[wait.wait_class][wait.first ? 0 : 1];
    return row.fresh ? row : Fresh(row, ClassHazards(wait.wait_class));
  }
  WaitRows RowsOf(const Record& s) const noexcept {
    return {ClassOf(s.last.wait_class), s.turn <= 1, s.last.tool};
  }
  template <typename Visit>
  void ForEachTable(const WaitRows& wait, Visit visit) {
    visit(pooled);
    const auto row = [&](Row& r) {
      visit(r.table);
      r.Changed();
    };
    row(classes[wait.wait_class]);
    row(turns[wait.wait_class][wait.first ? 0 : 1]);
    if (wait.tool == 0 || wait.wait_class != 1) return;
    auto it = tools.find(wait.tool);
    if (it == tools.end()) {
      if (tools.size() >= kMaxTools) return;
      it = tools.try_emplace(wait.tool).first;
    }
    row(it->second);
  }

  double ThetaOf(const Record& s) const noexcept {
    if (!options.time_scales) return 1;
    return s.scales[ClassOf(s.last.wait_class)].theta();
  }

  // --- Events. ---
  void CountSurvived(Record& s, TimePoint now) {
    const double age = SecondsBetween(s.last.idle_since, now) / ThetaOf(s);
    const std::size_t bin = gap_bins::Of(age);
    if (bin <= s.counted) return;
    ForEachTable(RowsOf(s), [&](GapTable& t) { t.AddSurvived(s.counted, bin); });
    s.counted = static_cast<std::uint16_t>(bin);
  }
  void EndWait(Record& s, TimePoint now) {
    const double gap = SecondsBetween(s.last.idle_since, now);
    if (!(gap >= 0)) {
      ++ignored;
      return;
    }
    CountSurvived(s, now);
    const std::size_t bin = std::max<std::size_t>(gap_bins::Of(gap / ThetaOf(s)), s.counted);
    ForEachTable(RowsOf(s), [&](GapTable& t) { t.AddReturn(bin); });
    const std::size_t c = ClassOf(s.last.wait_class);
    s.scales[c].Add(gap, ClassRow(c).median);
    s.gap_s =
        s.gap_s == 0 ? static_cast<float>(gap) : static_cast<float>(0.3 * gap + 0.7 * s.gap_s);
    if (++returns_since_decay > kDecayReturns) DecayAll();
  }
  void DecayAll() {
    returns_since_decay = 0;
    ForEachNamed([](const std::string&, GapTable& t) { t.Decay(); });
    hazard.Decay();
    MarkStale();
  }
  void MarkStale() {
    for (Row& r : classes) r.fresh = false;
    for (auto& by_turn : turns) {
      for (Row& r : by_turn) r.fresh = false;
    }
    for (auto& [tool, row] : tools) row.fresh = false;
  }
  // In the order of the records, not of a hash table: the same events teach the same.
  void Sweep(TimePoint now) {
    for (std::uint32_t i = 0; i < records.size(); ++i) {
      Record& s = records[i];
      if (!s.known) continue;
      if (s.waiting()) CountSurvived(s, now);
      if (!GivenUp(s, now)) continue;
      if (s.waiting()) hazard.AddEnded(s.turn);
      Erase(i);
    }
  }
  void Erase(std::uint32_t i) {
    index.erase(records[i].last.session.value());
    records[i] = Record{};
    free.push_back(i);
  }
  [[nodiscard]] const Record* Find(SessionId session) const noexcept {
    const auto it = index.find(session.value());
    return it == index.end() ? nullptr : &records[it->second];
  }
  Record& Make(SessionId session) {
    const auto [it, fresh] = index.try_emplace(session.value(), 0);
    if (!fresh) return records[it->second];
    if (free.empty()) {
      it->second = static_cast<std::uint32_t>(records.size());
      records.emplace_back();
    } else {
      it->second = free.back();
      free.pop_back();
    }
    return records[it->second];
  }
  bool GivenUp(const Record& s, TimePoint now) const {
    const double age = SecondsBetween(s.waiting() ? s.last.idle_since : s.last_event, now);
    if (age < internal::ToSeconds(options.give_up)) return false;
    if (!s.waiting()) return age > 24 * internal::ToSeconds(options.give_up);
    const ReturnCurve& curve = ClassRow(ClassOf(s.last.wait_class)).curve;
    const double never = curve.Survival(gap_bins::Edge(gap_bins::kCount - 1));
    return curve.Survival(age / 4) <= never + 0.01 * (1 - never);
  }
  void Report(const SessionSignals& session, TimePoint now);

  // --- Outlooks. ---
  Outlook Of(const WaitRows& wait, double theta, TimePoint since, TimePoint now,
             double horizon_s) const {
    const ReturnCurve& curve = RowOf(wait).curve;
    const double age = std::max(SecondsBetween(since, now), 0.0);
    const std::size_t bin = gap_bins::Of(age / theta);
    Outlook outlook;
    outlook.value = horizon_s > 0 ? curve.Within(gap_bins::Edge(bin), horizon_s / theta)
                                  : curve.Index(bin) / theta;
    const double end = gap_bins::Edge(bin + 1);
    outlook.until = std::isinf(end) ? kNever : AfterSeconds(since, theta * end * (1 + 1e-9) + 1e-6);
    return outlook;
  }
  Outlook Hinted(const Record& s, TimePoint now, double horizon_s) const;
  Outlook Ask(SessionId session, TimePoint now, double horizon_s) const {
    const Record* const known = Find(session);
    if (known == nullptr) return Of({0, true, 0}, 1, now, now, horizon_s);
    const Record& s = *known;
    if (s.last.state == SessionState::kCompleted) return {};
    if (s.last.state == SessionState::kWaitingCapacity) return {horizon_s > 0 ? 1 : kNow};
    if (!s.waiting()) return Of({0, false, 0}, 1, now, now, horizon_s);
    if (s.last.expected_return != kNever) return Hinted(s, now, horizon_s);
    return Of(RowsOf(s), ThetaOf(s), s.last.idle_since, now, horizon_s);
  }

  // --- Saved text. ---
  template <typename Visit>
  void ForEachNamed(Visit visit) {
    static constexpr std::string_view kNames[] = {"other", "tool", "user"};
    visit(std::string("gaps.all"), pooled);
    for (std::size_t c = 0; c < kClasses; ++c) {
      const std::string name = StrCat("gaps.", kNames[c]);
      visit(name, classes[c].table);
      visit(StrCat(name, ".first"), turns[c][0].table);
      visit(StrCat(name, ".later"), turns[c][1].table);
    }
    std::vector<std::uint32_t> ids;
    for (const auto& [tool, row] : tools) ids.push_back(tool);
    std::sort(ids.begin(), ids.end());
    for (const std::uint32_t tool : ids) visit(StrCat("tool.", tool), tools.at(tool).table);
  }
  Status Parse(std::string_view saved);
  Status ParseLine(std::size_t number, std::string_view line);
  bool MakeTool(std::string_view name);
  void Add(Impl& other);

  Options options;
  GapTable pooled;
  std::array<Row, kClasses> classes;
  std::array<std::array<Row, 2>, kClasses> turns;
  absl::flat_hash_map<std::uint32_t, Row> tools;
  TurnHazard hazard;
  std::vector<Record> records;
  std::vector<std::uint32_t> free;
  absl::flat_hash_map<std::uint64_t, std::uint32_t> index;  // of records, by session
  std::uint32_t events = 0;
  double returns_since_decay = 0;
  std::uint64_t ignored = 0;
};

void SessionModel::Impl::Report(const SessionSignals& session, TimePoint now) {
  const bool news =
      session.state != SessionState::kCompleted && session.state != SessionState::kWaitingCapacity;
  if (!news && Find(session.session) == nullptr) return;
  Record& s = Make(session.session);
  if (s.known && SameReport(s.last, session)) return;
  if (s.known && now < s.last_event) {
    ++ignored;
    return;
  }
  const bool was_waiting = s.known && s.waiting();
  const bool hint_changed =
      session.expected_return != s.last.expected_return || session.idle_since != s.last.idle_since;
  if (session.state == SessionState::kRunning) {
    if (was_waiting) EndWait(s, now);
    ++s.turn;
    hazard.AddReached(s.turn);
  } else if (session.state == SessionState::kCompleted) {
    if (was_waiting) CountSurvived(s, now);
    hazard.AddEnded(s.turn);
  } else if (session.state == SessionState::kWaitingCapacity) {
    if (was_waiting) EndWait(s, now);
  } else if (!was_waiting || session.idle_since != s.last.idle_since) {
    s.counted = 0;
  }
  if (hint_changed) s.hint_at = now;
  s.last = session;
  s.known = true;
  s.last_event = now;
  if (session.state == SessionState::kCompleted) Erase(index.at(session.session.value()));
  if (++events % kSweepEvery == 0) Sweep(now);
}

// Survival of the mixture, given none of it yet: hint with its weight, learned curve with the rest.
Outlook SessionModel::Impl::Hinted(const Record& s, TimePoint now, double horizon_s) const {
  const double theta = ThetaOf(s);
  const ReturnCurve& curve = RowOf(RowsOf(s)).curve;
  const double given = s.last.expected_return_log_sd;
  const double sd = std::clamp(given >= 0 ? given : 0.7, 0.05, 8.0);
  const double hint_age = std::max(SecondsBetween(s.last.idle_since, s.hint_at), 0.0);
  const double median = std::max(SecondsBetween(s.hint_at, s.last.expected_return), 1e-3);
  const double since_hint = std::max(SecondsBetween(s.hint_at, now), 0.0);
  const double weight = 0.95 / (1 + sd * sd);
  const double at_hint = std::max(curve.Survival(hint_age / theta), 1e-300);
  const auto survival = [&](double u) {
    return weight * LogNormalSurvival(u, median, sd) +
           (1 - weight) * curve.Survival((hint_age + u) / theta) / at_hint;
  };
  const double alive = std::max(survival(since_hint), 1e-300);
  const double left = median - since_hint;
  Outlook outlook;
  if (horizon_s > 0) {
    outlook.value = 1 - survival(since_hint + horizon_s) / alive;
  } else {
    double area = 0;
    double before = 1;
    double at = 0;
    const double scale = std::max(left, 0.05 * median) / 8;
    for (double h = std::max(scale, 0.02); h < 20'000; h *= 1.25) {
      const double after = survival(since_hint + h) / alive;
      area += 0.5 * (before + after) * (h - at);
      before = after;
      at = h;
      outlook.value = std::max(outlook.value, (1 - after) / area);
    }
  }
  outlook.value = std::clamp(outlook.value, 0.0, kNow);
  outlook.until = AfterSeconds(now, std::max(0.1 * std::abs(left), 0.1));
  return outlook;
}

SessionModel::SessionModel() : SessionModel(Options{}) {}
SessionModel::SessionModel(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
SessionModel::~SessionModel() = default;

void SessionModel::OnSession(const SessionSignals& session, TimePoint now) noexcept {
  if (session.session.valid()) impl_->Report(session, now);
}

Outlook SessionModel::BestHorizon(SessionId session, TimePoint now) const noexcept {
  return impl_->Ask(session, now, 0);
}

Outlook SessionModel::Within(SessionId session, Duration horizon, TimePoint now) const noexcept {
  return impl_->Ask(session, now, std::max(internal::ToSeconds(horizon), 1e-9));
}

Outlook SessionModel::BestHorizonOfOthers(TimePoint since, TimePoint now) const noexcept {
  return impl_->Of({0, true, 0}, 1, since, now, 0);
}

double SessionModel::WithinFromStart(WaitClass wait, std::uint32_t tool,
                                     Duration horizon) const noexcept {
  const double h = internal::ToSeconds(horizon);
  return impl_->RowOf({ClassOf(wait), false, tool}).curve.Within(0, h);
}

double SessionModel::MedianWaitSeconds(WaitClass wait) const noexcept {
  return impl_->ClassRow(ClassOf(wait)).median;
}

double SessionModel::AverageGapSeconds(SessionId session) const noexcept {
  const Record* const s = impl_->Find(session);
  return s == nullptr ? 0 : s->gap_s;
}

std::uint32_t SessionModel::Turn(SessionId session) const noexcept {
  const Record* const s = impl_->Find(session);
  return s == nullptr ? 0 : s->turn;
}

double SessionModel::Theta(SessionId session) const noexcept {
  const Record* const s = impl_->Find(session);
  return s == nullptr ? 1 : impl_->ThetaOf(*s);
}

const TurnHazard& SessionModel::turn_hazard() const noexcept { return impl_->hazard; }
double SessionModel::returns() const noexcept { return impl_->pooled.returns(); }
std::uint64_t SessionModel::ignored() const noexcept { return impl_->ignored; }
std::uint32_t SessionModel::sessions() const noexcept {
  return static_cast<std::uint32_t>(impl_->index.size());
}

std::uint64_t SessionModel::MemoryBytes() const noexcept {
  return sizeof(Impl) + impl_->records.capacity() * sizeof(Record) + impl_->index.capacity() * 13 +
         impl_->tools.capacity() * (sizeof(Row) + 5);
}

// --- Saved text: a header, then a line per table: name, counts, counts. ---

std::string SessionModel::Save() const {
  std::string text(kHeader);
  text += '\n';
  const auto append = [&text](std::span<const double> counts) {
    char number[40];
    for (const double c : counts) {
      const int length = std::snprintf(number, sizeof number, " %.17g", c);
      text.append(number, static_cast<std::size_t>(length));
    }
  };
  text += "turns";
  append(impl_->hazard.reached());
  append(impl_->hazard.ended());
  text += '\n';
  impl_->ForEachNamed([&](const std::string& name, GapTable& table) {
    text += name;
    append(table.exposure());
    append(table.returned());
    text += '\n';
  });
  return text;
}

namespace {

Status LineError(std::size_t line, std::string_view what) {
  return absl::InvalidArgumentError(StrCat("session model, line ", line, ": ", what));
}

// Takes what is before the next `end` off `rest`.
std::string_view Next(std::string_view& rest, char end) {
  const std::size_t at = rest.find(end);
  const std::string_view piece = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return piece;
}

bool ParseCounts(std::string_view rest, std::vector<double>& counts) {
  while (!rest.empty()) {
    const std::string_view word = Next(rest, ' ');
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) return false;
    counts.push_back(value);
  }
  return true;
}

}  // namespace

bool SessionModel::Impl::MakeTool(std::string_view name) {
  if (name.substr(0, 5) != "tool." || tools.size() >= kMaxTools) return false;
  const std::string_view id = name.substr(5);
  std::uint32_t tool = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), tool);
  if (error != std::errc() || end != id.data() + id.size()) return false;
  tools.try_emplace(tool);
  return true;
}

Status SessionModel::Impl::ParseLine(std::size_t number, std::string_view line) {
  const std::string name(Next(line, ' '));
  std::vector<double> counts;
  if (!ParseCounts(line, counts)) return LineError(number, "a count is not a number");
  const auto first = std::span<const double>(counts).first(counts.size() / 2);
  const auto second = std::span<const double>(counts).subspan(counts.size() / 2);
  bool known = name == "turns";
  bool plausible = known && hazard.Restore(first, second);
  if (!known) {
    MakeTool(name);
    ForEachNamed([&](const std::string& each, GapTable& table) {
      if (each != name) return;
      known = true;
      plausible = table.Restore(first, second);
    });
  }
  if (!known) return LineError(number, StrCat("unknown table \"", name.substr(0, 60), "\""));
  if (!plausible) return LineError(number, StrCat("implausible counts for \"", name, "\""));
  return absl::OkStatus();
}

Status SessionModel::Impl::Parse(std::string_view saved) {
  const std::string_view header = Next(saved, '\n');
  if (header != kHeader) {
    return LineError(1, StrCat("not \"", kHeader, "\" but \"", header.substr(0, 60), "\""));
  }
  for (std::size_t number = 2; !saved.empty(); ++number) {
    if (Status s = ParseLine(number, Next(saved, '\n')); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void SessionModel::Impl::Add(Impl& other) {
  other.ForEachNamed([&](const std::string& name, GapTable& from) {
    MakeTool(name);
    ForEachNamed([&](const std::string& each, GapTable& table) {
      if (each == name) table.Merge(from);
    });
  });
  hazard.Merge(other.hazard);
  MarkStale();
}

Status SessionModel::Load(std::string_view saved) {
  Impl loaded(impl_->options);
  if (Status s = loaded.Parse(saved); !s.ok()) return s;
  impl_->pooled = loaded.pooled;
  impl_->classes = loaded.classes;
  impl_->turns = loaded.turns;
  impl_->tools = std::move(loaded.tools);
  impl_->hazard = loaded.hazard;
  return absl::OkStatus();
}

Status SessionModel::Merge(std::string_view saved) {
  Impl loaded(impl_->options);
  if (Status s = loaded.Parse(saved); !s.ok()) return s;
  impl_->Add(loaded);
  return absl::OkStatus();
}

}  // namespace tidepool
