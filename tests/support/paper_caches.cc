#include "tests/support/paper_caches.h"

#include <algorithm>
#include <fstream>
#include <list>
#include <sstream>
#include <unordered_map>

#include "tidepool/testing/flat_cache.h"

namespace tidepool::testing {
namespace {

struct KeyHash {
  std::size_t operator()(const PrefixHash& key) const noexcept {
    return key.high * 0x9E3779B97F4A7C15u ^ key.low;
  }
};

// Keys from the least to the most recently added.
class KeyList {
 public:
  [[nodiscard]] bool Has(const PrefixHash& key) const { return places_.count(key) != 0; }
  [[nodiscard]] std::size_t size() const { return order_.size(); }
  void Add(const PrefixHash& key) {
    Remove(key);
    places_[key] = order_.insert(order_.end(), key);
  }
  bool Remove(const PrefixHash& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return false;
    order_.erase(found->second);
    places_.erase(found);
    return true;
  }
  PrefixHash TakeOldest() {
    const PrefixHash key = order_.front();
    Remove(key);
    return key;
  }

 private:
  std::list<PrefixHash> order_;
  std::unordered_map<PrefixHash, std::list<PrefixHash>::iterator, KeyHash> places_;
};

double Ratio(const KeyList& a, const KeyList& b) {
  return static_cast<double>(a.size()) / static_cast<double>(b.size());
}

// The names are the paper's.
class Arc {
 public:
  explicit Arc(std::size_t capacity) : c_(capacity) {}

  bool Reference(const PrefixHash& x) {
    if (t1_.Remove(x) || t2_.Has(x)) {  // Case I
      t2_.Add(x);
      return true;
    }
    if (b1_.Has(x)) {  // Case II
      p_ = std::min(static_cast<double>(c_), p_ + std::max(Ratio(b2_, b1_), 1.0));
      Replace(x);
      b1_.Remove(x);
      t2_.Add(x);
    } else if (b2_.Has(x)) {  // Case III
      p_ = std::max(0.0, p_ - std::max(Ratio(b1_, b2_), 1.0));
      Replace(x);
      b2_.Remove(x);
      t2_.Add(x);
    } else {  // Case IV
      MakeRoomForNew(x);
      t1_.Add(x);
    }
    return false;
  }

 private:
  void MakeRoomForNew(const PrefixHash& x) {
    if (t1_.size() + b1_.size() == c_) {
      if (t1_.size() < c_) {
        b1_.TakeOldest();
        Replace(x);
      } else {
        t1_.TakeOldest();
      }
      return;
    }
    const std::size_t total = t1_.size() + t2_.size() + b1_.size() + b2_.size();
    if (total < c_) return;
    if (total == 2 * c_) b2_.TakeOldest();
    Replace(x);
  }
  void Replace(const PrefixHash& x) {
    const auto t1 = static_cast<double>(t1_.size());
    if (t1_.size() >= 1 && (t1 > p_ || (b2_.Has(x) && t1 == p_))) {
      b1_.Add(t1_.TakeOldest());
    } else {
      b2_.Add(t2_.TakeOldest());
    }
  }

  std::size_t c_;
  double p_ = 0;
  KeyList t1_, t2_, b1_, b2_;
};

class FaultyArc {
 public:
  explicit FaultyArc(std::size_t capacity) : c_(capacity) {}

  bool Reference(const PrefixHash& x) {
    if (t1_.Remove(x) || t2_.Has(x)) {
      t2_.Add(x);
      return true;
    }
    Adapt(x);
    if (t1_.size() + t2_.size() == c_ && !Evict()) return false;
    Adapt(x);
    b1_.Remove(x);
    b2_.Remove(x);
    t1_.Add(x);
    return false;
  }

 private:
  void Adapt(const PrefixHash& x) {
    if (b1_.Has(x)) p_ = std::min(static_cast<double>(c_), p_ + std::max(Ratio(b2_, b1_), 1.0));
    if (b2_.Has(x)) p_ = std::max(0.0, p_ - std::max(Ratio(b1_, b2_), 1.0));
  }
  bool Evict() {
    const bool from_t1 = static_cast<double>(t1_.size()) >= p_;
    KeyList& from = from_t1 ? t1_ : t2_;
    KeyList& ghosts = from_t1 ? b1_ : b2_;
    if (from.size() == 0) return false;
    ghosts.Add(from.TakeOldest());
    if (ghosts.size() > c_) ghosts.TakeOldest();
    return true;
  }

  std::size_t c_;
  double p_ = 0;
  KeyList t1_, t2_, b1_, b2_;
};

class Sieve {
 public:
  explicit Sieve(std::size_t capacity) : capacity_(capacity) {}

