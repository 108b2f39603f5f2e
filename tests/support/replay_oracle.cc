#include "tests/support/replay_oracle.h"

#include <algorithm>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agent_replay::oracle {
namespace {

constexpr std::size_t kHbm = 0;
constexpr std::size_t kMaxCopiesPerRound = 4096;  // background copies planned at a time

struct Block;
using Queue = std::list<Block*>;

struct Block {
  Block* parent = nullptr;
  std::vector<Block*> children;
  std::uint64_t key = 0;
  bool published = false;
  std::array<bool, kTiers> valid{};
  bool held = false;
  bool wanted = false;                 // by the request that looks for room
  bool leaving = false;                // chosen as a victim, or being copied down to leave
  std::uint64_t touched = 0;           // when a sequence last let go of it or of something below
  Block* further = nullptr;            // on the way from here to the coldest tail below...
  std::uint64_t further_plan = 0;      // ...as long as this plan is being made
  int claims = 0;                      // sessions whose last turn's path covers it
  std::set<std::uint32_t> claims_end;  // of those, the ones whose path ends here
  struct Place {
    Queue* queue = nullptr;
    Queue::iterator at;
  };
  std::array<Place, kTiers> order;
};

/// Tiers, blocks and the order in which blocks leave. Class 0 (nobody waits for the block) leaves
/// before class 1 (some session does); within a class the least recently used first.
class Cache {
 public:
  explicit Cache(const std::vector<std::uint32_t>& slots) : slots_(slots), used_(slots.size(), 0) {
    queues_.resize(slots.size());
  }

  [[nodiscard]] std::size_t tiers() const { return slots_.size(); }
  [[nodiscard]] std::uint32_t Free(std::size_t tier) const { return slots_[tier] - used_[tier]; }
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

  Block* Find(std::uint64_t scope, std::uint64_t id) {
    const auto found = index_.find({scope, id});
    return found == index_.end() ? nullptr : found->second;
  }
  Block* Create(Block* parent) {
    Block* block = new Block;
    blocks_.emplace(block, std::unique_ptr<Block>(block));
    block->parent = parent;
    block->held = true;
    SetValid(*block, kHbm);
    return block;
  }
  void Publish(Block& block, std::uint64_t scope, std::uint64_t id) {
    index_[{scope, id}] = &block;
    keys_[&block] = {scope, id};
    block.published = true;
    if (block.parent != nullptr) block.parent->children.push_back(&block);
  }
  void SetValid(Block& block, std::size_t tier) {
    block.valid[tier] = true;
    ++used_[tier];
  }
  /// The copy in `tier` goes; without any copy the block goes.
  void Lose(Block& block, std::size_t tier) {
    Unfile(block, tier);
    block.valid[tier] = false;
    --used_[tier];
    if (!AnyCopy(block)) Vanish(block);
  }
  void LoseAll(Block& block) {
    for (std::size_t t = 0; t < tiers(); ++t) {
      if (!block.valid[t]) continue;
      const bool last = !std::any_of(block.valid.begin() + static_cast<std::ptrdiff_t>(t) + 1,
                                     block.valid.end(), [](bool v) { return v; });
      Lose(block, t);
      if (last) return;
    }
  }
  [[nodiscard]] static bool AnyCopy(const Block& block) {
    return std::any_of(block.valid.begin(), block.valid.end(), [](bool v) { return v; });
  }
  [[nodiscard]] std::size_t Best(const Block& block) const {
    return static_cast<std::size_t>(std::find(block.valid.begin(), block.valid.end(), true) -
                                    block.valid.begin());
  }

  // --- Order. ---

  /// The newest of its class.
  void File(Block& block, std::size_t tier) {
    Unfile(block, tier);
    Queue& queue = queues_[tier][block.claims > 0 ? 1 : 0];
    block.order[tier] = {&queue, queue.insert(queue.end(), &block)};
  }
  void Unfile(Block& block, std::size_t tier) {
    Block::Place& place = block.order[tier];
    if (place.queue != nullptr) place.queue->erase(place.at);
    place.queue = nullptr;
  }
  /// A class changed: newest of the other class wherever the block has a place. Tails first.
  void Refile(const std::vector<Block*>& path) {
    for (std::size_t t = 0; t < tiers(); ++t) {
      for (auto block = path.rbegin(); block != path.rend(); ++block) {
        if ((*block)->order[t].queue != nullptr) File(**block, t);
      }
    }
  }
  void Touch(const std::vector<Block*>& path) {
    ++tick_;
    for (Block* block : path) block->touched = tick_;
  }

