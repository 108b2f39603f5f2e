// Commit: what the engine wrote becomes active, full blocks become findable.
#include <algorithm>
#include <utility>

#include "src/manager/core.h"

namespace tidepool::internal {

const PrefixHash* ManagerCore::ContentOf(const SequenceData& seq,
                                         std::uint32_t block) const noexcept {
  return ContentOf(seq.content, block);
}

// Blocks that receive their first committed token in [from, to) leave kAllocated.
void ManagerCore::ActivateCommitted(SequenceData& seq, std::uint32_t from, std::uint32_t to) {
  std::uint32_t first = from / block_tokens_;
  const std::uint32_t last = BlocksFor(to);
  if (first < last && pool_->phase(seq.blocks[first]) != Phase::kAllocated) ++first;
  if (first >= last) return;
  pool_->Transition(std::span(seq.blocks).subspan(first, last - first),
                    {.to = Phase::kActive, .cause = Cause::kCommit});
}

Outcome ManagerCore::Commit(SequenceData& seq, std::uint32_t n, Fence fence) {
  if (seq.state != SequenceState::kRunning) return Outcome::kPaused;
  if (n > seq.tokens.size()) {
    return seq.load_failed ? TellLoadFailed(seq) : Outcome::kBeyondLength;
  }
  if (n < seq.committed) return Outcome::kNotMonotonic;
  if (StillLoading(seq)) return Outcome::kStillLoading;
  if (!fence.done()) {
    if (fence.timeline != seq.timeline) return Outcome::kInvalidArgument;
    if (!seq.last_fence.done() && fence.step < seq.last_fence.step) return Outcome::kNotMonotonic;
    seq.last_fence = fence;
  }
  const std::uint32_t from = seq.committed;
  seq.committed = n;
  seq.advanced |= n != from;
  if (seq.copies_below && n != from && from % block_tokens_ != 0) {
    DropLowerCopies(seq.blocks[from / block_tokens_]);
  }
  const bool new_block = from % block_tokens_ == 0 || n / block_tokens_ != from / block_tokens_ ||
                         pool_->phase(seq.blocks[from / block_tokens_]) == Phase::kAllocated;
  if (n != from && new_block) {
    ActivateCommitted(seq, from, n);
    if (seq.publish && n / block_tokens_ > seq.publish_blocks) PublishCommitted(seq, fence);
  }
  return Outcome::kOk;
}

// The sequence keeps its first `blocks` blocks only: the cursor must not stand behind them.
void ManagerCore::LimitPublished(SequenceData& seq, std::uint32_t blocks) {
  if (seq.publish_blocks <= blocks) return;
  seq.publish_blocks = blocks;
  seq.cursor = BlockRef();
}

// The index block before the next one to publish may be an earlier duplicate that nobody here
// holds: when it has gone, find the way again by tokens.
bool ManagerCore::RecoverCursor(SequenceData& seq) {
  if (seq.publish_blocks < seq.dropped) return false;  // given up before they were published
  if (seq.publish_blocks == 0) {
    seq.cursor = BlockRef();
    return true;
  }
  const BlockId own = seq.blocks[seq.publish_blocks - 1];
  if (own.valid() && pool_->Has(own, word::kPublished)) {
    seq.cursor = pool_->ref(own);
    return true;
  }
  if (pool_->alive(seq.cursor) && pool_->Has(seq.cursor.block, word::kPublished)) return true;
  index_->Match(
      {.root = seq.root,
       .tokens = std::span(seq.tokens).first(std::size_t{seq.publish_blocks} * block_tokens_),
       .content = seq.content,
       .timeline = seq.timeline},
      match_);
  const auto matched = static_cast<std::uint32_t>(match_.blocks.size());
  for (std::uint32_t i = matched; i < seq.publish_blocks; ++i) {
    if (!seq.blocks[i].valid()) return false;  // given up (window): the chain cannot be mended
  }
  seq.publish_blocks = std::min(seq.publish_blocks, matched);
  seq.cursor = matched != 0 ? pool_->ref(match_.blocks.back()) : BlockRef();
  return true;
}

// How many of the blocks [from, end) are neither published by a fork nor have content.
std::uint32_t ManagerCore::PlainRun(const SequenceData& seq, std::uint32_t from,
                                    std::uint32_t end) const noexcept {
  if (!seq.content.empty()) return 0;
  std::uint32_t i = from;
  while (i < end && !pool_->Has(seq.blocks[i], word::kPublished | word::kAbandoned)) ++i;
  return i - from;
}

void ManagerCore::PublishCommitted(SequenceData& seq, Fence fence) {
  if (!InCurrentTree(seq) || !RecoverCursor(seq)) {
    seq.publish = false;
    return;
  }
  const bool pending = !Passed(fence);
  const bool own_claim = seq.session != kNone && pool_->alive(seq.cursor) &&
                         index_->ClaimedTail(seq.session) == seq.cursor.block;
  PublishCursor cursor{.root = seq.root, .last = seq.cursor.block};
  scratch_.clear();
  revived_.clear();
  const std::uint32_t end = seq.committed / block_tokens_;
  const auto tokens = [&](std::uint32_t block, std::uint32_t blocks) {
    return std::span<const Token>(seq.tokens)
        .subspan(std::size_t{block} * block_tokens_, std::size_t{blocks} * block_tokens_);
  };
  std::uint32_t plain_end = 0;
  for (std::uint32_t i = seq.publish_blocks; i < end; ++i) {
    if (plain_end <= i) plain_end = i + PlainRun(seq, i, end);
    if (plain_end > i + 1) {  // the common case: a run that just grows
      const std::uint32_t plain = plain_end - i;
      const auto run = std::span<const BlockId>(seq.blocks).subspan(i, plain);
      const std::uint32_t taken = index_->Extend(cursor, {.blocks = run,
                                                          .tokens = tokens(i, plain),
                                                          .pending = pending,
                                                          .timeline = seq.timeline,
                                                          .may_extend_claimed = own_claim});
      AppendIds(scratch_, run.first(taken));
      i += taken;
      if (i == end) break;
    }
    const BlockId b = seq.blocks[i];
    if (pool_->Has(b, word::kPublished)) {  // a fork published it
      cursor.last = b;
      continue;
    }
    const PublishResult result = index_->Publish(cursor, {.blocks = {&b, 1},
                                                          .tokens = tokens(i, 1),
                                                          .content = ContentOf(seq, i),
                                                          .pending = pending,
                                                          .timeline = seq.timeline,
                                                          .may_extend_claimed = own_claim,
                                                          .revived = &revived_});
    if (result == PublishResult::kDetached) {
      seq.publish = false;
      break;
    }
    if (result == PublishResult::kPublished) {
      pool_->ClearFlag(b, word::kAbandoned);
      scratch_.push_back(b);
    } else {
      ++stats_.duplicate_blocks;
    }
  }
  seq.publish_blocks = end;
  seq.cursor = pool_->ref(cursor.last);
  if (scratch_.empty()) return;
  if (!pending) {
    Confirm(scratch_);
    return;
  }
  Timeline& timeline = TimelineOf(fence.timeline);
  Timeline::Commit commit{.step = fence.step, .blocks = {}};
  for (const BlockId b : scratch_) commit.blocks.push_back(pool_->ref(b));
  auto at = timeline.commits.end();
  while (at != timeline.commits.begin() && std::prev(at)->step > fence.step) --at;
  timeline.commits.insert(at, std::move(commit));
}

void ManagerCore::Confirm(std::span<const BlockId> blocks) {
  stats_.published_blocks += blocks.size();
  policies_[kHbmTier]->OnInserted(blocks);
  if (events_.empty()) return;
  for (const BlockId b : blocks) {
    bool first = true;
    for (TierIndex t = 0; t < tiers_; ++t) {  // a pending block may have been copied down
      if (pool_->copy(b, t) != CopyState::kValid) continue;
      LogEvent(EventKind::kStored, b, t, EvictReason::kCapacity, std::exchange(first, false));
    }
  }
}

Outcome ManagerCore::CompleteStep(TimelineId id, std::uint64_t step) {
  BindThread();
  if (!id.valid()) return Outcome::kInvalidArgument;
  Timeline& timeline = TimelineOf(id);
  if (step < timeline.completed) return Outcome::kNotMonotonic;
  timeline.completed = step;
  while (!timeline.commits.empty() && timeline.commits.front().step <= step) {
    lost_.clear();  // here: still there
    for (const BlockRef& ref : timeline.commits.front().blocks) {
      if (pool_->alive(ref) && pool_->Has(ref.block, word::kPending)) lost_.push_back(ref.block);
    }
    timeline.commits.pop_front();
    index_->ConfirmPublished(lost_);
    Confirm(lost_);
  }
  while (!timeline.computed.empty() && timeline.computed.front().first <= step) {
    const TransferId ended = timeline.computed.front().second;
    timeline.computed.pop_front();
    EndComputed(ended);
  }
  while (!timeline.pins.empty() && timeline.pins.front().first <= step) {
    const BlockId block = timeline.pins.front().second;
    timeline.pins.pop_front();
    pool_->Unpin(block);
    AfterUnpin(block);
  }
  while (!timeline.releases.empty() && timeline.releases.front().step <= step) {
    Timeline::Release release = std::move(timeline.releases.front());
    timeline.releases.pop_front();
    ReleaseNow(release.blocks, release.action, release.forked);
  }
  return Outcome::kOk;
}

}  // namespace tidepool::internal