  bool Reference(const PrefixHash& x) {
    const auto found = places_.find(x);
    if (found != places_.end()) {
      found->second->visited = true;
      return true;
    }
    if (queue_.size() == capacity_) Evict();
    places_[x] = queue_.insert(queue_.begin(), Object{x, false});
    return false;
  }

 private:
  struct Object {
    PrefixHash key;
    bool visited;
  };
  using Place = std::list<Object>::iterator;

  // Towards the head, end() standing for null.
  [[nodiscard]] Place Before(Place object) {
    return object == queue_.begin() ? queue_.end() : std::prev(object);
  }
  void Evict() {
    Place object = hand_ == queue_.end() ? std::prev(queue_.end()) : hand_;
    while (object->visited) {
      object->visited = false;
      object = Before(object);
      if (object == queue_.end()) object = std::prev(queue_.end());
    }
    hand_ = Before(object);
    places_.erase(object->key);
    queue_.erase(object);
  }

  std::size_t capacity_;
  std::list<Object> queue_;  // the head, where objects are inserted, comes first
  Place hand_ = queue_.end();
  std::unordered_map<PrefixHash, Place, KeyHash> places_;
};

template <typename Cache>
std::uint64_t Misses(const References& references, std::size_t capacity) {
  Cache cache(capacity);
  std::uint64_t misses = 0;
  for (const PrefixHash& key : references) misses += !cache.Reference(key);
  return misses;
}

// SplitMix64: integers only, so that a stream is the same everywhere.
class Integers {
 public:
  explicit Integers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

 private:
  std::uint64_t state_;
};

// Numbers below n, number i with weight 1 / (i + 1).
class Zipf {
 public:
  explicit Zipf(std::uint64_t n) {
    for (std::uint64_t i = 0; i < n; ++i) {
      sums_.push_back((i == 0 ? 0 : sums_.back()) + (1u << 24) / (i + 1));
    }
  }
  [[nodiscard]] std::uint64_t Sample(Integers& random) const {
    const std::uint64_t at = random.Next() % sums_.back();
    return static_cast<std::uint64_t>(std::upper_bound(sums_.begin(), sums_.end(), at) -
                                      sums_.begin());
  }

 private:
  std::vector<std::uint64_t> sums_;
};

}  // namespace

std::uint64_t LruMisses(const References& references, std::size_t capacity) {
  KeyList cache;
  std::uint64_t misses = 0;
  for (const PrefixHash& key : references) {
    const bool hit = cache.Has(key);
    if (!hit && cache.size() == capacity) cache.TakeOldest();
    cache.Add(key);
    misses += !hit;
  }
  return misses;
}

std::uint64_t ArcMisses(const References& references, std::size_t capacity) {
  return Misses<Arc>(references, capacity);
}
std::uint64_t FaultyArcMisses(const References& references, std::size_t capacity) {
  return Misses<FaultyArc>(references, capacity);
}
std::uint64_t SieveMisses(const References& references, std::size_t capacity) {
  return Misses<Sieve>(references, capacity);
}

References ReadFlatReferences(const std::string& ttrace_path) {
  References references;
  std::ifstream file(ttrace_path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string time;
    std::string skipped;
    std::string ranges;
    std::uint64_t scope = 0;
    fields >> time >> scope;
    for (int field = 2; field < 10; ++field) fields >> skipped;
    fields >> ranges;
    std::istringstream list(ranges == "-" ? "" : ranges);
    for (std::string range; std::getline(list, range, ',');) {
      const std::size_t dash = range.find('-');
      const std::uint64_t first = std::stoull(range);
      const std::uint64_t last =
          dash == std::string::npos ? first : std::stoull(range.substr(dash + 1));
      for (std::uint64_t id = first; id <= last; ++id) references.push_back(FlatKey(scope, id));
    }
  }
  return references;
}

References GeneratedReferences(std::uint64_t seed, std::size_t count) {
  constexpr std::uint64_t kDocumentBlocks = 150;
  constexpr std::uint64_t kFirstDocument = 1'000'000;
  Integers random(seed);
  const Zipf keys(8'000);
  const Zipf documents(400);
  References references;
  while (references.size() < count) {
    if (random.Next() % 128 != 0) {
      references.push_back(FlatKey(0, keys.Sample(random)));
      continue;
    }
    const std::uint64_t first = kFirstDocument + documents.Sample(random) * kDocumentBlocks;
    for (std::uint64_t i = 0; i < kDocumentBlocks; ++i) references.push_back(FlatKey(0, first + i));
  }
  references.resize(count);
  return references;
}

}  // namespace tidepool::testing