  // --- Victims. ---

  using Filter = std::function<bool(const Block&)>;
  [[nodiscard]] bool Clean(const Block& block, std::size_t tier) const {
    if (tier == kHbm) return tiers() > 1 && block.valid[1];
    const bool above = Best(block) < tier;
    return above || (tier + 1 < tiers() && block.valid[tier + 1]);
  }
  /// What may leave without a copy first: clean ones, in the last tier all.
  [[nodiscard]] Filter Droppable(std::size_t tier) const {
    return [this, tier](const Block& b) { return tier + 1 == tiers() || Clean(b, tier); };
  }
  [[nodiscard]] Filter Dirty(std::size_t tier) const {
    return [this, tier](const Block& b) { return !Clean(b, tier); };
  }

  /// Up to `n` victims in order, marked as leaving. The order names as many as are asked for; one
  /// with something resident below it gives way to the coldest tail there; asked again for what is
  /// still missing.
  std::vector<Block*> Plan(std::size_t tier, std::size_t n, const Filter& filter) {
    ++plan_;
    std::vector<Block*> victims;
    std::size_t ask = n;
    while (victims.size() < n) {
      const std::vector<Block*> named = Name(tier, ask, filter);
      const std::size_t before = victims.size();
      for (Block* candidate : named) {
        if (victims.size() == n) break;
        Block* victim = TailOf(*candidate, tier);
        if (victim == nullptr || !Evictable(*victim, tier) || !filter(*victim)) continue;
        victim->leaving = true;
        victims.push_back(victim);
      }
      if (victims.size() > before) {
        ask = n - victims.size();
      } else if (named.size() < ask) {
        break;
      } else {
        ask *= 2;
      }
    }
    return victims;
  }
  static void Unplan(const std::vector<Block*>& victims) {
    for (Block* victim : victims) victim->leaving = false;
  }
  void Evict(const std::vector<Block*>& victims, std::size_t tier) {
    Unplan(victims);
    for (Block* victim : victims) Lose(*victim, tier);
  }

  // --- Claims. ---

  /// Session `session` is now interested in the path that ends with `deepest` (null: in nothing).
  void Claim(std::uint32_t session, Block* deepest) {
    Block*& end = claim_end_[session];
    const std::vector<Block*> old_path = PathOf(end);
    const std::vector<Block*> new_path = PathOf(deepest);
    std::size_t common = 0;
    while (common < std::min(old_path.size(), new_path.size()) &&
           old_path[common] == new_path[common]) {
      ++common;
    }
    std::vector<Block*> changed;
    for (std::size_t i = common; i < old_path.size(); ++i) {
      if (--old_path[i]->claims == 0) changed.push_back(old_path[i]);
    }
    Refile(changed);
    changed.clear();
    for (std::size_t i = common; i < new_path.size(); ++i) {
      if (++new_path[i]->claims == 1) changed.push_back(new_path[i]);
    }
    Refile(changed);
    if (end != nullptr) end->claims_end.erase(session);
    end = deepest;
    if (end != nullptr) end->claims_end.insert(session);
  }

