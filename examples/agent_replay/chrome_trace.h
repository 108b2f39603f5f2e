// agent_replay/chrome_trace.h - writes what a manager does over time as Chrome trace events, which
// ui.perfetto.dev and chrome://tracing load.
//
//   process "copies"    one track for each direction between two tiers. A direction's copies end
//                       one after the other, so each is drawn from the end of the one before it,
//                       or from its submission, to its own end; args: block, bytes, result, queued
//   process "sessions"  one track for each session: turns, with the parts that the caller names,
//                       and the waits between them
//   process "memory"    counters: slots in use by tier, HBM slots by class of block
//
// The file is written as things happen and stays below a limit: beyond it events are counted and
// left out, and the last event says how many. Close makes it valid JSON; so does the destructor.
//
// Thread contract: one thread, the manager's.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tidepool/kv_cache_manager.h"
#include "tidepool/observer.h"
#include "tidepool/status.h"

namespace agent_replay {

class ChromeTrace final : public tidepool::Observer {
 public:
  static constexpr std::uint64_t kDefaultLimit = std::uint64_t{200} << 20;

  ChromeTrace() = default;
  ~ChromeTrace() override { (void)Close(); }
  ChromeTrace(const ChromeTrace&) = delete;
  ChromeTrace& operator=(const ChromeTrace&) = delete;

  /// Overwrites the file. Errors name it.
  tidepool::Status Open(const std::string& path, std::uint64_t limit_bytes = kDefaultLimit);
  /// Errors: writing failed, now or before.
  tidepool::Status Close();

  /// A part of a session's life; parts of one session nest or follow one another.
  void Part(std::uint64_t session, std::string_view name, tidepool::TimePoint begin,
            tidepool::TimePoint end);
  /// At most one sample each `every`.
  void Sample(const tidepool::KvCacheManager& manager, tidepool::TimePoint now,
              tidepool::Duration every = std::chrono::milliseconds(100));

  void OnTransferStart(const tidepool::TransferEvent& event) noexcept override;
  void OnTransferEnd(const tidepool::TransferEvent& event) noexcept override;

  [[nodiscard]] std::uint64_t copies() const { return copies_; }  ///< ended, written or not
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }

 private:
  void Write(const std::string& event);
  void NameTrack(int process, std::uint64_t track, const std::string& name);

  std::FILE* file_ = nullptr;
  std::string path_;
  std::uint64_t limit_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t left_out_ = 0;
  std::uint64_t copies_ = 0;
  bool failed_ = false;
  std::unordered_map<std::uint64_t, tidepool::TimePoint> submitted_;  // by transfer
  std::map<int, tidepool::TimePoint> ended_;                          // by direction
  std::set<std::pair<int, std::uint64_t>> named_;                     // process, track
  tidepool::TimePoint sampled_{};
  bool sampled_once_ = false;
};

}  // namespace agent_replay
