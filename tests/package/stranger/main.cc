// Two sources of one program include the main header (see other.cc): S83.
#include <tidepool/tidepool.h>

#include <cstdio>

bool OtherSourceWorks();

int main() {
  const auto name = tidepool::ToString(tidepool::Outcome::kOk);
  std::printf("tidepool %d.%d.%d: %.*s\n", tidepool::kVersionMajor, tidepool::kVersionMinor,
              tidepool::kVersionPatch, static_cast<int>(name.size()), name.data());
  return OtherSourceWorks() ? 0 : 1;
}
