// tidepool/tidepool.h - everything an engine needs, in reading order. Thread contract: see each.
#pragma once

#include "tidepool/built_in_policies.h"     // IWYU pragma: export
#include "tidepool/clock.h"                 // IWYU pragma: export
#include "tidepool/eviction_policy.h"       // IWYU pragma: export
#include "tidepool/input_log.h"             // IWYU pragma: export
#include "tidepool/kv_cache_manager.h"      // IWYU pragma: export
#include "tidepool/kv_layout.h"             // IWYU pragma: export
#include "tidepool/lifecycle.h"             // IWYU pragma: export
#include "tidepool/observer.h"              // IWYU pragma: export
#include "tidepool/policy/arc.h"            // IWYU pragma: export
#include "tidepool/policy/asym_cache.h"     // IWYU pragma: export
#include "tidepool/policy/lru.h"            // IWYU pragma: export
#include "tidepool/policy/sieve.h"          // IWYU pragma: export
#include "tidepool/policy/spear.h"          // IWYU pragma: export
#include "tidepool/policy/spear_paper.h"    // IWYU pragma: export
#include "tidepool/policy/ttl.h"            // IWYU pragma: export
#include "tidepool/scheduling_signals.h"    // IWYU pragma: export
#include "tidepool/sequence.h"              // IWYU pragma: export
#include "tidepool/session_model.h"         // IWYU pragma: export
#include "tidepool/session_ranking.h"       // IWYU pragma: export
#include "tidepool/status.h"                // IWYU pragma: export
#include "tidepool/tide/tide.h"             // IWYU pragma: export
#include "tidepool/tier.h"                  // IWYU pragma: export
#include "tidepool/transfer/host_engine.h"  // IWYU pragma: export
#include "tidepool/transfer/rank_engine.h"  // IWYU pragma: export
#include "tidepool/types.h"                 // IWYU pragma: export
#include "tidepool/version.h"               // IWYU pragma: export
