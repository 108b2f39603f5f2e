#include "tool_aware_lru.h"

#include <gtest/gtest.h>
#include <tidepool/testing/policy_conformance.h>

#include <memory>

TIDEPOOL_POLICY_CONFORMANCE(ToolAwareLru, [](tidepool::TierIndex) {
  return std::make_unique<example::ToolAwareLru>();
});
