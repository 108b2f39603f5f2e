#include "tool_first.h"

#include <gtest/gtest.h>
#include <tidepool/testing/policy_conformance.h>

TIDEPOOL_POLICY_CONFORMANCE(ToolFirst,
                            [](tidepool::TierIndex) { return example::MakeToolFirstPolicy(); });
