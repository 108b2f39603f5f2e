// tidepool/transfer/host_engine.h - the engine for machines without a GPU, and what CI runs: copy
// threads between memory arenas, one file thread for the NVMe tier.
//
// Thread contract: see engine.h.
#pragma once

#include <memory>

#include "tidepool/clock.h"
#include "tidepool/export.h"
#include "tidepool/transfer/engine.h"
#include "tidepool/transfer/file_io.h"

namespace tidepool {

struct HostEngineOptions {
  unsigned copy_threads = 1;
  std::unique_ptr<FileIo> file_io;  ///< null = MakeThreadFileIo(); see transfer/uring_file_io.h
  bool checksums = true;            ///< XXH3-64 of each payload below DRAM, verified on load
  /// Per direction, demand loads and all others apart; Submit refuses beyond.
  std::uint32_t max_queued_copies = 4096;
  const Clock* clock = nullptr;  ///< null = Clock::Steady()
};

TIDEPOOL_EXPORT std::unique_ptr<TransferEngine> MakeHostEngine(HostEngineOptions options = {});

}  // namespace tidepool
