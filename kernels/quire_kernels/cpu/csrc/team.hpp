// The threads that compute one call together: torch's own pool (its OpenMP library), and a barrier between phases.
#pragma once
#include <immintrin.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace quire {

constexpr int MOST_THREADS = 256;
constexpr int SPINS = 4000;  // about 50 µs: longer than any phase is uneven, unless another process has the core

constexpr int LEAVE_EVERY = 2;  // turns of waiting; the others yield: with more threads than cores some always share one

// How long, in one call, a thread keeps a core that it shares with none of its team while it waits. Who yields gives it,
// until the system's next tick, to whatever there is, be it of the lowest priority, such as compiling of grammars and
// reading of adapters; who sleeps loses it as well, because idle cores fetch such work from the others. Where that is not
// enough, other programs want the cores as much, and threads that yield are soonest at work together.
constexpr auto PATIENCE = std::chrono::milliseconds(2);
constexpr int LOOK_EVERY = 64;  // pauses between looks at the clock

// Moves the calling thread to another of the cores that it may use, if there is one. The system would do so in time, but
// for two threads of which one waits for the other that is many steps.
inline void leave_core(int core) {
  cpu_set_t all, others;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  others = all;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  sched_setaffinity(0, sizeof others, &others);
  sched_setaffinity(0, sizeof all, &all);
}

// What the threads of a call share. A phase is whatever lies between two barriers.
class Team {
  friend class Worker;
  struct alignas(64) Counter {
    std::atomic<int64_t> taken{0};
  };
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> phase_{0};
  Counter taken_[3][MOST_THREADS];  // in the phase before, this one and the next
  struct alignas(64) Place {
    std::atomic<int> core{-1};
  };
  Place places_[MOST_THREADS];  // where each thread was seen last
};

// One thread's view of its team.
class Worker {
 public:
  Worker(Team& team, int id, int size) : id(id), size(size), team_(team) {}
  const int id, size;

  // Calls work(first, some) for stretches of at most `step` neighbours that make up 0 … count-1, at most once in a
  // phase. Each thread begins with a stretch of its own, so that what they read is one stream, and then helps the others.
  template <class Work>
  void each_few(int64_t count, int64_t step, Work&& work) {
    Team::Counter* taken = team_.taken_[phase_ % 3];
    for (int k = 0; k < size; k++) {
      const int owner = (id + k) % size;
      const int64_t begin = count * owner / size, end = count * (owner + 1) / size;
      if (taken[owner].taken.load(std::memory_order_relaxed) >= end - begin) continue;
      for (int64_t i; (i = begin + taken[owner].taken.fetch_add(step, std::memory_order_relaxed)) < end;) {
        be_seen();
        work(i, step < end - i ? step : end - i);
      }
    }
  }

  // Calls work(i) for every i below count, likewise.
  template <class Work>
  void each(int64_t count, Work&& work) {
    each_few(count, 1, [&](int64_t i, int64_t) { work(i); });
  }

  // Nobody goes on before all have arrived. Who waits calls idle() meanwhile, which does a little work and says whether
  // there was any.
  template <class Idle>
  void barrier(Idle&& idle) {
    const int phase = ++phase_;
    if (size == 1) {
      team_.taken_[phase % 3][0].taken.store(0, std::memory_order_relaxed);
      return;
    }
    be_seen();
    if (team_.arrived_.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      team_.arrived_.store(0, std::memory_order_relaxed);
      for (int i = 0; i < size; i++)  // nobody is in that phase before the next barrier
        team_.taken_[(phase + 1) % 3][i].taken.store(0, std::memory_order_relaxed);
      team_.phase_.store(phase, std::memory_order_release);
      return;
    }
    for (int spin = 0; team_.phase_.load(std::memory_order_acquire) != phase;) {
      if (idle()) continue;
      if (spin++ == SPINS) return wait_for_others(phase);
      _mm_pause();
    }
  }
  void barrier() {
    barrier([] { return false; });
  }

 private:
  Team& team_;
  int phase_ = 0;
  std::chrono::steady_clock::duration patience_ = PATIENCE;

  // The rest of a barrier for a thread that has spun long enough, with nothing left to do: some other has no core.
  void wait_for_others(int phase) {
    using Clock = std::chrono::steady_clock;
    const auto began = Clock::now();
    for (int turn = 0; team_.phase_.load(std::memory_order_acquire) != phase; turn++) {
      const bool shares = shares_core();
      if (shares && turn % LEAVE_EVERY == 0) {
        leave_core(sched_getcpu());
        be_seen();
      } else if (shares || Clock::now() - began > patience_) {
        sched_yield();
      } else {
        for (int i = 0; i < LOOK_EVERY && team_.phase_.load(std::memory_order_acquire) != phase; i++) _mm_pause();
      }
    }
    patience_ -= std::min<Clock::duration>(patience_, Clock::now() - began);
  }

  void be_seen() { team_.places_[id].core.store(sched_getcpu(), std::memory_order_relaxed); }

  // Whether another thread of the team was last seen on this one's core, which it may be waiting for.
  bool shares_core() const {
    const int core = sched_getcpu();
    for (int other = 0; other < size; other++)
      if (other != id && team_.places_[other].core.load(std::memory_order_relaxed) == core) return true;
    return false;
  }
};

// Calls work(worker) on `threads` threads at once.
template <class Work>
void together(int threads, Work&& work) {
  Team team;
  threads = threads < MOST_THREADS ? threads : MOST_THREADS;
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
