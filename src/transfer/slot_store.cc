#include "src/transfer/slot_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/str_cat.h"
#include "tidepool/tier.h"

namespace tidepool {
namespace {

using internal::StrCat;

constexpr std::uint64_t kReadBytes = 1u << 20;  // of one read while the file is searched
constexpr std::uint32_t kReadDepth = 16;
constexpr std::uint32_t kMaxRetries = 8;

constexpr std::uint64_t RoundDown(std::uint64_t value, std::uint64_t unit) {
  return value / unit * unit;
}
constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t unit) {
  return RoundDown(value + unit - 1, unit);
}

/// Reads many ranges of a file, some at a time, each whole or to the end of the file.
class RangeReader {
 public:
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  // at most `largest`
    std::uint64_t tag = 0;
  };
  /// `data` is shorter than the range behind the end of the file, and after an error.
  using OnRead = std::function<void(const Range&, std::span<const std::byte> data)>;

  static StatusOr<RangeReader> Make(FileIo* io, std::uint64_t largest) {
    const std::uint64_t unit = std::max<std::uint64_t>(kSlotFilePageBytes, io->Alignment());
    const std::uint32_t depth = std::clamp(io->Depth(), 1u, kReadDepth);
    // An unaligned range takes up to one unit more at either end.
    StatusOr<Arena> memory = AllocateHostArena(depth, 1, RoundUp(largest, unit) + 2 * unit);
    if (!memory.ok()) return memory.status();
    return RangeReader(io, unit, *std::move(memory));
  }

  void Read(std::span<const Range> ranges, const OnRead& on_read) {
    std::size_t next = 0;
    std::size_t over = 0;
    while (over < ranges.size()) {
      to_start_.clear();
      for (std::uint32_t i = 0; i < reads_.size(); ++i) {
        if (!reads_[i].busy && next < ranges.size()) Begin(i, ranges[next++]);
        if (reads_[i].busy && !reads_[i].started) to_start_.push_back(Rest(i));
      }
      const std::size_t started = io_->Start(to_start_);
      for (const FileOp& op : std::span(to_start_).first(started)) reads_[op.tag].started = true;
      results_.clear();
      io_->Reap(results_, true);
      for (const FileOpResult& result : results_) {
        if (End(result)) {
          Read_& read = reads_[result.tag];
          read.busy = false;
          ++over;
          on_read(read.range, Data(static_cast<std::uint32_t>(result.tag)));
        }
      }
    }
  }

 private:
  struct Read_ {
    Range range;
    std::uint64_t begin = 0;  // aligned
    std::uint64_t bytes = 0;
    std::uint64_t done = 0;
    std::uint32_t retries = 0;
    bool busy = false;
    bool started = false;
  };

  RangeReader(FileIo* io, std::uint64_t unit, Arena memory)
      : io_(io), unit_(unit), memory_(std::move(memory)), reads_(memory_.slots) {}

  void Begin(std::uint32_t i, const Range& range) {
    const std::uint64_t begin = RoundDown(range.offset, unit_);
    reads_[i] = {.range = range,
                 .begin = begin,
                 .bytes = RoundUp(range.offset + range.bytes, unit_) - begin,
                 .busy = true};
  }
  FileOp Rest(std::uint32_t i) const {
    const Read_& read = reads_[i];
    return {.tag = i,
            .data = memory_.At(SlotId(i), 0) + read.done,
            .bytes = read.bytes - read.done,
            .offset = read.begin + read.done};
  }
  // True if the read is over.
  bool End(const FileOpResult& result) {
    if (result.tag >= reads_.size() || !reads_[result.tag].started) return false;
    Read_& read = reads_[result.tag];
    read.started = false;
    if (result.result > 0) {
      const std::uint64_t reached =
          std::min(read.bytes, read.done + static_cast<std::uint64_t>(result.result));
      if (reached >= read.range.offset - read.begin + read.range.bytes) {
        read.done = reached;
        return true;
      }
      const std::uint64_t aligned = RoundDown(reached, io_->Alignment());
      read.retries = aligned > read.done ? 0 : read.retries + 1;
      read.done = aligned;
    } else if (result.result == -EINTR || result.result == -EAGAIN) {
      ++read.retries;
    } else {
      return true;  // the end of the file, or an error
    }
    return read.retries > kMaxRetries;
  }
  std::span<const std::byte> Data(std::uint32_t i) const {
    const Read_& read = reads_[i];
    const std::uint64_t lead = read.range.offset - read.begin;
    const std::uint64_t have = read.done > lead ? read.done - lead : 0;
    return {memory_.At(SlotId(i), 0) + lead, std::min(have, read.range.bytes)};
  }

