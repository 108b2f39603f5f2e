// Repeats a logged run: the calls are made again, and what they ask of engine, clock and namespace
// map is answered from the log, in order. The first record that this run would not have written is
// where the two part.
#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "src/manager/calls.h"
#include "src/str_cat.h"
#include "tidepool/input_log.h"

namespace tidepool::internal {
namespace {

/// The log while it is used up.
class Script {
 public:
  explicit Script(std::vector<Record> records) : records_(std::move(records)) {}

  /// The next record, or null at the end.
  [[nodiscard]] const Record* Peek() const noexcept {
    return next_ < records_.size() ? &records_[next_] : nullptr;
  }
  void Skip() noexcept { ++next_; }

  /// Reads the next record if it is one of `kind`; otherwise the run goes another way, or the log
  /// is at its end, and `values` keep what they have.
  template <typename... T>
  bool Take(RecordKind kind, T&... values) {
    const Record* const record = Peek();
    ran_out_ |= record == nullptr;
    if (ran_out_ || diverged()) return false;
    if (record->kind != kind) {
      Diverge(StrCat("the run comes to ", ToString(kind), ", the log to ", ToString(record->kind)));
      return false;
    }
    Decoder decode(record->body);
    decode(values...);
    if (!decode.Finished()) return Diverge(StrCat(ToString(kind), ": wrong size"));
    Skip();
    return true;
  }

  /// At the next record, or at the last one taken; only the first time counts. Returns false.
  bool Diverge(const std::string& what) { return DivergeAt(next_, what); }
  bool DivergeAtLast(const std::string& what) { return DivergeAt(next_ - 1, what); }
  [[nodiscard]] bool diverged() const noexcept { return !report_.divergence.empty(); }
  /// The log ended within a call.
  [[nodiscard]] bool ran_out() const noexcept { return ran_out_; }
  [[nodiscard]] ReplayReport& report() noexcept { return report_; }

 private:
  bool DivergeAt(std::size_t record, const std::string& what) {
    if (diverged() || ran_out_) return false;
    report_.record = record;
    report_.offset = records_[std::min(record, records_.size() - 1)].offset;
    report_.divergence = StrCat("record ", record, " at offset ", report_.offset, ": ", what);
    return false;
  }

  std::vector<Record> records_;
  std::size_t next_ = 0;
  bool ran_out_ = false;
  ReplayReport report_;
};

/// Answers as the log says, and moves nothing.
class ScriptedEngine final : public TransferEngine {
 public:
  explicit ScriptedEngine(Script* script) : script_(script) {}

  Status Attach(std::span<const TierBinding>, Observer*) override { return {}; }
  bool Supports(TierIndex, TierIndex) const noexcept override { return true; }
  std::size_t Submit(std::span<const CopyRequest> copies) noexcept override {
    std::uint64_t offered = copies.size();
    std::uint64_t accepted = 0;
    if (script_->Take(RecordKind::kSubmitted, offered, accepted) && offered != copies.size()) {
      script_->DivergeAtLast(
          StrCat("the run offers the engine ", copies.size(), " copies, the log ", offered));
    }
    return accepted;
  }
  void Poll(std::vector<Completion>& completions) noexcept override {
    std::vector<Completion> taken;
    if (script_->Take(RecordKind::kCompleted, taken)) AppendTo(completions, taken);
  }
  bool Wait(Duration) noexcept override { return false; }
  void Cancel(TransferId) noexcept override {}
  void TakeStored(TierIndex tier, StoredBlocks& stored) override {
    TierIndex logged = tier;
    if (script_->Take(RecordKind::kStored, logged, stored) && logged != tier) {
      script_->DivergeAtLast(StrCat("the run asks tier ", tier, ", the log ", logged));
    }
  }
  TransferEstimate EstimateCost(TierIndex from, TierIndex to,
                                std::uint64_t) const noexcept override {
    TransferEstimate estimate;
    bool measured = false;
    Answer(RecordKind::kEstimate, from, to, estimate.time, estimate.margin, measured);
    estimate.method = measured ? "measured" : "prior";
    return estimate;
  }
  double BytesPerSecond(TierIndex from, TierIndex to) const noexcept override {
    double rate = 0;
    Answer(RecordKind::kBandwidth, from, to, rate);
    return rate;
  }
  std::uint64_t QueuedBytes(TierIndex from, TierIndex to) const noexcept override {
    std::uint64_t bytes = 0;
    Answer(RecordKind::kQueued, from, to, bytes);
    return bytes;
  }
  std::string Describe() const override { return "input log"; }