 private:
  [[nodiscard]] bool Evictable(const Block& b, std::size_t tier) const {
    return b.valid[tier] && !b.wanted && !b.leaving && (tier != kHbm || !b.held);
  }
  std::vector<Block*> Name(std::size_t tier, std::size_t n, const Filter& filter) {
    std::vector<Block*> named;
    for (Queue& queue : queues_[tier]) {
      for (Block* block : queue) {
        if (named.size() == n) return named;
        if (Evictable(*block, tier) && filter(*block)) named.push_back(block);
      }
    }
    return named;
  }
  /// Where the block counts once what leaves has left.
  [[nodiscard]] std::size_t PlannedTier(const Block& b) const {
    return Best(b) + (b.leaving ? 1 : 0);
  }
  [[nodiscard]] Block* ColdestChild(const Block& b, std::size_t tier) const {
    Block* coldest = nullptr;
    for (Block* child : b.children) {
      if (PlannedTier(*child) > tier) continue;
      if (coldest == nullptr || child->touched < coldest->touched) coldest = child;
    }
    return coldest;
  }
  [[nodiscard]] Block* TailOf(Block& candidate, std::size_t tier) {
    Block* tail = &candidate;
    if (!tail->published) return tail;
    if (tier != kHbm && Best(*tail) < tier) return tail;  // a duplicate of what is above
    if (ColdestChild(*tail, tier) == nullptr) return tail;
    if (PlannedTier(*tail) > tier) return nullptr;
    return ColdestTail(*tail, tier);
  }
  /// From coldest child to coldest child. Of each path walked its blocks remember the end: only
  /// what leaves meanwhile changes the way, and then from its parent on.
  [[nodiscard]] Block* ColdestTail(Block& from, std::size_t tier) {
    std::vector<Block*> path;
    Block* at = &from;
    while (true) {
      Block* next = at->further_plan == plan_ ? at->further : at;
      while (next != at && next->leaving) next = next->parent;
      if (next == at) next = ColdestChild(*at, tier);
      if (next == nullptr) break;
      path.push_back(at);
      at = next;
    }
    for (Block* block : path) {
      block->further = at;
      block->further_plan = plan_;
    }
    return at;
  }
  static std::vector<Block*> PathOf(Block* deepest) {
    std::vector<Block*> path;
    for (; deepest != nullptr; deepest = deepest->parent) path.push_back(deepest);
    std::reverse(path.begin(), path.end());
    return path;
  }
  void Vanish(Block& block) {
    if (block.published) {
      ++dropped_;
      for (const std::uint32_t session : block.claims_end) {  // the claim ends one block earlier
        claim_end_[session] = block.parent;
        if (block.parent != nullptr) block.parent->claims_end.insert(session);
      }
      if (block.parent != nullptr) std::erase(block.parent->children, &block);
      index_.erase(keys_[&block]);
      keys_.erase(&block);
    }
    blocks_.erase(&block);
  }

  using Key = std::pair<std::uint64_t, std::uint64_t>;
  struct HashKey {
    std::size_t operator()(const Key& k) const {
      return std::hash<std::uint64_t>{}(k.first * 0x9e3779b97f4a7c15u + k.second);
    }
  };
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint32_t> used_;
  std::vector<std::array<Queue, 2>> queues_;  // by tier and class
  std::unordered_map<Key, Block*, HashKey> index_;
  std::unordered_map<Block*, Key> keys_;
  std::unordered_map<Block*, std::unique_ptr<Block>> blocks_;
  std::unordered_map<std::uint32_t, Block*> claim_end_;
  std::uint64_t tick_ = 0;
  std::uint64_t plan_ = 0;
  std::uint64_t dropped_ = 0;
};

/// Serves turns from a Cache as a lockstep replay does.
class Server {
 public:
  Server(const Trace& trace, const Schedule& schedule, const std::vector<std::uint32_t>& slots,
         std::vector<std::size_t> tier_of)
      : trace_(trace),
        schedule_(schedule),
        cache_(slots),
        tier_of_(std::move(tier_of)),
        max_blocks_(MaxRequestBlocks(slots[0])),
        sessions_(schedule.sessions) {}

  Hits Run() {
    for (const std::uint32_t request : schedule_.order) Serve(request);
    hits_.dropped = cache_.dropped();
    return hits_;
  }

 private:
  struct Session {
    std::vector<std::uint64_t> ids;  // of its last turn
    Block* tail = nullptr;           // private end of a paused turn's prompt, if it survived
    bool paused = false;
  };
  struct Plan {
    std::vector<Block*> matched;  // leading blocks of the prompt that some tier has
    std::vector<Block*> loads;    // of those, and of the private tail, what HBM has not
    std::size_t fresh = 0;
  };

  void Serve(std::uint32_t index) {
    const Request& request = trace_.requests[index];
    Session& session = sessions_[schedule_.session[index]];
    std::vector<std::uint64_t> ids;
    ForEachBlock(trace_, request, max_blocks_, [&](std::uint64_t id) { ids.push_back(id); });
    const bool grew = session.paused && session.ids.size() <= ids.size() &&
                      std::equal(session.ids.begin(), session.ids.end(), ids.begin());
    std::vector<Block*> path;
    if (grew) {
      path = Resume(request.scope, session);
      Grow(ids.size() - path.size() + 1);
    } else {
      ForgetTail(session);
      path = Match(request.scope, ids, nullptr);
    }
    hits_.recomputed_blocks += ids.size() - path.size();
    FinishTurn(index, ids, std::move(path), session);
  }

