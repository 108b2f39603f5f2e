// std::mutex with the annotations that clang's -Wthread-safety checks; ThreadSanitizer sees the
// std types inside. Thread contract: thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TIDEPOOL_ANNOTATE(x) __attribute__((x))
#else
#define TIDEPOOL_ANNOTATE(x)
#endif
#define TIDEPOOL_GUARDED_BY(mutex) TIDEPOOL_ANNOTATE(guarded_by(mutex))
#define TIDEPOOL_REQUIRES(mutex) TIDEPOOL_ANNOTATE(requires_capability(mutex))
#define TIDEPOOL_EXCLUDES(mutex) TIDEPOOL_ANNOTATE(locks_excluded(mutex))

namespace tidepool {

class TIDEPOOL_ANNOTATE(capability("mutex")) Mutex {
 public:
  void Lock() TIDEPOOL_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void Unlock() TIDEPOOL_ANNOTATE(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class TIDEPOOL_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TIDEPOOL_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() TIDEPOOL_ANNOTATE(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// May wake without reason: wait in a loop. A loop, not a predicate: the analysis does not see
/// that a lambda runs with the mutex held.
class CondVar {
 public:
  void Wait(Mutex& mutex) TIDEPOOL_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  /// Returns false when `deadline` has passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      TIDEPOOL_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace tidepool
