// A continuous-batching scheduler of one's own on tidepool. 48 agents in three groups share their
// group's instructions; each generates, calls a tool, waits, goes on and finishes. HBM holds about
// a quarter of what all of them need, so requests queue, blocks move to DRAM and back, and running
// sequences are preempted. The "model" keeps 4 bytes of KV a token and reads them through the block
// tables: one wrong byte anywhere and an output differs from the reference at the end.
#include <tidepool/tidepool.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
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
  std::uint32_t left = 0;   // tokens to generate in this turn
  std::uint64_t due = 0;    // step at which the tool returns
  std::size_t missing = 0;  // tokens that no tier has
  Sequence seq;             // paused while the request waits for a tool or was preempted
  LoadTicket ticket;
  std::uint32_t from = 0, to = 0;  // positions computed by the step in flight
  Token sampled = 0;
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
    const bool ran = std::exchange(r.from, r.to) < r.to;
    if (r.state != State::kRunning || !ran) return;
    if (r.to != r.text.size()) return;  // its prompt is not through yet
    r.generated.push_back(static_cast<std::uint32_t>(r.text.size()));
    r.text.push_back(r.sampled);
    if (--r.left != 0) return;
    if (++r.turn == kTurns) {
      r.seq.Finish();
      r.state = State::kDone;
      return;
    }
    r.seq.Pause(
        {.wait = WaitClass::kTool, .tool = 1, .expected_return = std::chrono::milliseconds(5)});
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
    // Whoever ranks behind it goes; if that frees too little, the request itself.
    std::size_t reclaimed = 0;
    for (const ReclaimChoice& c : cache_.PlanReclaim(blocks * cache_.block_bytes(), r.seq)) {
      Request& victim = *std::find_if(requests.begin(), requests.end(), [&](const Request& each) {
        return each.state == State::kRunning && each.seq.id() == c.sequence;
      });
      Preempt(victim, c.mode);
      reclaimed += c.blocks;
    }
    if (reclaimed < blocks) Preempt(r, PreemptMode::kAuto);
  }

  void Preempt(Request& r, PreemptMode mode) {
    r.seq.Preempt(mode);
    r.state = State::kWaiting;
    ++preempted_;
  }

  // Priority first, then who has least to compute: Probe asks without touching anything.
  void AdmitWaiting(std::vector<Request>& requests) {
    std::vector<Request*> order;
    for (Request& r : requests) {
      if (r.state != State::kWaiting) continue;
      r.missing = r.text.size() - cache_.Probe(AdmitRequestOf(r)).tokens;
      order.push_back(&r);
    }
    std::stable_sort(order.begin(), order.end(), [](const Request* a, const Request* b) {
      return a->priority != b->priority ? a->priority > b->priority : a->missing < b->missing;
    });
    for (Request* r : order) {
      Admission a = r->seq.alive() ? r->seq.Resume() : cache_.Admit(AdmitRequestOf(*r));
      if (a.outcome == Outcome::kBusy) return;  // in the demand ledger; those behind it wait too
      if (!a.granted()) Die("admit", ToString(a.outcome));
      if (!r->seq.alive()) r->seq = std::move(a.sequence);
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
      if (r.from == r.to) continue;
      budget -= r.to - r.from;
      computed_ += r.to - r.from;
      r.sampled = device_.Forward(r.seq.block_table(), r.text, r.from, r.to);
      if (const Outcome o = r.seq.Commit(r.to, fence); o != Outcome::kOk)
        Die("commit", ToString(o));
    }
    if (budget == kStepTokens) cache_.WaitIdle(std::chrono::milliseconds(10));  // only copies now
    cache_.DrainEvents(events_);  // for a router: they come in order, without a gap
    for (const Event& e : events_.events) {
      if (e.number != ++event_) Die("events", "one is missing");
    }
  }

  static AdmitRequest AdmitRequestOf(const Request& r) {
    return {.session = r.id,
            .request = r.id,
            .tokens = r.text,
            .priority = r.priority,
            .timeline = kTimeline};
  }

  KvCacheManager& cache_;
  Device& device_;
  std::uint64_t step_ = 0;
  StepWork work_;
  EventBatch events_;
  std::uint64_t event_ = 0, preempted_ = 0, computed_ = 0;
};

void Scheduler::Print() const {
  const ManagerStats& s = cache_.stats();
  const auto line = [](const char* what, std::uint64_t n) {
    std::printf("%-42s %8llu\n", what, static_cast<unsigned long long>(n));
  };
  line("steps", step_);
  line("sequences preempted", preempted_);
  line("tokens of new prompts", s.queried_tokens);
  line("  of these found in HBM", s.hit_tokens[0]);
  line("  of these loaded from DRAM", s.hit_tokens[1]);
  line("tokens of resumed sequences", s.readmit_queried_tokens);
  line("  of these still there", s.readmit_hit_tokens);
  line("tokens computed, outputs included", computed_);
  line("blocks copied down", s.offloads);
  line("blocks copied up", s.loads);
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
    if (i == 20'000) Die("scheduler", "requests are still unfinished");
    scheduler.Step(requests);
  }
  scheduler.Print();
  if (!std::all_of(requests.begin(), requests.end(), Correct)) Die("check", "an output is wrong");
  if (const Status audit = (*created)->Audit(); !audit.ok()) Die("audit", audit.ToString());
  std::printf("all %u outputs equal the reference\n", kAgents);
  return 0;
}