  /// Holds what a fresh match finds and makes room for the whole prompt, its private end included.
  std::vector<Block*> Match(std::uint64_t scope, const std::vector<std::uint64_t>& ids,
                            Session* resumed) {
    Plan plan;
    do {
      plan = {};
      for (const std::uint64_t id : ids) {
        Block* block = cache_.Find(scope, id);
        if (block == nullptr) break;
        plan.matched.push_back(block);
      }
      for (Block* block : plan.matched) {
        if (!block->valid[kHbm]) plan.loads.push_back(block);
      }
      const bool whole = plan.matched.size() == ids.size();
      Block* tail = resumed != nullptr && whole ? resumed->tail : nullptr;
      if (tail != nullptr && !tail->valid[kHbm]) plan.loads.push_back(tail);
      plan.fresh = ids.size() + 1 - plan.matched.size() - (tail != nullptr ? 1 : 0);
      SetWanted(plan.matched, tail, true);
      placed_ = EnsureRoom(plan.fresh + plan.loads.size());
      SetWanted(plan.matched, tail, false);
      if (!placed_) WriteBack(plan.matched, resumed);
    } while (!placed_);
    need_ = granted_ = 0;
    Take(plan);
    return plan.matched;
  }
  static void SetWanted(const std::vector<Block*>& blocks, Block* tail, bool wanted) {
    for (Block* block : blocks) block->wanted = wanted;
    if (tail != nullptr) tail->wanted = wanted;
  }
  void Take(const Plan& plan) {
    for (Block* block : plan.matched) {
      ++hits_.blocks[tier_of_[cache_.Best(*block)]];
      block->held = true;
    }
    for (Block* block : plan.loads) {
      cache_.File(*block, cache_.Best(*block));
      cache_.SetValid(*block, kHbm);
    }
  }

  /// The paused turn's blocks again; its private end is matched, and then given up.
  std::vector<Block*> Resume(std::uint64_t scope, Session& session) {
    std::vector<Block*> path = Match(scope, session.ids, &session);
    ForgetTail(session);
    return path;
  }
  void ForgetTail(Session& session) {
    if (session.tail != nullptr) {
      tails_.erase(session.tail);
      cache_.LoseAll(*session.tail);
    }
    session.tail = nullptr;
    session.paused = false;
  }
  void Grow(std::size_t blocks) {
    while (!EnsureRoom(blocks)) WriteBack();
    need_ = granted_ = 0;
  }

  /// Free slots, then clean victims, all or nothing; else what has to be freed is noted.
  bool EnsureRoom(std::size_t slots) {
    const std::size_t free = cache_.Free(kHbm);
    if (slots <= free) return true;
    const std::size_t missing = slots - free;
    const std::vector<Block*> victims = cache_.Plan(kHbm, missing, cache_.Droppable(kHbm));
    if (victims.size() == missing) {
      Evict(victims, kHbm);
      return true;
    }
    Cache::Unplan(victims);
    need_ = granted_ + missing;
    return false;
  }
  void Evict(const std::vector<Block*>& victims, std::size_t tier) {
    for (Block* victim : victims) {
      if (!victim->published && OnlyIn(*victim, tier)) LoseTail(victim);
    }
    cache_.Evict(victims, tier);
  }
  static bool OnlyIn(const Block& block, std::size_t tier) {
    std::array<bool, kTiers> rest = block.valid;
    rest[tier] = false;
    return std::none_of(rest.begin(), rest.end(), [](bool v) { return v; });
  }
  void LoseTail(Block* tail) {
    sessions_[tails_.at(tail)].tail = nullptr;
    tails_.erase(tail);
  }