 private:
  static void AppendTo(std::vector<Completion>& out, const std::vector<Completion>& more) {
    out.insert(out.end(), more.begin(), more.end());
  }
  template <typename... T>
  void Answer(RecordKind kind, TierIndex from, TierIndex to, T&... values) const {
    TierIndex logged_from = from;
    TierIndex logged_to = to;
    if (script_->Take(kind, logged_from, logged_to, values...) &&
        (logged_from != from || logged_to != to)) {
      script_->DivergeAtLast(StrCat("the run asks for the link ", from, " to ", to, ", the log ",
                                    logged_from, " to ", logged_to));
    }
  }

  Script* script_;
};

class ScriptedClock final : public Clock {
 public:
  void Set(TimePoint now) noexcept { now_ = now; }
  [[nodiscard]] TimePoint Now() const noexcept override { return now_; }

 private:
  TimePoint now_{};
};

// --- Arguments: read from the log, then handed to the call. ---

template <typename A>
struct Argument {
  std::remove_cvref_t<A> value{};
  void Read(Decoder& decode) { decode(value); }
  bool Find(ManagerCore&) { return true; }
  const std::remove_cvref_t<A>& Get() { return value; }
};

template <>
struct Argument<SequenceData&> {
  SequenceRef ref;
  SequenceData* seq = nullptr;
  void Read(Decoder& decode) { decode(ref); }
  bool Find(ManagerCore& core) {
    seq = core.Find(ref.index, ref.generation);
    return seq != nullptr;
  }
  SequenceData& Get() { return *seq; }
};

/// A place for an answer.
template <typename T>
struct Place {
  T value;
  void Read(Decoder&) {}
  bool Find(ManagerCore&) { return true; }
  T& Get() { return value; }
};
template <>
struct Argument<StepWork&> : Place<StepWork> {};
template <>
struct Argument<std::vector<BlockId>&> : Place<std::vector<BlockId>> {};

template <typename R, typename... A>
std::tuple<Argument<A>...> ArgumentsOf(R (ManagerCore::*)(A...));
template <typename R, typename... A>
std::tuple<Argument<A>...> ArgumentsOf(R (ManagerCore::*)(A...) const);

class Replay {
 public:
  explicit Replay(std::vector<Record> records) : script_(std::move(records)) {}
  StatusOr<ReplayReport> Run(ManagerOptions options);

 private:
  using Repeater = bool (Replay::*)(ManagerCore&, Decoder&);

  Status ReadHeader(std::vector<std::string>& fingerprint);
  void TakePartsOf(ManagerOptions& options, const std::vector<std::string>& fingerprint);
  Status RepeatCall(ManagerCore& core, const Record& record);
  void ReleaseHandles(ManagerCore& core);
  void CompareDecisions(ManagerCore& core, std::string_view call);
  template <auto kMethod>
  bool Repeat(ManagerCore& core, Decoder& decode);

  // Handles are kept while their sequences live: dropping one would finish it.
  void Keep(Admission&& admission) { Keep(std::move(admission.sequence)); }
  void Keep(ForkResult&& fork) { Keep(std::move(fork.sequence)); }
  void Keep(Sequence&& handle);
  template <typename T>
  void Keep(T&&) {}

