// tests/support/paper_caches.h - cache algorithms in plain containers, straight from their papers,
// and the exact misses each has on a flat stream of references: golden counts for the policies.
// Written apart from the library's policies and from their interface; nothing here is fast.
//
// Thread contract: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tidepool/types.h"

namespace tidepool::testing {

using References = std::vector<PrefixHash>;

/// Every cache starts empty; a miss inserts.
std::uint64_t LruMisses(const References& references, std::size_t capacity);
/// Megiddo and Modha, FAST 2003, Figure 4, with a real-valued target.
std::uint64_t ArcMisses(const References& references, std::size_t capacity);
/// ARC as it is often got wrong: a ghost hit enters the recent list, the target moves on lookup and
/// again on insertion, each ghost list has a bound of its own, and a victim is looked for in one
/// list only.
std::uint64_t FaultyArcMisses(const References& references, std::size_t capacity);
/// Zhang et al., NSDI 2024, Algorithm 1.
std::uint64_t SieveMisses(const References& references, std::size_t capacity);

/// Every block of every request of a trace in order, key = (scope, id); empty if it cannot be read.
References ReadFlatReferences(const std::string& ttrace_path);
/// A made-up stream, the same on every machine: single keys and whole documents, both by Zipf's
/// law, so that there are hot keys, scans, and documents that come back.
References GeneratedReferences(std::uint64_t seed, std::size_t count);

}  // namespace tidepool::testing