  FileIo* io_;
  std::uint64_t unit_;
  Arena memory_;
  std::vector<Read_> reads_;
  std::vector<FileOp> to_start_;
  std::vector<FileOpResult> results_;
};

bool AllZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

FileTierStats FileCounters::Read() const noexcept {
  return {.payload_bytes_written = payload_bytes_written,
          .header_bytes_written = header_bytes_written,
          .payload_bytes_read = payload_bytes_read,
          .headers_written = headers_written,
          .syncs = syncs,
          .errors = errors,
          .checksum_failures = checksum_failures,
          .no_space = no_space};
}

Status SlotStore::Problem(std::string_view what, std::int64_t result) const {
  const std::string why = result < 0 ? std::strerror(static_cast<int>(-result)) : "cut short";
  return absl::UnavailableError(StrCat("cannot ", what, ": ", why));
}

// --- Opening. ---

Status SlotStore::Open(SlotFileLayout wanted, std::uint64_t file_bytes, std::uint64_t epoch) {
  if (Status status = CheckLayout(wanted); !status.ok()) return status;
  SlotFilePage page{};
  const std::int64_t read = file_bytes == 0 ? 0 : io_->ReadNow(page, 0);
  if (read < 0) return Problem("read the superblock", read);
  layout_ = std::move(wanted);
  if (AllZero(page)) {
    if (Status status = Create(file_bytes); !status.ok()) return status;
  } else {
    StatusOr<SlotFileLayout> found =
        ParseSuperblock(std::span(page).first(static_cast<std::size_t>(read)));
    if (absl::IsNotFound(found.status())) {
      return absl::FailedPreconditionError("is not empty and no file of tidepool's: left as it is");
    }
    if (!found.ok()) return found.status();
    if (Status status = SameLayout(*found, layout_); !status.ok()) return status;
    if (file_bytes < layout_.file_bytes()) {  // somebody has cut it off
      if (Status status = io_->Reserve(layout_.file_bytes()); !status.ok()) return status;
    }
  }
  if (Status status = ReadState(); !status.ok()) return status;
  return Invalidate({.epoch = epoch});
}

// The superblock comes last: without it the file is empty, whatever else there is.
Status SlotStore::Create(std::uint64_t file_bytes) {
  if (Status status = io_->Reserve(layout_.file_bytes()); !status.ok()) return status;
  if (file_bytes != 0) {  // a device, or a creation that did not come to its end
    const std::vector<std::byte> zeros(kReadBytes);
    for (std::uint64_t at = 0; at < layout_.payloads_offset();) {
      const std::uint64_t bytes = std::min(kReadBytes, layout_.payloads_offset() - at);
      const std::int64_t rc = io_->WriteNow(std::span(zeros).first(bytes), at);
      if (rc != static_cast<std::int64_t>(bytes)) return Problem("clear the headers", rc);
      at += bytes;
    }
  }
  {
    MutexLock lock(mutex_);
    state_ = {};
    if (Status status = WriteState(); !status.ok()) return status;
  }
  const SlotFilePage page = EncodeSuperblock(layout_);
  const std::int64_t rc = io_->WriteNow(page, 0);
  if (rc != static_cast<std::int64_t>(page.size())) return Problem("write the superblock", rc);
  const int synced = io_->SyncNow();
  return synced == 0 ? absl::OkStatus() : Problem("sync", synced);
}

