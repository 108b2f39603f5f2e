// A continuous-batching scheduler of one's own on tidepool. 48 agents in three groups share their
// group's instructions; each generates, calls a tool, waits, goes on and finishes. HBM holds about a
// third of what all of them need, so requests queue, blocks move to DRAM and back, and running
// sequences are preempted. The "model" keeps 4 bytes of KV a token and reads them through the block
// tables: one wrong byte anywhere and an output differs from the reference at the end.
#include <tidepool/tidepool.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace tidepool;

constexpr std::uint32_t kBlockTokens = 16;
constexpr std::uint32_t kHbmBlocks = 160;
constexpr std::uint32_t kDramBlocks = 400;
constexpr std::uint32_t kStepTokens = 512;  // computed in one step, over all requests
constexpr std::uint32_t kAgents = 48;
constexpr std::uint32_t kTurns = 3;
constexpr std::uint64_t kToolSteps = 12;  // a tool call takes this long
constexpr std::uint64_t kMaxSteps = 20'000;
constexpr TimelineId kTimeline = 0;

[[noreturn]] void Die(const char* what, std::string_view why) {
  std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(why.size()), why.data());
  std::exit(1);
}

// --- The model: the KV of a token is a function of the token and of the KV before it. ---

std::uint32_t Kv(std::uint32_t before, Token token) {
  const std::uint32_t x = (before ^ static_cast<std::uint32_t>(token)) * 0x9E3779B1u;
  return x ^ (x >> 15);
}
Token Sample(std::uint32_t kv) { return static_cast<Token>(kv % 32'000); }

class Device {
 public:
  explicit Device(Arena arena) : arena_(std::move(arena)) {}

  void Execute(const StepWork& work) {
    for (SlotId slot : work.zero) std::memset(arena_.At(slot, 0), 0, arena_.layer_bytes);
    for (const DeviceCopy& copy : work.copies) {
      std::memcpy(arena_.At(copy.destination, 0), arena_.At(copy.source, 0), arena_.layer_bytes);
    }
  }
  // Computes the KV of positions [begin, end) of a sequence and samples what follows.
  Token Forward(const BlockTable& table, std::span<const Token> text, std::uint32_t begin,
                std::uint32_t end) {
    std::uint32_t kv = begin == 0 ? 0 : At(table, begin - 1);
    for (std::uint32_t p = begin; p < end; ++p) At(table, p) = kv = Kv(kv, text[p]);
    return Sample(kv);
  }

 private:
  std::uint32_t& At(const BlockTable& table, std::uint32_t position) {
    std::byte* block = arena_.At(SlotId(table.slots[position / kBlockTokens]), 0);
    return reinterpret_cast<std::uint32_t*>(block)[position % kBlockTokens];
  }
  Arena arena_;
};

// --- Requests. ---

enum class State { kWaiting, kRunning, kTool, kDone };

struct Request {
  std::uint64_t id = 0;  // of the request and of its session
  Priority priority = Priority::kNormal;
  State state = State::kWaiting;
  std::vector<Token> text;               // prompt, outputs and tool results so far
  std::vector<std::uint32_t> generated;  // positions of the outputs in it
  std::uint32_t turn = 0;
  std::uint32_t left = 0;  // tokens to generate in this turn
  std::uint64_t due = 0;   // step at which the tool returns
  Sequence seq;            // paused while the request waits for a tool or was preempted
  LoadTicket ticket;
  std::uint32_t from = 0, to = 0;  // positions computed by the step in flight
  Token sampled = 0;
};

struct Tally {
  std::uint32_t requests = 0, preempted = 0;
  std::uint64_t ready = 0, loaded = 0, computed = 0;
};

std::vector<Request> MakeRequests() {
  std::vector<Request> requests(kAgents);
  for (std::uint32_t i = 0; i < kAgents; ++i) {
    Request& r = requests[i];
    r.id = i + 1;
    r.priority = i % 4 == 0 ? Priority::kInteractive : Priority::kBackground;
    for (std::uint32_t p = 0; p < 100; ++p) r.text.push_back(static_cast<Token>(i % 3 * 1000 + p));
    for (std::uint32_t p = 0; p < 20 + i; ++p) r.text.push_back(static_cast<Token>(i * 100 + p));
    r.left = 24 + i % 16;
  }
  return requests;
}

// --- The scheduler. ---

class Scheduler {
 public:
  Scheduler(KvCacheManager& cache, Device& device) : cache_(cache), device_(device) {}

  void Step(std::vector<Request>& requests) {
    cache_.CompleteStep(kTimeline, step_);  // the device is done with it: commits publish
    for (Request& r : requests) Harvest(r);
    cache_.Poll();
    ++step_;
    for (Request& r : requests) {
      if (r.state == State::kRunning) Grow(r, requests);
    }
    AdmitWaiting(requests);
    Launch(requests);
  }

  void Print() const;

 private:
  // Takes what the finished step sampled; ends turns.
  void Harvest(Request& r) {
    if (r.state == State::kTool && step_ >= r.due) {
      for (std::uint32_t i = 0; i < 30; ++i) r.text.push_back(static_cast<Token>(r.id * 50 + i));
      r.left = 16;
      r.state = State::kWaiting;
    }
    if (r.state != State::kRunning || r.to == 0) return;
    if (std::exchange(r.to, 0) != r.text.size()) return;  // its prompt is not through yet
    r.generated.push_back(static_cast<std::uint32_t>(r.text.size()));
    r.text.push_back(r.sampled);
    if (--r.left != 0) return;
    if (++r.turn == kTurns) {
      r.seq.Finish();
      r.state = State::kDone;
      return;
    }
    r.seq.Pause({.wait = WaitClass::kTool, .tool = 1, .expected_return = std::chrono::milliseconds(5)});
    r.state = State::kTool;
    r.due = step_ + kToolSteps;
  }

  // Hands new tokens to the sequence: the last output, a tool's result, what a failed load lost.
  void Grow(Request& r, std::vector<Request>& requests) {
    const Outcome loads = r.ticket.Ready();
    if (loads == Outcome::kPending) return;
    r.ticket = LoadTicket();
    const std::uint32_t have = r.seq.tokens();
    const Outcome outcome = r.seq.Append(std::span<const Token>(r.text).subspan(have));
    if (outcome == Outcome::kOk) return;
    if (outcome != Outcome::kBusy) Die("append", ToString(outcome));
    // Refused although every clean block has gone. If idle ones are on their way down, wait.
    const auto blocks = static_cast<std::uint32_t>(r.text.size() - have) / kBlockTokens + 1;
    const PoolCounts counts = cache_.counts();
    if (counts.cached + counts.claimed + counts.moving >= blocks) return;
    for (const ReclaimChoice& c : cache_.PlanReclaim(blocks * cache_.block_bytes(), r.priority)) {
      Preempt(c, requests);
    }
  }

  void Preempt(const ReclaimChoice& choice, std::vector<Request>& requests) {
    for (Request& r : requests) {
      if (r.state != State::kRunning || r.seq.id() != choice.sequence) continue;
      const bool offload = choice.action == ReclaimAction::kOffload;
      r.seq.Preempt(offload ? PreemptMode::kOffload : PreemptMode::kRecompute);
      r.state = State::kWaiting;
      ++TallyOf(r).preempted;
    }
  }

  // Priority first, then who has least to compute: Probe asks without touching anything.
  void AdmitWaiting(std::vector<Request>& requests) {
    std::vector<std::tuple<int, std::size_t, std::uint64_t, Request*>> order;
    for (Request& r : requests) {
      if (r.state != State::kWaiting) continue;
      const ProbeResult probe = cache_.Probe(AdmitRequestOf(r));
      if (probe.fit == Fit::kNeverFits) Die("probe", "a request never fits");
      order.emplace_back(-static_cast<int>(r.priority), r.text.size() - probe.tokens, r.id, &r);
    }
    std::sort(order.begin(), order.end());
    for (auto& [priority, missing, id, r] : order) {
      Admission a = r->seq.alive() ? r->seq.Resume() : cache_.Admit(AdmitRequestOf(*r));
      if (a.outcome == Outcome::kBusy) return;  // in the demand ledger; those behind it wait too
      if (!a.granted()) Die("admit", ToString(a.outcome));
      if (!r->seq.alive()) {
        r->seq = std::move(a.sequence);
        ++TallyOf(*r).requests;
      }
      TallyOf(*r).ready += a.ready_tokens;
      TallyOf(*r).loaded += a.loading_tokens;
      r->ticket = std::move(a.ticket);
      r->state = State::kRunning;
      Grow(*r, requests);
    }
  }

  // Runs one step on the device; its fence protects every block it reads or writes.
  void Launch(std::vector<Request>& requests) {
    const Fence fence{kTimeline, step_};
    cache_.DrainStepWork(fence, work_);
    device_.Execute(work_);
    std::uint32_t budget = kStepTokens;
    for (Request& r : requests) {
      if (r.state != State::kRunning || r.ticket.Ready() != Outcome::kOk) continue;
      r.from = r.seq.committed();
      r.to = std::min(r.seq.tokens(), r.from + budget);
      if (r.from == r.to) r.to = 0;
      if (r.to == 0) continue;
      budget -= r.to - r.from;
      r.sampled = device_.Forward(r.seq.block_table(), r.text, r.from, r.to);
      if (const Outcome o = r.seq.Commit(r.to, fence); o != Outcome::kOk) Die("commit", ToString(o));
      TallyOf(r).computed += r.to - r.from;
    }
    if (budget == kStepTokens) cache_.WaitIdle(std::chrono::milliseconds(10));  // only copies now
    cache_.DrainEvents(events_);
    for (const Event& e : events_.events) ++(e.kind == EventKind::kStored ? stored_ : removed_);
  }

  static AdmitRequest AdmitRequestOf(const Request& r) {
    return {.session = r.id, .request = r.id, .tokens = r.text, .priority = r.priority,
            .timeline = kTimeline};
  }
  Tally& TallyOf(const Request& r) { return tally_[static_cast<std::size_t>(r.priority)]; }

  KvCacheManager& cache_;
  Device& device_;
  std::uint64_t step_ = 0;
  StepWork work_;
  EventBatch events_;
  std::array<Tally, kPriorityCount> tally_;
  std::uint64_t stored_ = 0, removed_ = 0;
};

void Scheduler::Print() const {
  using Number = unsigned long long;
  std::printf("class        requests  preempted  ready tokens  from DRAM  computed\n");
  const auto row = [](const char* name, const Tally& t) {
    std::printf("%-12s %8u  %9u  %12llu  %9llu  %8llu\n", name, t.requests, t.preempted,
                Number{t.ready}, Number{t.loaded}, Number{t.computed});
  };
  row("interactive", tally_[static_cast<std::size_t>(Priority::kInteractive)]);
  row("background", tally_[static_cast<std::size_t>(Priority::kBackground)]);
  std::printf("%llu steps, %llu blocks written back, %llu loaded, %llu stored and %llu removed events\n",
              Number{step_}, Number{cache_.stats().offloads}, Number{cache_.stats().loads},
              Number{stored_}, Number{removed_});
}

// Recomputes every output without a cache.
bool Correct(const Request& r) {
  std::uint32_t kv = 0;
  auto next = r.generated.begin();
  for (std::uint32_t p = 0; p < r.text.size(); ++p) {
    if (next != r.generated.end() && *next == p && r.text[*next++] != Sample(kv)) return false;
    kv = Kv(kv, r.text[p]);
  }
  return r.state == State::kDone && next == r.generated.end();
}

}  // namespace

int main() {
  // The engine owns its HBM: here host memory stands in for a tensor.
  StatusOr<Arena> arena = AllocateHostArena(kHbmBlocks, 1, kBlockTokens * sizeof(std::uint32_t));
  if (!arena.ok()) Die("arena", arena.status().ToString());
  ManagerOptions options;
  options.layout = KvLayout::Opaque(kBlockTokens * sizeof(std::uint32_t), kBlockTokens);
  options.tiers = {Hbm(*arena), Dram(kDramBlocks * 64)};
  options.event_log_capacity = 4096;
  StatusOr<std::unique_ptr<KvCacheManager>> created = KvCacheManager::Create(std::move(options));
  if (!created.ok()) Die("create", created.status().ToString());

  Device device(*arena);
  Scheduler scheduler(**created, device);
  std::vector<Request> requests = MakeRequests();
  const auto done = [](const Request& r) { return r.state == State::kDone; };
  for (std::uint64_t i = 0; !std::all_of(requests.begin(), requests.end(), done); ++i) {
    if (i == kMaxSteps) Die("scheduler", "requests are still unfinished");
    scheduler.Step(requests);
  }
  scheduler.Print();
  if (!std::all_of(requests.begin(), requests.end(), Correct)) Die("check", "an output is wrong");
  if (const Status audit = (*created)->Audit(); !audit.ok()) Die("audit", audit.ToString());
  std::printf("all %u outputs equal the reference\n", kAgents);
  return 0;
}