  /// Gives up clean victims and copies dirty ones down, until the demand is met or nothing can
  /// move. What the request would hit is spared, unless nothing else will do.
  void WriteBack(const std::vector<Block*>& matched = {}, const Session* resumed = nullptr) {
    while (cache_.tiers() > 1 && need_ > granted_) {
      Round round;
      Block* tail = resumed != nullptr ? resumed->tail : nullptr;
      SetWanted(matched, tail, true);
      Pass(round);
      SetWanted(matched, tail, false);
      const bool spared = !matched.empty() || tail != nullptr;
      if (spared && need_ > granted_ + round.leaving.size()) Pass(round);
      if (round.leaving.empty() && round.spilled.empty()) {
        if (need_ > granted_ && round.unserved != 0) DropDirty();
        return;
      }
      Arrive(round.leaving, 1);
      granted_ += round.leaving.size();
      Arrive(round.spilled, 2);
    }
  }
  struct Round {
    std::vector<Block*> leaving, spilled;  // copies that have started
    std::size_t unserved = 0;              // victims for which the tier below had no slot
  };
  void Pass(Round& round) {
    const auto missing = [&] { return need_ - granted_ - round.leaving.size(); };
    const std::vector<Block*> clean = cache_.Plan(kHbm, missing(), cache_.Droppable(kHbm));
    Evict(clean, kHbm);
    granted_ += clean.size();
    if (missing() == 0) return;
    const std::vector<Block*> dirty =
        cache_.Plan(kHbm, std::min(missing(), kMaxCopiesPerRound), cache_.Dirty(kHbm));
    round.unserved = dirty.size() - Start(dirty, 1, round.leaving);
    if (cache_.tiers() <= 2 || round.unserved <= round.spilled.size()) return;
    const std::size_t spills = std::min(round.unserved - round.spilled.size(), kMaxCopiesPerRound);
    Start(cache_.Plan(1, spills, cache_.Dirty(1)), 2, round.spilled);
  }
  /// Makes room in `tier` for the victims of the tier above; returns how many of them fit, and
  /// adds these to `started`.
  std::size_t Start(const std::vector<Block*>& victims, std::size_t tier,
                    std::vector<Block*>& started) {
    if (cache_.Free(tier) < victims.size()) {
      Evict(cache_.Plan(tier, victims.size() - cache_.Free(tier), cache_.Droppable(tier)), tier);
    }
    const std::size_t fit = std::min<std::size_t>(victims.size(), cache_.Free(tier));
    Cache::Unplan({victims.begin() + static_cast<std::ptrdiff_t>(fit), victims.end()});
    for (std::size_t i = 0; i < fit; ++i) {
      cache_.SetValid(*victims[i], tier);
      started.push_back(victims[i]);
    }
    return fit;
  }
  /// Copies into `tier` have finished: they leave the tier above.
  void Arrive(const std::vector<Block*>& victims, std::size_t tier) {
    for (Block* victim : victims) {
      cache_.File(*victim, tier);
      victim->leaving = false;
      cache_.Lose(*victim, tier - 1);
    }
  }
  void DropDirty() {
    const std::vector<Block*> victims =
        cache_.Plan(kHbm, need_ - granted_, [](const Block&) { return true; });
    granted_ += victims.size();
    Evict(victims, kHbm);
  }

  /// The turn's new blocks are there and findable; then its session waits or is over.
  void FinishTurn(std::uint32_t index, std::vector<std::uint64_t>& ids, std::vector<Block*> path,
                  Session& session) {
    const std::uint32_t number = schedule_.session[index];
    const std::uint64_t scope = trace_.requests[index].scope;
    for (std::size_t i = path.size(); i < ids.size(); ++i) {
      Block* block = cache_.Create(path.empty() ? nullptr : path.back());
      cache_.Publish(*block, scope, ids[i]);
      path.push_back(block);
    }
    if (!path.empty()) cache_.Claim(number, path.back());
    const std::uint32_t next = schedule_.next_turn[index];
    session.paused = next != kNoRequest && trace_.requests[next].gap_kind == GapKind::kTool;
    if (session.paused) {
      session.tail = cache_.Create(path.empty() ? nullptr : path.back());
      tails_[session.tail] = number;
      session.tail->held = false;
      cache_.File(*session.tail, kHbm);
    }
    cache_.Touch(path);
    for (auto block = path.rbegin(); block != path.rend(); ++block) {
      (*block)->held = false;
      cache_.File(**block, kHbm);
    }
    session.ids = std::move(ids);
    if (next == kNoRequest) cache_.Claim(number, nullptr);
  }

  const Trace& trace_;
  const Schedule& schedule_;
  Cache cache_;
  std::vector<std::size_t> tier_of_;  // the cache's tier -> hbm, dram, nvme
  std::uint32_t max_blocks_;
  std::vector<Session> sessions_;
  std::unordered_map<Block*, std::uint32_t> tails_;
  std::size_t need_ = 0;     // slots that write-back has to free for the turn being placed
  std::size_t granted_ = 0;  // of those, freed
  bool placed_ = false;
  Hits hits_;
};

}  // namespace

Hits Simulate(const Trace& trace, const Schedule& schedule,
              const std::array<std::uint32_t, kTiers>& tier_blocks) {
  std::vector<std::uint32_t> slots;
  std::vector<std::size_t> tier_of;
  for (std::size_t t = 0; t < kTiers; ++t) {
    if (tier_blocks[t] == 0) continue;
    slots.push_back(tier_blocks[t]);
    tier_of.push_back(t);
  }
  return Server(trace, schedule, slots, tier_of).Run();
}

}  // namespace agent_replay::oracle