Status SlotStore::ReadState() {
  std::array<std::byte, 2 * kSlotFilePageBytes> pages{};
  const std::int64_t rc = io_->ReadNow(pages, kSlotFilePageBytes);
  if (rc < 0) return Problem("read the state", rc);
  StatusOr<SlotFileState> state = ParseStatePages(pages);
  if (!state.ok()) {
    return absl::DataLossError(
        StrCat("what was dropped is not known: ", std::string(state.status().message())));
  }
  MutexLock lock(mutex_);
  state_ = *std::move(state);
  return absl::OkStatus();
}

// To both pages, one after the other, so that damage to either brings nothing back.
Status SlotStore::WriteState() {
  state_written_ = false;
  for (int page = 0; page < 2; ++page) {
    if (Status status = WriteStatePage(); !status.ok()) return status;
  }
  state_written_ = true;
  return absl::OkStatus();
}

// One that fails is tried again in the same place: the other page may be the only sound one.
Status SlotStore::WriteStatePage() {
  ++state_.sequence;
  const SlotFilePage page = EncodeState(state_);
  Status status;
  const std::int64_t rc = io_->WriteNow(page, StatePageOffset(state_.sequence));
  if (rc != static_cast<std::int64_t>(page.size())) {
    status = Problem("write the state", rc);
  } else if (const int synced = io_->SyncNow(); synced != 0) {
    status = Problem("sync the state", synced);
  }
  ++counters_->syncs;
  if (!status.ok()) --state_.sequence;
  return status;
}

// --- What is in it. ---

namespace {

void CountIn(RecoveryReport& report, HeaderState state) {
  switch (state) {
    case HeaderState::kEmpty:
      ++report.empty;
      break;
    case HeaderState::kTorn:
      ++report.torn;
      break;
    case HeaderState::kMisplaced:
      ++report.misplaced;
      break;
    case HeaderState::kForeign:
      ++report.foreign;
      break;
    case HeaderState::kSound:
      break;
  }
}

}  // namespace

Status SlotStore::Recover(StoredBlocks& stored, const UseSums& use_sums) {
  SlotFileState state;
  {
    MutexLock lock(mutex_);
    state = state_;
  }
  RecoveryReport& report = stored.report;
  report.slots = layout_.slots;
  stored.epoch = state.epoch;
  first_generation_ = state.least_generation;
  for (const SlotFileState::Dropped& dropped : state.dropped) {
    first_generation_ = std::max(first_generation_, dropped.generation);
  }
  const std::uint32_t header_bytes = layout_.header_bytes();
  const auto per_read =
      static_cast<std::uint32_t>(std::max<std::uint64_t>(1, kReadBytes / header_bytes));
  std::vector<RangeReader::Range> ranges;
  stored.blocks.reserve(layout_.slots);  // touched as far as it is used
  if (layout_.stores_tokens) {
    stored.tokens.reserve(std::size_t{layout_.slots} * layout_.block_tokens);
  }
  for (std::uint32_t slot = 0; slot < layout_.slots; slot += per_read) {
    const std::uint32_t count = std::min(per_read, layout_.slots - slot);
    ranges.push_back({layout_.HeaderOffset(slot), std::uint64_t{count} * header_bytes, slot});
  }
  StatusOr<RangeReader> reader = RangeReader::Make(io_, std::uint64_t{per_read} * header_bytes);
  if (!reader.ok()) return reader.status();
  reader->Read(ranges, [&](const RangeReader::Range& range, std::span<const std::byte> data) {
    const auto count = static_cast<std::uint32_t>(range.bytes / header_bytes);
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto slot = static_cast<std::uint32_t>(range.tag) + i;
      const std::size_t at = std::min<std::size_t>(std::size_t{i} * header_bytes, data.size());
      SlotHeader header;
      const HeaderState found = ParseSlotHeader(data.subspan(at), layout_, slot, header);
      CountIn(report, found);
      if (found != HeaderState::kSound) continue;
      first_generation_ = std::max(first_generation_, header.generation + 1);
      if (StandingOf(header, state) != HeaderStanding::kCurrent) {
        ++report.stale;
        continue;
      }
      const BlockIdentity& who = header.identity;
      stored.blocks.push_back({.slot = SlotId(slot),
                               .position = who.position,
                               .generation = header.generation,
                               .epoch = who.epoch,
                               .root = who.root,
                               .digest = who.digest,
                               .content = who.content});
      stored.tokens.insert(stored.tokens.end(), who.tokens.begin(), who.tokens.end());
      use_sums(slot, header);
    }
  });
  report.recovered = static_cast<std::uint32_t>(stored.blocks.size());
  return absl::OkStatus();
}

