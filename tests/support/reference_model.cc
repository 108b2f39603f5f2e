#include "tests/support/reference_model.h"

#include <algorithm>

namespace tidepool::testing {
namespace {

constexpr std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {  // splitmix64
  std::uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t Mix(std::uint64_t state, const std::string& text) {
  state = Mix(state, text.size());
  for (const char c : text) state = Mix(state, static_cast<unsigned char>(c));
  return state;
}

const PrefixHash* ContentAt(const ModelText& text, std::size_t block) {
  for (const BlockContent& c : text.content) {
    if (c.block == block) return &c.key;
  }
  return nullptr;
}

}  // namespace

std::uint32_t ReferenceModel::Register(const NamespaceKey& key) {
  for (std::uint32_t i = 0; i < spaces_.size(); ++i) {
    if (!spaces_[i].dropped && spaces_[i].key == key) return i;
  }
  spaces_.push_back({.key = key, .published = {}, .outdated = {}});
  return spaces() - 1;
}

void ReferenceModel::Drop(std::uint32_t space) {
  Space& s = spaces_[space];
  s.dropped = space != 0;
  ++s.incarnation;
  s.published.clear();
}

void ReferenceModel::ClearSpaces() {
  for (Space& s : spaces_) {
    ++s.incarnation;
    s.published.clear();
    s.outdated.clear();
  }
}

void ReferenceModel::AdvanceEpoch() {
  ++epoch_;
  for (Space& s : spaces_) {
    for (const auto& [digest, claim] : s.published) s.outdated.insert(digest);
    s.published.clear();
  }
}

std::vector<std::uint64_t> ReferenceModel::Kv(const ModelText& text) const {
  const NamespaceKey& key = spaces_[text.space].key;
  std::uint64_t state = Mix(Mix(1, text.epoch), key.tenant);
  state = Mix(Mix(Mix(state, key.adapter), key.model), key.layout);
  std::vector<std::uint64_t> kv;
  kv.reserve(text.tokens.size());
  for (std::size_t i = 0; i < text.tokens.size(); ++i) {
    if (i % block_tokens_ == 0) {
      if (const PrefixHash* content = ContentAt(text, i / block_tokens_)) {
        state = Mix(Mix(state, content->high), content->low);
      }
    }
    state = Mix(state, static_cast<std::uint32_t>(text.tokens[i]));
    kv.push_back(state);
  }
  return kv;
}

std::uint8_t ReferenceModel::TenantTag(std::uint32_t space) const {
  const std::string& tenant = spaces_[space].key.tenant;
  return tenant.empty() ? 1 : static_cast<std::uint8_t>(tenant[0]);
}

std::uint64_t ReferenceModel::Cell(std::uint32_t space, std::uint64_t kv,
                                   std::uint32_t layer) const {
  return (Mix(kv, layer) >> 8) | (std::uint64_t{TenantTag(space)} << 56);
}

std::uint64_t ReferenceModel::completed(TimelineId timeline) const {
  const auto it = completed_.find(timeline);
  return it == completed_.end() ? 0 : it->second;
}

bool ReferenceModel::Passed(Fence fence) const {
  return fence.done() || completed(fence.timeline) >= fence.step;
}

void ReferenceModel::CompleteStep(TimelineId timeline, std::uint64_t step) {
  completed_[timeline] = step;
  for (Space& space : spaces_) {
    for (auto& [digest, claim] : space.published) {
      const auto passed = std::erase_if(claim.pending, [&](const auto& pending) {
        return pending.first == timeline && pending.second <= step;
      });
      claim.confirmed |= passed != 0;
    }
  }
  std::erase_if(unfinished_[timeline], [&](const Unfinished& u) { return u.step <= step; });
}

std::vector<PrefixHash> ReferenceModel::Digests(const ModelText& text) const {
  PrefixHash parent = digests_.Root(spaces_[text.space].key, text.epoch);
  std::vector<PrefixHash> result;
  for (std::size_t i = 0; i < text.tokens.size() / block_tokens_; ++i) {
    const auto tokens = std::span(text.tokens).subspan(i * block_tokens_, block_tokens_);
    parent = digests_.Block(parent, tokens, ContentAt(text, i));
    result.push_back(parent);
  }
  return result;
}

bool ReferenceModel::MayPublish(const ModelSequence& seq) const {
  const Space& space = spaces_[seq.text.space];
  return seq.publish && !space.dropped && seq.text.epoch == epoch_ &&
         seq.incarnation == space.incarnation;
}

void ReferenceModel::Commit(ModelSequence& seq, std::uint32_t n, Fence fence) {
  seq.committed = n;
  if (!fence.done()) seq.last_fence = fence;
  if (!MayPublish(seq)) return;
  const std::vector<PrefixHash> digests = Digests(seq.text);
  for (std::uint32_t i = 0; i < n / block_tokens_; ++i) {
    Claim& claim = spaces_[seq.text.space].published[digests[i]];
    if (Passed(fence)) {
      claim.confirmed = true;
    } else {
      claim.pending.emplace(fence.timeline, fence.step);
    }
  }
}

std::string ReferenceModel::CheckIndex(std::uint32_t space, const SeenIndex& seen) const {
  const Space& s = spaces_[space];
  for (const auto& [digest, block] : seen) {
    const auto it = s.published.find(digest);
    const std::string what =
        "block " + std::to_string(digest.high) + " of space " + std::to_string(space);
    if (it == s.published.end()) return what + " is in the index, but was never committed there";
    if (block.pending ? it->second.pending.empty() : !it->second.confirmed) {
      return what + (block.pending ? " is pending, but nothing is unfinished"
                                   : " is confirmed before its fence passed");
    }
  }
  return "";
}

bool ReferenceModel::PendingFor(std::uint32_t space, const PrefixHash& digest,
                                TimelineId timeline) const {
  const auto it = spaces_[space].published.find(digest);
  if (it == spaces_[space].published.end()) return false;
  return std::any_of(it->second.pending.begin(), it->second.pending.end(),
                     [&](const auto& pending) { return pending.first == timeline; });
}

std::pair<std::uint32_t, std::uint32_t> ReferenceModel::Findable(const ModelText& text,
                                                                 TimelineId timeline,
                                                                 const SeenIndex& seen) const {
  const std::vector<PrefixHash> digests = Digests(text);
  std::uint32_t must = 0;
  bool sure = true;
  for (std::uint32_t i = 0; i < digests.size(); ++i) {
    const auto it = seen.find(digests[i]);
    if (it == seen.end() || it->second.tiers == 0) return {must, i};
    if (it->second.pending) {
      if (!PendingFor(text.space, digests[i], timeline)) return {must, i};
      const auto& pending = spaces_[text.space].published.at(digests[i]).pending;
      sure = sure && std::all_of(pending.begin(), pending.end(),
                                 [&](const auto& p) { return p.first == timeline; });
    }
    if (sure) must = i + 1;
  }
  return {must, static_cast<std::uint32_t>(digests.size())};
}

void ReferenceModel::SetSlots(ModelSequence& seq, std::vector<std::uint32_t> slots) {
  if (!Passed(seq.last_fence)) {
    Unfinished u{.step = seq.last_fence.step, .slots = {}, .loading = {}};
    for (const std::uint32_t slot : seq.slots) {
      if (std::find(slots.begin(), slots.end(), slot) != slots.end()) continue;
      (seq.loading.contains(slot) ? u.loading : u.slots).push_back(slot);
    }
    unfinished_[seq.last_fence.timeline].push_back(std::move(u));
  }
  seq.slots = std::move(slots);
}

std::pair<std::set<std::uint32_t>, std::set<std::uint32_t>> ReferenceModel::InUse(
    const std::vector<const ModelSequence*>& sequences) const {
  std::set<std::uint32_t> least;
  for (const ModelSequence* seq : sequences) {
    if (seq->running) least.insert(seq->slots.begin(), seq->slots.end());
  }
  std::set<std::uint32_t> most;
  for (const auto& [timeline, unfinished] : unfinished_) {
    for (const Unfinished& u : unfinished) {
      least.insert(u.slots.begin(), u.slots.end());
      most.insert(u.loading.begin(), u.loading.end());
    }
  }
  most.insert(least.begin(), least.end());
  return {least, most};
}

}  // namespace tidepool::testing
