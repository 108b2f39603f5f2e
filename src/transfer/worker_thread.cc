#include "src/transfer/worker_thread.h"

#include <cstring>
#include <utility>

namespace tidepool {

StatusOr<WorkerThread> WorkerThread::Start(const char* name, std::function<void()> body) {
  auto state = std::make_unique<State>();
  state->body = std::move(body);
  const auto run = [](void* argument) -> void* {
    static_cast<State*>(argument)->body();
    return nullptr;
  };
  if (const int error = ::pthread_create(&state->id, nullptr, run, state.get()); error != 0) {
    return absl::ResourceExhaustedError("cannot start thread " + std::string(name) + ": " +
                                        std::strerror(error));
  }
  ::pthread_setname_np(state->id, name);
  return WorkerThread(std::move(state));
}

WorkerThread::~WorkerThread() {
  if (state_ != nullptr) ::pthread_join(state_->id, nullptr);
}

}  // namespace tidepool