namespace {

// Keeps the blocks, and their tokens, for which `keep` is set.
void KeepOnly(StoredBlocks& stored, const std::vector<bool>& keep, std::size_t block_tokens) {
  const bool tokens = !stored.tokens.empty();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < stored.blocks.size(); ++i) {
    if (!keep[i]) continue;
    stored.blocks[kept] = stored.blocks[i];
    if (tokens && kept != i) {
      std::copy_n(stored.tokens.begin() + static_cast<std::ptrdiff_t>(i * block_tokens),
                  block_tokens,
                  stored.tokens.begin() + static_cast<std::ptrdiff_t>(kept * block_tokens));
    }
    ++kept;
  }
  stored.blocks.resize(kept);
  if (tokens) stored.tokens.resize(kept * block_tokens);
}

}  // namespace

void SlotStore::Verify(StoredBlocks& stored, const SumOf& sum_of) {
  std::uint64_t largest = 0;
  std::vector<RangeReader::Range> ranges;
  for (std::size_t i = 0; i < stored.blocks.size(); ++i) {
    std::uint64_t begin = 0;
    for (std::uint32_t segment = 0; segment < layout_.segments(); ++segment) {
      const std::uint64_t end = layout_.segment_ends[segment];
      ranges.push_back({layout_.PayloadOffset(stored.blocks[i].slot.value()) + begin, end - begin,
                        i * layout_.segments() + segment});
      largest = std::max(largest, end - begin);
      begin = end;
    }
  }
  if (ranges.empty()) return;
  StatusOr<RangeReader> reader = RangeReader::Make(io_, largest);
  if (!reader.ok()) return;  // then each is checked when it is loaded
  std::vector<bool> keep(stored.blocks.size(), true);
  reader->Read(ranges, [&](const RangeReader::Range& range, std::span<const std::byte> data) {
    const std::size_t block = range.tag / layout_.segments();
    const auto segment = static_cast<std::uint32_t>(range.tag % layout_.segments());
    const bool whole = data.size() == range.bytes;
    if (whole && SegmentSum(data) == sum_of(stored.blocks[block].slot.value(), segment)) return;
    keep[block] = false;
  });
  for (std::size_t i = 0; i < keep.size(); ++i) {
    if (keep[i]) continue;
    Erase(stored.blocks[i].slot.value());
    ++counters_->checksum_failures;
    ++stored.report.corrupt;
    --stored.report.recovered;
  }
  if (stored.report.corrupt != 0) KeepOnly(stored, keep, layout_.block_tokens);
}

// --- Headers. ---

std::span<std::byte> SlotStore::NewHeader(std::uint32_t slot) {
  const std::uint32_t bytes = layout_.header_bytes();
  const auto place = static_cast<std::uint32_t>(gathered_.size());
  gathered_.push_back({slot, place});
  headers_.resize(gathered_.size() * bytes);
  return std::span(headers_).last(bytes);
}

void SlotStore::Add(const CopyRequest& request, std::span<const std::uint64_t> sums) {
  const std::uint32_t slot = request.destination.value();
  const SlotHeader header{.slot = slot,
                          .generation = Generation(request.order),
                          .identity = *request.identity,
                          .sums = std::as_bytes(sums)};
  MutexLock lock(mutex_);
  const auto revoked = revoked_.find(header.identity.root);
  const bool late = revoked != revoked_.end() && header.generation < revoked->second;
  if (late || StandingOf(header, state_) != HeaderStanding::kCurrent) return;
  EncodeSlotHeader(header, layout_, NewHeader(slot));
}

