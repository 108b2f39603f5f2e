// tidepool/transfer/uring_file_io.h - file I/O by io_uring (component `uring`): O_DIRECT,
// registered file and buffers, batched submission, small neighbours in one operation. Where the
// kernel refuses, it takes the next best: no polling, a smaller ring, then no registration, then
// MakeThreadFileIo; Describe() says what is in use and why.
//
// Thread contract: see file_io.h.
#pragma once

#include <cstdint>
#include <memory>

#include "tidepool/export.h"
#include "tidepool/transfer/file_io.h"

namespace tidepool {

struct UringOptions {
  std::uint32_t depth = 32;  ///< ops in flight, 1 to 4096
  bool register_buffers = true;
  /// A kernel thread looks for submissions (SQPOLL): no call to submit, a core while there is I/O.
  bool poll_submissions = false;
  unsigned fallback_threads = 4;
  /// For tests: called before a ring of `entries` is made, and with 0 before the kernel is asked
  /// what it can do. Anything but 0 is taken as the errno of a failure.
  int (*forced_error)(std::uint32_t entries) = nullptr;
};

TIDEPOOL_EXPORT std::unique_ptr<FileIo> MakeUringFileIo(UringOptions options = {});

}  // namespace tidepool