  template <typename... C>
  static constexpr auto Repeaters(const std::tuple<C...>&) {
    return std::array<Repeater, sizeof...(C)>{RepeaterOf(C{})...};
  }
  template <auto kMethod>
  static constexpr Repeater RepeaterOf(LoggedCall<kMethod>) {
    return &Replay::Repeat<kMethod>;
  }
  static std::string_view NameOf(std::uint8_t call) {
    return std::apply([&](const auto&... c) { return std::array{c.name...}[call]; }, kCalls);
  }

  Script script_;
  ScriptedClock clock_;
  std::uint64_t logged_hash_ = 0;
  std::vector<Sequence> handles_;
};

Status WrongSize(const Record& record) {
  return absl::DataLossError(
      StrCat("input log: offset ", record.offset, ": ", ToString(record.kind), ": wrong contents"));
}

Status Replay::ReadHeader(std::vector<std::string>& fingerprint) {
  const Record* const header = script_.Peek();
  if (header == nullptr) return absl::DataLossError("input log: offset 8: no header");
  if (header->kind != RecordKind::kHeader) return WrongSize(*header);
  Decoder decode(header->body);
  TimePoint now;
  decode(now, fingerprint);
  if (!decode.Finished()) return WrongSize(*header);
  clock_.Set(now);
  script_.Skip();
  return absl::OkStatus();
}

// Engine, clock and map are the log's; memory is there only where the manager writes it itself.
void Replay::TakePartsOf(ManagerOptions& options, const std::vector<std::string>& fingerprint) {
  options.engine = std::make_unique<ScriptedEngine>(&script_);
  options.clock = &clock_;
  options.input_log = nullptr;
  options.namespace_map = nullptr;
  if (std::ranges::find(fingerprint, "namespace_map: given") != fingerprint.end()) {
    options.namespace_map = [this](NamespaceId ns) {
      NamespaceId asked = ns;
      NamespaceId mapped = ns;
      if (script_.Take(RecordKind::kMapped, asked, mapped) && asked != ns) {
        script_.DivergeAtLast("the run maps another namespace");
      }
      return mapped;
    };
  }
  const StatusOr<std::uint64_t> layer =
      BlockLayerBytes(options.layout, 0, StorageFormat::kIdentity);
  if (!layer.ok()) return;  // Create says so
  for (TierSpec& tier : options.tiers) {
    if (tier.slots == 0 && tier.bytes == 0) tier.slots = tier.arena.slots;
    tier.arena = {};
    const bool touched = tier.kind == TierKind::kHbm && tier.device_work == DeviceWork::kInline;
    if (touched || tier.kind == TierKind::kNvme) continue;
    tier.arena = UnreachableArena(kNone, options.layout.groups[0].layers, *layer);
  }
}

StatusOr<ReplayReport> Replay::Run(ManagerOptions options) {
  std::vector<std::string> fingerprint;
  if (Status s = ManagerCore::Validate(options); !s.ok()) return s;
  if (Status s = ReadHeader(fingerprint); !s.ok()) return s;
  TakePartsOf(options, fingerprint);
  ManagerCore core(std::move(options));
  if (Status s = core.Start(); !s.ok()) return s;
  const std::vector<std::string> here = core.Fingerprint();
  const auto [was, is] = std::ranges::mismatch(fingerprint, here);
  if (was != fingerprint.end() || is != here.end()) {
    return absl::FailedPreconditionError(
        StrCat("input log: made with \"", was != fingerprint.end() ? *was : "",
               "\", replayed with \"", is != here.end() ? *is : "", "\""));
  }
  ReplayReport& report = script_.report();
  while (!script_.diverged() && !report.complete) {
    const Record* const record = script_.Peek();
    if (record == nullptr) break;
    if (record->kind == RecordKind::kEnd) {
      std::uint64_t hash = 0;
      report.complete = script_.Take(RecordKind::kEnd, hash);
      if (hash != core.decision_hash()) script_.DivergeAtLast("the runs end differently");
    } else if (record->kind != RecordKind::kCall) {
      script_.Diverge(StrCat("the run needs nothing more, the log has ", ToString(record->kind)));
    } else if (Status s = RepeatCall(core, *record); !s.ok()) {
      return s;
    }
  }
  report.agrees = !script_.diverged();
  report.decision_hash = core.decision_hash();
  return report;
}

Status Replay::RepeatCall(ManagerCore& core, const Record& record) {
  static constexpr auto kRepeaters = Repeaters(kCalls);
  Decoder decode(record.body);
  std::uint8_t call = 0;
  TimePoint now;
  decode(call, now);
  if (call >= kRepeaters.size()) return WrongSize(record);
  clock_.Set(now);
  script_.Skip();
  ReleaseHandles(core);
  if (!(this->*kRepeaters[call])(core, decode)) return WrongSize(record);
  ++script_.report().calls;
  if (call == CallNumber<&ManagerCore::Poll>()) ++script_.report().polls;
  CompareDecisions(core, NameOf(call));
  return absl::OkStatus();
}

// Handles that other threads had destroyed by the time of the call that follows.
void Replay::ReleaseHandles(ManagerCore& core) {
  const Record* const record = script_.Peek();
  if (record == nullptr || record->kind != RecordKind::kReleased) return;
  std::vector<SequenceRef> released;
  if (!script_.Take(RecordKind::kReleased, released)) return;
  Control& control = *core.control();
  const std::lock_guard lock(control.mutex);
  control.released = std::move(released);
  control.has_released.store(true);
}

void Replay::CompareDecisions(ManagerCore& core, std::string_view call) {
  const Record* const record = script_.Peek();
  if (script_.ran_out() || record == nullptr || script_.diverged()) return;
  if (record->kind == RecordKind::kDecisions) {
    const std::uint64_t hash = core.decision_hash();
    Decoder(record->body)(logged_hash_);
    if (logged_hash_ == hash) return script_.Skip();
    std::array<char, 64> text;
    std::snprintf(text.data(), text.size(), "decision hash %016llx, in the log %016llx",
                  static_cast<unsigned long long>(hash),
                  static_cast<unsigned long long>(logged_hash_));
    script_.Diverge(StrCat(call, " decided otherwise: ", text.data()));
  } else if (core.decision_hash() != logged_hash_) {
    script_.Diverge(StrCat("right before, ", call, " decided something, in the log nothing"));
  }
}

template <auto kMethod>
bool Replay::Repeat(ManagerCore& core, Decoder& decode) {
  decltype(ArgumentsOf(kMethod)) arguments;
  std::apply([&](auto&... a) { (a.Read(decode), ...); }, arguments);
  if (!decode.Finished()) return false;
  if (!std::apply([&](auto&... a) { return (a.Find(core) && ...); }, arguments)) {
    script_.DivergeAtLast("a call on a sequence that does not live here");
    return true;
  }
  const auto call = [&](auto&... a) -> decltype(auto) { return Call<kMethod>(core, a.Get()...); };
  if constexpr (std::is_void_v<decltype(std::apply(call, arguments))>) {
    std::apply(call, arguments);
  } else {
    Keep(std::apply(call, arguments));
  }
  return true;
}

void Replay::Keep(Sequence&& handle) {
  if (!handle.alive()) return;
  if (handles_.size() == handles_.capacity()) {
    std::erase_if(handles_, [](const Sequence& kept) { return !kept.alive(); });
  }
  handles_.push_back(std::move(handle));
}

}  // namespace
}  // namespace tidepool::internal

namespace tidepool {

StatusOr<ReplayReport> ReplayInputLog(std::span<const std::byte> log, ManagerOptions options) {
  StatusOr<std::vector<internal::Record>> records = internal::ReadRecords(log);
  if (!records.ok()) return records.status();
  return internal::Replay(*std::move(records)).Run(std::move(options));
}

}  // namespace tidepool
