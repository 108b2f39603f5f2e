#include "tidepool/transfer/slot_file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/str_cat.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace tidepool {
namespace {

using internal::StrCat;

constexpr std::uint64_t kBufferBytes = 256u << 10;  // of headers; payloads go through one as large

absl::StatusCode CodeOf(int error) {
  if (error == ENOENT || error == ENOTDIR) return absl::StatusCode::kNotFound;
  if (error == EACCES || error == EPERM) return absl::StatusCode::kPermissionDenied;
  return absl::StatusCode::kUnavailable;
}

Status FileError(const std::string& path, std::string_view what, int error) {
  return Status(CodeOf(error), StrCat(path, ": ", what, ": ", std::strerror(error)));
}

}  // namespace

SlotFileReader::File::~File() {
  if (fd >= 0) ::close(fd);
}

StatusOr<SlotFileReader> SlotFileReader::Open(const std::string& path) {
  SlotFileReader reader;
  reader.path_ = path;
  // Not to wait for the other end of a pipe.
  reader.file_.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (reader.file_.fd < 0) return FileError(path, "cannot open", errno);
  if (Status status = reader.Load(); !status.ok()) return status;
  return reader;
}

Status SlotFileReader::Load() {
  struct stat info = {};
  if (::fstat(file_.fd, &info) != 0) return FileError(path_, "cannot stat", errno);
  if (!S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode)) {
    return absl::InvalidArgumentError(path_ + ": is neither a regular file nor a block device");
  }
  const off_t end = ::lseek(file_.fd, 0, SEEK_END);
  if (end < 0) return FileError(path_, "cannot find the end", errno);
  file_bytes_ = static_cast<std::uint64_t>(end);

  std::vector<std::byte> pages(SlotFileLayout::headers_offset());
  const StatusOr<std::size_t> got = ReadAt(0, pages);
  if (!got.ok()) return got.status();
  pages.resize(*got);
  const auto superblock = std::min<std::size_t>(pages.size(), kSlotFilePageBytes);
  StatusOr<SlotFileLayout> layout = ParseSuperblock(std::span(pages).first(superblock));
  if (!layout.ok()) {
    return Status(layout.status().code(),
                  StrCat(path_, ": ", std::string(layout.status().message())));
  }
  layout_ = *std::move(layout);
  state_pages_.assign(pages.begin() + static_cast<std::ptrdiff_t>(superblock), pages.end());
  state_ = ParseStatePages(state_pages_);
  const std::uint64_t headers =
      std::max(file_bytes_, SlotFileLayout::headers_offset()) - SlotFileLayout::headers_offset();
  readable_slots_ = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(layout_.slots, headers / layout_.header_bytes()));
  return absl::OkStatus();
}

StatusOr<SlotFileState> SlotFileReader::StatePage(std::uint32_t index) const {
  const std::size_t at = std::min(std::size_t{index} * kSlotFilePageBytes, state_pages_.size());
  return ParseState(std::span(state_pages_).subspan(at));
}

// How much there is, up to all of `into`.
StatusOr<std::size_t> SlotFileReader::ReadAt(std::uint64_t offset,
                                             std::span<std::byte> into) const {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got = ::pread(file_.fd, into.data() + done, into.size() - done,
                                static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path_, StrCat("cannot read at ", offset + done), errno);
    done += static_cast<std::size_t>(got);
  }
  return done;
}

// --- Headers. ---

Status SlotFileReader::Fill() {
  const std::uint64_t bytes = layout_.header_bytes();
  const std::uint64_t most = std::max<std::uint64_t>(kBufferBytes / bytes, 1);
  const std::uint64_t count = std::min<std::uint64_t>(most, readable_slots_ - next_slot_);
  headers_.resize(count * bytes);
  const StatusOr<std::size_t> got = ReadAt(layout_.HeaderOffset(next_slot_), headers_);
  if (!got.ok()) return got.status();
  buffered_from_ = next_slot_;
  buffered_to_ = next_slot_ + static_cast<std::uint32_t>(*got / bytes);
  if (buffered_to_ > next_slot_) return absl::OkStatus();
  return absl::OutOfRangeError(StrCat(path_, ": ends within the header of slot ", next_slot_));
}

bool SlotFileReader::Next(Entry& entry) {
  if (next_slot_ >= readable_slots_) return false;
  if (next_slot_ < buffered_from_ || next_slot_ >= buffered_to_) {
    status_ = Fill();
    if (!status_.ok()) return false;
  }
  const std::uint64_t bytes = layout_.header_bytes();
  const auto header = std::span(headers_).subspan((next_slot_ - buffered_from_) * bytes, bytes);
  entry.slot = next_slot_++;
  entry.state = ParseSlotHeader(header, layout_, entry.slot, entry.header);
  return true;
}

void SlotFileReader::Rewind() noexcept {
  next_slot_ = 0;
  buffered_from_ = 0;
  buffered_to_ = 0;
  status_ = absl::OkStatus();
}

Status SlotFileReader::ReadHeader(std::uint32_t slot, Entry& entry) {
  if (slot >= readable_slots_) {
    return absl::OutOfRangeError(
        StrCat(path_, ": slot ", slot, ", but headers of ", readable_slots_, " slots"));
  }
  Rewind();
  next_slot_ = slot;
  return Next(entry) ? absl::OkStatus() : status_;
}

// --- Payloads. ---

StatusOr<bool> SlotFileReader::Matches(std::uint64_t offset, std::uint64_t bytes,
                                       std::uint64_t sum) {
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  while (bytes > 0) {
    const auto part = std::span(payload_).first(std::min<std::size_t>(bytes, payload_.size()));
    const StatusOr<std::size_t> got = ReadAt(offset, part);
    if (!got.ok()) return got.status();
    if (*got < part.size()) return false;
    XXH3_64bits_update(&hash, part.data(), part.size());
    offset += part.size();
    bytes -= part.size();
  }
  return XXH3_64bits_digest(&hash) == sum;
}

StatusOr<std::vector<std::uint32_t>> SlotFileReader::MismatchedSegments(const SlotHeader& header) {
  payload_.resize(std::min(kBufferBytes, layout_.slot_bytes));
  std::vector<std::uint32_t> mismatched;
  std::uint64_t begin = 0;
  for (std::uint32_t i = 0; i < layout_.segments(); ++i) {
    const std::uint64_t end = layout_.segment_ends[i];
    const StatusOr<bool> matches =
        Matches(layout_.PayloadOffset(header.slot) + begin, end - begin, header.sum(i));
    if (!matches.ok()) return matches.status();
    if (!*matches) mismatched.push_back(i);
    begin = end;
  }
  return mismatched;
}

}  // namespace tidepool
