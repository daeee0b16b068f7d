// The threads that compute one call, from torch's own pool (its OpenMP library), with a barrier between phases.
#pragma once
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "machine.hpp"

namespace quire {

constexpr int MAX_THREADS = 256;
constexpr int SPINS = 4000;  // about 50 µs: longer than threads of a phase differ, unless another process has the core

// while waiting, migrate every second time and yield otherwise: with more threads than cores some always share one
constexpr int MIGRATE_EVERY = 2;

// How long in one call a waiting thread keeps its core if no other thread of the team was seen there. A thread that
// yields gives the core, until the system's next tick, to any other runnable thread, even one of idle priority such
// as a grammar compiler or an adapter loader; a sleeping thread loses it too, because idle cores pull such work.
// After this time, other programs need the cores as much, and yielding lets the team resume run_parallel soonest.
constexpr auto MAX_KEEP_TIME = std::chrono::milliseconds(2);
constexpr int PAUSES_PER_CHECK = 64;  // pauses between two checks of the clock

// Moves the calling thread to another of its allowed cores, if there is one. The scheduler would do so eventually,
// but for two threads of which one waits for the other that takes many steps.
inline void migrate_from(int core) {
  cpu_set_t all, others;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  others = all;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  sched_setaffinity(0, sizeof others, &others);
  sched_setaffinity(0, sizeof all, &all);
}

// State shared by the threads of a call. A phase is the work between two barriers.
class Team {
  friend class Worker;
  struct alignas(64) Counter {
    std::atomic<int64_t> claimed{0};
  };
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> phase_{0};
  Counter claimed_[3][MAX_THREADS];  // of the previous, the current and the next phase
  struct alignas(64) LastCore {
    std::atomic<int> core{-1};
  };
  LastCore cores_[MAX_THREADS];  // core on which each thread was last seen
  void* common_ = nullptr;       // memory of one thread that all use
};

// A thread's handle of its team.
class Worker {
 public:
  Worker(Team& team, int id, int size) : id(id), size(size), team_(team) {}
  const int id, size;

  // Calls work(first, count) for blocks of at most `step` consecutive items that make up 0 … count-1; at most
  // once in a phase. Each thread begins with a contiguous range of its own, so it reads one stream, and then
  // helps the others.
  template <class Work>
  void each_few(int64_t count, int64_t step, Work&& work) {
    Team::Counter* claimed = team_.claimed_[phase_ % 3];
    for (int k = 0; k < size; k++) {
      const int owner = (id + k) % size;
      const int64_t begin = count * owner / size, end = count * (owner + 1) / size;
      if (claimed[owner].claimed.load(std::memory_order_relaxed) >= end - begin) continue;
      for (int64_t i; (i = begin + claimed[owner].claimed.fetch_add(step, std::memory_order_relaxed)) < end;) {
        record_core();
        work(i, step < end - i ? step : end - i);
      }
    }
  }

  // Calls work(i) for every i below count, distributed likewise.
  template <class Work>
  void each(int64_t count, Work&& work) {
    each_few(count, 1, [&](int64_t i, int64_t) { work(i); });
  }

  // Returns to all threads the memory that make() returns to one of them; ends the phase. At most once between two
  // other phases, so that no thread still uses the pointer of an earlier call.
  template <class Make>
  void* common(Make&& make) {
    if (id == 0) team_.common_ = make();
    barrier();
    return team_.common_;
  }

  // Returns when all threads have arrived. A waiting thread calls idle() meanwhile, which does a small piece of
  // work and returns whether there was any.
  template <class Idle>
  void barrier(Idle&& idle) {
    const int phase = ++phase_;
    if (size == 1) {
      team_.claimed_[phase % 3][0].claimed.store(0, std::memory_order_relaxed);
      return;
    }
    record_core();
    if (team_.arrived_.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      team_.arrived_.store(0, std::memory_order_relaxed);
      for (int i = 0; i < size; i++)  // no thread enters that phase before the next barrier
        team_.claimed_[(phase + 1) % 3][i].claimed.store(0, std::memory_order_relaxed);
      team_.phase_.store(phase, std::memory_order_release);
      return;
    }
    for (int spin = 0; team_.phase_.load(std::memory_order_acquire) != phase;) {
      if (idle()) continue;
      if (spin++ == SPINS) return wait_for_others(phase);
      cpu_pause();
    }
  }
  void barrier() {
    barrier([] { return false; });
  }

 private:
  Team& team_;
  int phase_ = 0;
  std::chrono::steady_clock::duration keep_time_ = MAX_KEEP_TIME;

  // The rest of a barrier for a thread that has spun long enough and has no other work: some thread of the team
  // has no core.
  void wait_for_others(int phase) {
    using Clock = std::chrono::steady_clock;
    const auto began = Clock::now();
    for (int attempt = 0; team_.phase_.load(std::memory_order_acquire) != phase; attempt++) {
      const bool shares = shares_core();
      if (shares && attempt % MIGRATE_EVERY == 0) {
        migrate_from(sched_getcpu());
        record_core();
      } else if (shares || Clock::now() - began > keep_time_) {
        sched_yield();
      } else {
        for (int i = 0; i < PAUSES_PER_CHECK && team_.phase_.load(std::memory_order_acquire) != phase; i++) cpu_pause();
      }
    }
    keep_time_ -= std::min<Clock::duration>(keep_time_, Clock::now() - began);
  }

  void record_core() { team_.cores_[id].core.store(sched_getcpu(), std::memory_order_relaxed); }

  // Whether another thread of the team was last seen on this thread's core, which it may be waiting for.
  bool shares_core() const {
    const int core = sched_getcpu();
    for (int other = 0; other < size; other++)
      if (other != id && team_.cores_[other].core.load(std::memory_order_relaxed) == core) return true;
    return false;
  }
};

// Calls work(worker) on `threads` threads at once.
template <class Work>
void run_parallel(int threads, Work&& work) {
  Team team;
  threads = threads < MAX_THREADS ? threads : MAX_THREADS;
  if (threads == 1) {
    Worker worker(team, 0, 1);
    work(worker);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    Worker worker(team, omp_get_thread_num(), omp_get_num_threads());
    work(worker);
  }
}

}  // namespace quire
