#include "src/manager/input_recorder.h"

#include <cstdio>
#include <string_view>

#include "src/str_cat.h"

namespace tidepool::internal {
namespace {

/// An engine whose answers are recorded.
class RecordedEngine final : public TransferEngine {
 public:
  RecordedEngine(std::unique_ptr<TransferEngine> engine, RecordWriter* writer)
      : engine_(std::move(engine)), writer_(writer) {}

  Status Attach(std::span<const TierBinding> tiers, Observer* observer) override {
    return engine_->Attach(tiers, observer);
  }
  bool Supports(TierIndex from, TierIndex to) const noexcept override {
    return engine_->Supports(from, to);
  }
  std::size_t Submit(std::span<const CopyRequest> copies) noexcept override {
    const std::size_t accepted = engine_->Submit(copies);
    writer_->Write(RecordKind::kSubmitted, std::uint64_t{copies.size()}, std::uint64_t{accepted});
    return accepted;
  }
  void Poll(std::vector<Completion>& completions) noexcept override {
    const std::size_t before = completions.size();
    engine_->Poll(completions);
    writer_->Write(RecordKind::kCompleted,
                   std::span<const Completion>(completions).subspan(before));
  }
  bool Wait(Duration timeout) noexcept override { return engine_->Wait(timeout); }
  void Cancel(TransferId id) noexcept override { engine_->Cancel(id); }
  void Withdraw(TransferId id) noexcept override { engine_->Withdraw(id); }
  void OnSlotFreed(TierIndex tier, SlotId slot) noexcept override {
    engine_->OnSlotFreed(tier, slot);
  }
  void TakeStored(TierIndex tier, StoredBlocks& stored) override {
    engine_->TakeStored(tier, stored);
    writer_->Write(RecordKind::kStored, tier, stored);
  }
  Status Invalidate(const Invalidation& what) override { return engine_->Invalidate(what); }
  FileTierStats file_stats(TierIndex tier) const noexcept override {
    return engine_->file_stats(tier);
  }
  TransferEstimate EstimateCost(TierIndex from, TierIndex to,
                                std::uint64_t bytes) const noexcept override {
    const TransferEstimate estimate = engine_->EstimateCost(from, to, bytes);
    writer_->Write(RecordKind::kEstimate, from, to, estimate.time, estimate.margin,
                   estimate.method == "measured");
    return estimate;
  }
  double BytesPerSecond(TierIndex from, TierIndex to) const noexcept override {
    const double rate = engine_->BytesPerSecond(from, to);
    writer_->Write(RecordKind::kBandwidth, from, to, rate);
    return rate;
  }
  std::uint64_t QueuedBytes(TierIndex from, TierIndex to) const noexcept override {
    const std::uint64_t bytes = engine_->QueuedBytes(from, to);
    writer_->Write(RecordKind::kQueued, from, to, bytes);
    return bytes;
  }
  std::string Describe() const override { return engine_->Describe(); }

 private:
  std::unique_ptr<TransferEngine> engine_;
  RecordWriter* writer_;
};

std::string Exact(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

}  // namespace

std::unique_ptr<TransferEngine> InputRecorder::Wrap(std::unique_ptr<TransferEngine> engine) {
  return std::make_unique<RecordedEngine>(std::move(engine), &writer_);
}

InputRecorder::NamespaceMap InputRecorder::Wrap(NamespaceMap map) {
  if (!map) return map;
  return [map = std::move(map), this](NamespaceId ns) {
    const NamespaceId mapped = map(ns);
    writer_.Write(RecordKind::kMapped, ns, mapped);
    return mapped;
  };
}

void InputRecorder::Header(TimePoint now, const std::vector<std::string>& fingerprint) {
  begun_ = true;
  writer_.Begin();
  writer_.Write(RecordKind::kHeader, now, fingerprint);
}

void InputRecorder::EndCall(bool mark, std::uint64_t decision_hash) {
  if (!mark && decision_hash == written_hash_) return;
  written_hash_ = decision_hash;
  writer_.Write(RecordKind::kDecisions, decision_hash);
}

// What a log says about the options that it was made with, one line each.
std::vector<std::string> ManagerCore::Fingerprint() const {
  const ManagerOptions& o = options_;
  std::vector<std::string> lines = {
      StrCat("layout: ", block_tokens_, " tokens, ", layers_, " layers, ", block_bytes_, " bytes"),
      StrCat("migrator: ", migrator_->name()),
      StrCat("namespace_map: ", o.namespace_map ? "given" : "none"),
      StrCat("recompute: ", Exact(o.recompute.c0_seconds), " + ",
             Exact(o.recompute.c1_seconds_per_token), " s"),
      StrCat("digest_seed: ", o.digest_seed),
      StrCat("epoch: ", o.epoch),
      StrCat("match_partial_tail: ", o.match_partial_tail),
      StrCat("report_holes: ", o.report_holes),
      StrCat("reserve_null_slot: ", o.reserve_null_slot),
      StrCat("max_sequences: ", o.max_sequences),
      StrCat("max_sequence_blocks: ", o.max_sequence_blocks),
      StrCat("event_log_capacity: ", o.event_log_capacity),
      StrCat("demand_ttl: ", o.demand_ttl.count(), " ns"),
      StrCat("load_ttl: ", o.load_ttl.count(), " ns")};
  for (TierIndex t = 0; t < tiers_; ++t) {
    const TierSpec& tier = o.tiers[t];
    lines.push_back(StrCat("tiers[", t, "]: ", ToString(tier.kind), ", ", bindings_[t].slots,
                           " slots, holes ", tier.holes_allowed, ", cleared ", tier.clear_on_reuse,
                           ", device work ", inline_work_ ? "inline" : "queued",
                           tier.store.keep ? ", kept" : ""));
    lines.push_back(StrCat("policy of tier ", t, ": ", policies_[t]->name()));
  }
  return lines;
}

}  // namespace tidepool::internal
