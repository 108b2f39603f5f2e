// tests/support/reference_model.h - a brute-force account of what the manager may and must do,
// written without the library's own structures: which prefixes may be found by whom, what every
// token's bytes are, and which slots a running sequence or an unfinished step still needs.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/prefix_index.h"
#include "tidepool/types.h"

namespace tidepool::testing {

/// One published block as it is found in the index, by what it stands for.
struct SeenBlock {
  std::uint32_t tiers = 0;  ///< bit t: valid copy in tier t
  bool pending = false;
  bool loading = false;  ///< its HBM copy is being written
  friend bool operator==(const SeenBlock&, const SeenBlock&) = default;
};
/// What matches in one namespace.
using SeenIndex = std::map<PrefixHash, SeenBlock>;

/// A prompt or a sequence's text, in one key space and under one set of weights.
struct ModelText {
  std::uint32_t space = 0;
  std::uint64_t epoch = 0;
  std::vector<Token> tokens;
  std::vector<BlockContent> content;
};

/// What the reference knows of a sequence.
struct ModelSequence {
  ModelText text;
  std::uint64_t incarnation = 0;  ///< of its space, when it was admitted
  TimelineId timeline;
  bool publish = true;
  bool running = true;
  std::uint32_t committed = 0;  ///< tokens
  std::uint32_t dropped = 0;    ///< blocks
  bool load_failed = false;     ///< and nothing was appended since
  bool cut_untold = false;      ///< a failed load has cut it back, and no call has said so
  Fence last_fence;
  std::vector<std::uint32_t> slots;  ///< its table as last seen
  std::set<std::uint32_t> loading;   ///< of those, still being loaded when last seen
};

class ReferenceModel {
 public:
  ReferenceModel(std::uint32_t block_tokens, std::uint64_t digest_seed)
      : block_tokens_(block_tokens), digests_(digest_seed) {}

  // --- Key spaces. ---
  /// The number of a new or, if the key is known and alive, of the old space.
  std::uint32_t Register(const NamespaceKey& key);
  void Drop(std::uint32_t space);  ///< nothing in it may be found; space 0 lives on, empty
  void ClearSpaces();              ///< nothing anywhere may be found
  void AdvanceEpoch();
  [[nodiscard]] bool alive(std::uint32_t space) const { return !spaces_[space].dropped; }
  [[nodiscard]] std::uint32_t spaces() const { return static_cast<std::uint32_t>(spaces_.size()); }
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  [[nodiscard]] std::uint64_t incarnation(std::uint32_t space) const {
    return spaces_[space].incarnation;
  }
  [[nodiscard]] const NamespaceKey& key(std::uint32_t space) const { return spaces_[space].key; }

  // --- Bytes. ---
  /// What the KV of each token depends on: weights, key space, content and all tokens up to it.
  [[nodiscard]] std::vector<std::uint64_t> Kv(const ModelText& text) const;
  /// The 8 bytes of one token in one layer. The last byte names the tenant and is never 0.
  [[nodiscard]] std::uint64_t Cell(std::uint32_t space, std::uint64_t kv,
                                   std::uint32_t layer) const;
  [[nodiscard]] std::uint8_t TenantTag(std::uint32_t space) const;

  // --- Fences. ---
  [[nodiscard]] bool Passed(Fence fence) const;
  [[nodiscard]] std::uint64_t completed(TimelineId timeline) const;
  void CompleteStep(TimelineId timeline, std::uint64_t step);

  // --- What may be found. ---
  [[nodiscard]] std::vector<PrefixHash> Digests(const ModelText& text) const;
  /// True if what the sequence commits now may become findable.
  [[nodiscard]] bool MayPublish(const ModelSequence& seq) const;
  void Commit(ModelSequence& seq, std::uint32_t n, Fence fence);
  /// True for a block computed with earlier weights.
  [[nodiscard]] bool Outdated(std::uint32_t space, const PrefixHash& digest) const {
    return spaces_[space].outdated.contains(digest);
  }
  /// Empty, or the first block of the index that nobody may find there.
  [[nodiscard]] std::string CheckIndex(std::uint32_t space, const SeenIndex& seen) const;
  /// True if the blocks of `digest` may be seen as pending by `timeline`.
  [[nodiscard]] bool PendingFor(std::uint32_t space, const PrefixHash& digest,
                                TimelineId timeline) const;
  /// Leading blocks of the text that a request on `timeline` must find (first) and may find
  /// (second); they differ only where two timelines have the same block pending.
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> Findable(const ModelText& text,
                                                                 TimelineId timeline,
                                                                 const SeenIndex& seen) const;

  // --- What is in use. ---
  /// The sequence's table is now `slots`; what it let go of is in use until its last fence passes,
  /// unless it was still being loaded: no step can have touched that.
  void SetSlots(ModelSequence& seq, std::vector<std::uint32_t> slots);
  /// Slots in use by these sequences' tables or by an unfinished step, at the least and at most.
  [[nodiscard]] std::pair<std::set<std::uint32_t>, std::set<std::uint32_t>> InUse(
      const std::vector<const ModelSequence*>& sequences) const;

 private:
  struct Claim {  // of one published block
    bool confirmed = false;
    std::set<std::pair<TimelineId, std::uint64_t>> pending;
  };
  struct Space {
    NamespaceKey key;
    bool dropped = false;
    std::uint64_t incarnation = 0;
    std::map<PrefixHash, Claim> published;
    std::set<PrefixHash> outdated;  // of earlier epochs; may be seen, never matched
  };
  struct Unfinished {
    std::uint64_t step;
    std::vector<std::uint32_t> slots;
    std::vector<std::uint32_t> loading;  // may have arrived before they were let go of
  };

  std::uint32_t block_tokens_;
  DigestScheme digests_;
  std::uint64_t epoch_ = 0;
  std::vector<Space> spaces_;
  std::map<TimelineId, std::uint64_t> completed_;
  std::map<TimelineId, std::vector<Unfinished>> unfinished_;
};

}  // namespace tidepool::testing
