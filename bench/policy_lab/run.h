// policy_lab/run.h - one replay of a workload through the real manager, in either mode.
//
//   no_hold  requests arrive as scheduled and take no time; one longer than the capacity streams:
//            what the capacity lets in is cached, the rest counts as missed
//   engine   a turn arrives its gap after the turn before it has completed; a first-come queue
//            waits for memory; running blocks are held from grant to completion; oversize requests
//            are refused, count as missed and take their time all the same
//
// Thread contract: runs are independent of each other.
#pragma once

#include "cache.h"
#include "figures.h"

namespace policy_lab {

/// Errors are broken invariants of the lab or the library: none are expected.
tidepool::StatusOr<RunFigures> Run(const RunSpec& spec);

tidepool::StatusOr<RunFigures> RunNoHold(const RunSpec& spec);
tidepool::StatusOr<RunFigures> RunClosedLoop(const RunSpec& spec);

}  // namespace policy_lab
