// A thread whose creation can fail without an exception. Thread contract: thread-compatible.
#pragma once

#include <pthread.h>

#include <functional>
#include <memory>
#include <string>

#include "tidepool/status.h"

namespace tidepool {

/// Joins when it is destroyed: whatever makes `body` return must have happened.
class WorkerThread {
 public:
  /// `name` is what debuggers and top show; at most 15 characters.
  static StatusOr<WorkerThread> Start(const char* name, std::function<void()> body);

  ~WorkerThread();
  WorkerThread(WorkerThread&& other) noexcept = default;
  WorkerThread& operator=(WorkerThread&& other) = delete;

 private:
  struct State {
    pthread_t id{};
    std::function<void()> body;
  };
  explicit WorkerThread(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}

  std::unique_ptr<State> state_;  // null when moved from
};

}  // namespace tidepool
