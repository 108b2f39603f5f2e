#include "chrome_trace.h"

#include <algorithm>
#include <utility>

#include "format.h"

namespace agent_replay {
namespace {

using tidepool::Status;
using tidepool::TimePoint;
using tidepool::TransferEvent;
using tidepool::TransferResult;

constexpr int kCopies = 1;
constexpr int kSessions = 2;
constexpr int kMemory = 3;
constexpr std::uint64_t kRoomForTheEnd = 512;

double Microseconds(tidepool::Duration d) { return static_cast<double>(d.count()) / 1000; }
double Microseconds(TimePoint t) { return Microseconds(t.time_since_epoch()); }

const char* Name(TransferResult result) {
  switch (result) {
    case TransferResult::kOk:
      return "ok";
    case TransferResult::kFailed:
      return "failed";
    case TransferResult::kCancelled:
      return "cancelled";
    case TransferResult::kTimedOut:
      return "timed out";
    case TransferResult::kNoSpace:
      return "no space";
  }
  return "?";
}

/// Without what JSON would need escapes for.
std::string Plain(std::string_view text) {
  std::string plain(text.substr(0, 100));
  std::erase_if(
      plain, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
  return plain;
}

}  // namespace

Status ChromeTrace::Open(const std::string& path, std::uint64_t limit_bytes) {
  path_ = path;
  limit_ = limit_bytes;
  file_ = std::fopen(path.c_str(), "w");
  if (file_ == nullptr) return absl::InvalidArgumentError("cannot write " + path);
  std::fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", file_);
  constexpr std::pair<int, const char*> kProcesses[] = {
      {kCopies, "copies"}, {kSessions, "sessions"}, {kMemory, "memory"}};
  for (const auto& [process, name] : kProcesses) {
    Write(
        Format("{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": "
               "\"%s\"}}",
               process, name));
  }
  return absl::OkStatus();
}

Status ChromeTrace::Close() {
  if (file_ == nullptr) return absl::OkStatus();
  std::fprintf(file_,
               "{\"ph\": \"M\", \"name\": \"left_out\", \"pid\": %d, \"args\": {\"events\": %llu}}"
               "\n]}\n",
               kMemory, static_cast<unsigned long long>(left_out_));
  failed_ |= std::ferror(file_) != 0;
  failed_ |= std::fclose(std::exchange(file_, nullptr)) != 0;
  return failed_ ? absl::InvalidArgumentError("cannot write " + path_) : absl::OkStatus();
}

void ChromeTrace::Write(const std::string& event) {
  if (file_ == nullptr) return;
  if (written_ + event.size() + kRoomForTheEnd > limit_) {
    ++left_out_;
    return;
  }
  written_ += event.size() + 2;
  std::fputs(event.c_str(), file_);
  std::fputs(",\n", file_);
}

void ChromeTrace::NameTrack(int process, std::uint64_t track, const std::string& name) {
  if (!named_.emplace(process, track).second) return;
  Write(
      Format("{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %llu, \"args\": "
             "{\"name\": \"%s\"}}",
             process, static_cast<unsigned long long>(track), name.c_str()));
}

void ChromeTrace::Part(std::uint64_t session, std::string_view name, TimePoint begin,
                       TimePoint end) {
  NameTrack(kSessions, session, "session " + std::to_string(session));
  Write(
      Format("{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %d, \"tid\": %llu, \"ts\": %.3f, "
             "\"dur\": %.3f}",
             Plain(name).c_str(), kSessions, static_cast<unsigned long long>(session),
             Microseconds(begin), Microseconds(std::max(end, begin) - begin)));
}

void ChromeTrace::Sample(const tidepool::KvCacheManager& manager, TimePoint now,
                         tidepool::Duration every) {
  if (sampled_once_ && now < sampled_ + every) return;
  sampled_once_ = true;
  sampled_ = now;
  const auto tiers = static_cast<tidepool::TierIndex>(manager.signals().tiers.size());
  std::string used;
  for (tidepool::TierIndex t = 0; t < tiers; ++t) {
    used += Format("%s\"tier %d\": %u", t == 0 ? "" : ", ", int{t}, manager.used_slots(t));
  }
  const auto counter = [&](const char* name, const std::string& values) {
    Write(Format("{\"ph\": \"C\", \"name\": \"%s\", \"pid\": %d, \"ts\": %.3f, \"args\": {%s}}",
                 name, kMemory, Microseconds(now), values.c_str()));
  };
  counter("slots in use", used);
  const tidepool::PoolCounts c = manager.counts();
  counter("HBM slots", Format("\"held\": %u, \"cached\": %u, \"claimed\": %u, \"moving\": %u, "
                              "\"quarantined\": %u, \"free\": %u",
                              c.held, c.cached, c.claimed, c.moving, c.quarantined, c.free));
}

void ChromeTrace::OnTransferStart(const TransferEvent& event) noexcept {
  submitted_[event.id.value()] = event.time;
}

void ChromeTrace::OnTransferEnd(const TransferEvent& event) noexcept {
  ++copies_;
  const auto at = submitted_.find(event.id.value());
  const TimePoint submitted = at == submitted_.end() ? event.time : at->second;
  if (at != submitted_.end()) submitted_.erase(at);
  const int direction = int{event.from} * static_cast<int>(tidepool::kMaxTiers) + int{event.to};
  TimePoint& last = ended_[direction];
  const TimePoint begin = std::min(std::max(last, submitted), event.time);
  last = std::max(last, event.time);
  NameTrack(kCopies, static_cast<std::uint64_t>(direction),
            Format("tier %d to %d", int{event.from}, int{event.to}));
  Write(
      Format("{\"ph\": \"X\", \"name\": \"copy\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, "
             "\"dur\": %.3f, \"args\": {\"block\": %u, \"bytes\": %llu, \"result\": \"%s\", "
             "\"queued_us\": %.3f}}",
             kCopies, direction, Microseconds(begin), Microseconds(event.time - begin),
             event.block.value(), static_cast<unsigned long long>(event.bytes), Name(event.result),
             Microseconds(begin - submitted)));
}

}  // namespace agent_replay