void SlotStore::Erase(std::uint32_t slot) {
  MutexLock lock(mutex_);
  std::ranges::fill(NewHeader(slot), std::byte{0});
}

std::size_t SlotStore::gathered() const {
  MutexLock lock(mutex_);
  return gathered_.size();
}

bool SlotStore::Flush() {
  MutexLock lock(mutex_);
  return WriteGathered();
}

bool SlotStore::WriteGathered() {
  const std::size_t bytes = layout_.header_bytes();
  std::ranges::stable_sort(gathered_, {}, &Gathered::slot);
  bool ok = true;
  for (std::size_t i = 0; i < gathered_.size();) {
    run_.clear();
    const std::uint32_t first = gathered_[i].slot;
    std::uint32_t next = first;
    for (; i < gathered_.size() && gathered_[i].slot == next; ++next) {
      while (i + 1 < gathered_.size() && gathered_[i + 1].slot == next) ++i;  // the last word
      const std::byte* const header = headers_.data() + gathered_[i].place * bytes;
      run_.insert(run_.end(), header, header + bytes);
      ++i;
    }
    const std::int64_t rc = io_->WriteNow(run_, layout_.HeaderOffset(first));
    if (rc == static_cast<std::int64_t>(run_.size())) {
      counters_->headers_written += next - first;
      counters_->header_bytes_written += run_.size();
    } else {
      ++counters_->errors;
      ok = false;
    }
  }
  gathered_.clear();
  headers_.clear();
  return ok;
}

bool SlotStore::Sync() {
  const bool written = Flush();
  ++counters_->syncs;
  if (io_->SyncNow() == 0) return written;
  ++counters_->errors;
  return false;
}

// --- What must not come back. ---

Status SlotStore::Invalidate(const Invalidation& what) {
  MutexLock lock(mutex_);
  const SlotFileState before = state_;
  state_.epoch = std::max(state_.epoch, what.epoch);
  const std::uint64_t generation = Generation(what.order);
  if (what.all || state_.epoch != before.epoch) state_.dropped.clear();
  if (what.all) state_.least_generation = generation;
  for (const PrefixHash& root : what.roots) {
    std::erase_if(state_.dropped, [&](const SlotFileState::Dropped& d) { return d.root == root; });
    state_.dropped.push_back({root, generation});
    revoked_[root] = generation;
  }
  if (state_ == before && state_written_) return absl::OkStatus();
  if (state_.dropped.size() > SlotFileState::kMaxDropped) {
    if (Status status = EraseDropped(); !status.ok()) return status;
  }
  return WriteState();
}

// The list is full: its blocks' headers are cleared instead. Those that are still to be written,
// Add refuses.
Status SlotStore::EraseDropped() {
  if (!WriteGathered()) return absl::UnavailableError("cannot write headers");
  absl::flat_hash_map<PrefixHash, std::uint64_t, DigestHash> dropped;
  for (const SlotFileState::Dropped& d : state_.dropped) dropped[d.root] = d.generation;
  const std::size_t bytes = layout_.header_bytes();
  std::vector<std::byte> header_bytes(bytes);
  const std::vector<std::byte> zeros(bytes);
  for (std::uint32_t slot = 0; slot < layout_.slots; ++slot) {
    std::int64_t rc = io_->ReadNow(header_bytes, layout_.HeaderOffset(slot));
    if (rc < 0) return Problem("read a header", rc);
    SlotHeader header;
    if (ParseSlotHeader(header_bytes, layout_, slot, header) != HeaderState::kSound) continue;
    const auto at = dropped.find(header.identity.root);
    if (at == dropped.end() || header.generation >= at->second) continue;
    rc = io_->WriteNow(zeros, layout_.HeaderOffset(slot));
    if (rc != static_cast<std::int64_t>(bytes)) return Problem("clear a header", rc);
  }
  if (const int rc = io_->SyncNow(); rc != 0) return Problem("sync", rc);
  state_.dropped.clear();
  return absl::OkStatus();
}

}  // namespace tidepool
