// tidepool-inspect: what a kept NVMe file holds, and whether it is sound. Reads only, takes no
// lock.
#include <cinttypes>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/tools/inspect.h"
#include "tidepool/transfer/slot_file_reader.h"
#include "tidepool/version.h"

namespace tidepool::tools {

std::string Hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

std::string Hex(const PrefixHash& hash) { return Hex(hash.high) + Hex(hash.low); }

std::string StatePageText(const SlotFileReader& reader, std::uint32_t index) {
  const StatusOr<SlotFileState> page = reader.StatePage(index);
  if (!page.ok()) return std::string(page.status().message());
  std::string text = "sequence " + std::to_string(page->sequence);
  if (page->sequence % 2 != index) text += ", in the place of the other";
  return text;
}

bool StatePageSound(const SlotFileReader& reader, std::uint32_t index) {
  const StatusOr<SlotFileState> page = reader.StatePage(index);
  return page.ok() ? page->sequence % 2 == index : absl::IsNotFound(page.status());
}

namespace {

constexpr const char kHelp[] =
    R"(tidepool-inspect COMMAND [OPTION...] FILE

Shows a file of a tier that tidepool keeps across restarts (docs/nvme_format.md), live or a copy.
It only reads, and takes no lock: in a live file, slots that are being written may look damaged.

Commands
  list     each slot that is not empty: state, position, generation, epoch, tokens, digest, root
  verify   reads the payloads of all sound headers and compares their checksums
  stats    layout, identity, state pages, slots by state, blocks by namespace

Options
  --tokens    list: the tokens too, which are the prompts
  --json      one JSON object instead of text
  --help, --version

Exit status
  0   done; verify: all matches
  1   verify: a payload, header or state page does not match, or the file is too short
  2   wrong usage, or not a file that can be read
)";

std::string MessageOf(const Status& status) { return std::string(status.message()); }

int Fail(const std::string& message) {
  std::fprintf(stderr, "tidepool-inspect: %s\n", message.c_str());
  return kCannotTell;
}

// What is wrong with the command line, or nothing.
std::string Parse(std::span<char* const> arguments, InspectOptions& options) {
  std::vector<std::string> words;
  for (const std::string_view argument : arguments) {
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--tokens") {
      options.tokens = true;
    } else if (argument.size() > 1 && argument.front() == '-') {
      return "unknown option " + std::string(argument);
    } else {
      words.emplace_back(argument);
    }
  }
  if (words.size() != 2) return "needs a command and a file";
  options.command = words[0];
  options.path = words[1];
  if (options.tokens && options.command != "list") return "--tokens is an option of list";
  return {};
}

int Run(const InspectOptions& options) {
  StatusOr<int> (*command)(SlotFileReader&, const InspectOptions&) = nullptr;
  if (options.command == "list") command = List;
  if (options.command == "verify") command = Verify;
  if (options.command == "stats") command = Stats;
  if (command == nullptr) return Fail("unknown command " + options.command + "; see --help");
  StatusOr<SlotFileReader> reader = SlotFileReader::Open(options.path);
  if (!reader.ok()) return Fail(MessageOf(reader.status()));
  const StatusOr<int> result = command(*reader, options);
  if (!result.ok()) return Fail(MessageOf(result.status()));
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return Fail("cannot write the output");
  return *result;
}

int Main(std::span<char* const> arguments) {
  for (const std::string_view argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return kAllMatches;
    }
    if (argument == "--version") {
      std::printf("tidepool-inspect %d.%d.%d, file format %" PRIu32 "\n", TIDEPOOL_VERSION_MAJOR,
                  TIDEPOOL_VERSION_MINOR, TIDEPOOL_VERSION_PATCH, kSlotFileVersion);
      return kAllMatches;
    }
  }
  InspectOptions options;
  if (const std::string problem = Parse(arguments, options); !problem.empty()) {
    return Fail(problem + "; see --help");
  }
  return Run(options);
}

}  // namespace
}  // namespace tidepool::tools

int main(int argc, char** argv) {
  return tidepool::tools::Main({argv + (argc > 0 ? 1 : 0), argv + argc});
}
