// Sums over the ranks of a group: processes, or threads, that share memory or are connected by sockets.
//
// Each rank writes its addend to a slot of its own, announces it, and adds up the slots of all ranks in their order, so
// that all ranks get the same bits. Two sets of slots alternate: when a rank has announced round n + 1, it has read all
// slots of round n, so round n + 2 may overwrite them. The elements are divided among lanes that synchronize
// independently of each other. Without shared memory, the slots are sent (`sockets.hpp`).
//
// Announcements carry the number of the attempt (a forward pass), and which was the last one of the attempt before. So
// the others see whether a rank that has begun another attempt had completed this one, or left it because of an error;
// then they wait in vain, and leave it as well.
#pragma once
#include <cstring>
#include <ctime>

#include "groups/sockets.hpp"
#include "rowwise.hpp"

namespace quire {

constexpr auto YIELD_TIME = std::chrono::milliseconds(2);
constexpr long SLEEP_NS = 50'000;

// Waits until rank `of` has announced `wanted`; false if it never will.
inline bool await_rank(Member& member, int lane, int of, uint64_t wanted) {
  using Clock = std::chrono::steady_clock;
  const SharedWord& word = member.announced(lane, of);
  const uint64_t attempt = wanted >> ROUND_BITS;
  const auto arrived = [&](uint64_t now) { return now >= wanted && now >> ROUND_BITS == attempt; };
  for (int64_t spin = 0; spin < member.spins; spin++) {
    if (word.value.load(std::memory_order_acquire) >= wanted) break;
    cpu_pause();
  }
  const auto began = Clock::now();
  for (;;) {
    const uint64_t now = word.value.load(std::memory_order_acquire);
    if (arrived(now)) return true;
    if (now > wanted) return arrived(word.before.load(std::memory_order_acquire)) || member.end(GroupState::left);
    if (member.has_failed()) return member.end(GroupState::failed);
    if (!member.works()) return false;
    const auto waited = Clock::now() - began;
    if (waited > std::chrono::milliseconds(member.timeout_ms)) return member.end(GroupState::late);
    if (member.spins && waited < YIELD_TIME) {
      sched_yield();
    } else {
      const timespec pause{0, SLEEP_NS};
      nanosleep(&pause, nullptr);
    }
  }
}

// Begins an attempt once all ranks have begun it; none of them reads slots of an earlier one then.
inline bool begin_attempt(Member& member, uint64_t attempt) {
  member.attempt = attempt, member.state = 0;
  if (member.peers) {
    member.rounds[0] = 0;
    return exchange(member, attempt << ROUND_BITS, 0, [](int) { return 0; });
  }
  for (int lane = 0; lane < member.lanes; lane++) {
    member.rounds[lane] = 0;
    SharedWord& word = member.announced(lane, member.rank);
    word.before.store(word.value.load(std::memory_order_relaxed), std::memory_order_release);
    word.value.store(attempt << ROUND_BITS, std::memory_order_release);
  }
  for (int of = 0; of < member.size; of++)
    if (of != member.rank && !await_rank(member, member.lanes - 1, of, attempt << ROUND_BITS)) return false;
  return true;
}

// Announces what the slot of the next round holds once `write` has filled it, and waits for the other ranks. bytes(of): how
// much the slot of a rank holds; fails if a rank has announced another number, which would be a sum of other tokens.
template <class Bytes, class Write>
inline bool next_round(Member& member, int lane, Bytes&& bytes, Write&& write) {
  const uint64_t round = ++member.rounds[lane], wanted = member.attempt << ROUND_BITS | round;
  write(member.slot(round, lane, member.rank));
  if (member.peers) return exchange(member, wanted, round, bytes);
  SharedWord& own = member.announced(lane, member.rank);
  own.bytes[round & 1].store(bytes(member.rank), std::memory_order_relaxed);
  own.value.store(wanted, std::memory_order_release);
  for (int of = 0; of < member.size; of++) {
    if (of == member.rank) continue;
    if (!await_rank(member, lane, of, wanted)) return false;
    const uint64_t found = member.announced(lane, of).bytes[round & 1].load(std::memory_order_relaxed);
    if (found != static_cast<uint64_t>(bytes(of))) return member.end(GroupState::differs);
  }
  return true;
}

// x [count]: the sum over the ranks, in place. After a failure x is left as it is.
template <class T>
void all_reduce(Worker& worker, Member& member, T* x, int64_t count) {
  const int64_t most = member.slot_bytes / static_cast<int64_t>(sizeof(T));
  const int64_t blocks = (count + LANES - 1) / LANES;
  for (int lane = worker.id; lane < member.lanes; lane += worker.size) {
    const int64_t end = std::min(count, blocks * (lane + 1) / member.lanes * LANES);
    for (int64_t at = blocks * lane / member.lanes * LANES; at < end; at += most) {
      const int64_t n = std::min(most, end - at);
      const auto bytes = [&](int) { return n * static_cast<int64_t>(sizeof(T)); };
      const auto write = [&](char* slot) { memcpy(slot, x + at, bytes(0)); };
      if (!member.works() || !next_round(member, lane, bytes, write)) return;
      const T* addends[MAX_RANKS];
      for (int of = 0; of < member.size; of++)
        addends[of] = reinterpret_cast<const T*>(member.slot(member.rounds[lane], lane, of));
      lanes(n, [&](int64_t i, int some) {
        F16 sum = get(addends[0] + i, some);
        for (int of = 1; of < member.size; of++) sum = sum + get(addends[of] + i, some);
        set(x + at + i, sum, some);
      });
    }
  }
}

// to [rows, sum of widths]: the rows of all ranks side by side; from [rows, widths[rank]]. Without `to` this rank only
// sends.
inline void gather_columns(Worker& worker, Member& member, const float* from, float* to, int64_t rows,
                           const int64_t* widths) {
  int64_t width = 0, widest = 0, starts[MAX_RANKS];
  for (int of = 0; of < member.size; of++) {
    starts[of] = width;
    width += widths[of];
    widest = std::max(widest, widths[of]);
  }
  const int64_t own = widths[member.rank], most = member.slot_bytes / static_cast<int64_t>(sizeof(float));
  for (int lane = worker.id; lane < member.lanes; lane += worker.size) {
    const int64_t first = widest * lane / member.lanes, last = widest * (lane + 1) / member.lanes;
    for (int64_t row = 0; row < rows; row++)
      for (int64_t at = first; at < last; at += most) {
        const auto count = [&](int64_t all) { return std::max<int64_t>(0, std::min({most, last - at, all - at})); };
        const auto bytes = [&](int of) { return count(widths[of]) * static_cast<int64_t>(sizeof(float)); };
        const auto write = [&](char* slot) { memcpy(slot, from + row * own + at, bytes(member.rank)); };
        if (!member.works() || !next_round(member, lane, bytes, write)) return;
        if (to)
          for (int of = 0; of < member.size; of++)
            memcpy(to + row * width + starts[of] + at, member.slot(member.rounds[lane], lane, of), bytes(of));
      }
  }
}

}  // namespace quire
