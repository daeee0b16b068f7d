// One rank of a group, and what it knows of the others.
#pragma once
#include <atomic>
#include <cstdint>

namespace quire {

constexpr int MAX_LANES = 64, MAX_RANKS = 64;
constexpr int ROUND_BITS = 24;  // an announcement is attempt << ROUND_BITS | round

enum class GroupState : int32_t { working, left, failed, late, differs };

struct alignas(64) SharedWord {
  std::atomic<uint64_t> value, before;
  std::atomic<uint64_t> bytes[2];  // in the slots of the last two rounds
};

// What precedes the numbers of each message between two ranks.
struct Heading {
  uint64_t announced, bytes;
};

// Connections to the other ranks, for groups without shared memory. Python declares the same fields (`groups/structs.py`).
struct Peers {
  int32_t sockets[MAX_RANKS];  // that of the rank itself is not used
  Heading early[MAX_RANKS];    // of a message that belongs to a later attempt, and has been read before it; else 0
};

// One rank's handle of its group. Python declares the same fields in order, `lanes` as `threads` (`groups/structs.py`).
struct Member {
  SharedWord* shared;  // [0]: nonzero if the group has failed; then the announcements [lanes][size]; then the slots
  int32_t rank, size, lanes, state;  // state: GroupState of the current attempt
  int64_t slot_bytes, timeout_ms;
  int64_t spins;  // before a waiting thread yields its core; 0: it sleeps at once, since another rank needs the core
  uint64_t attempt;
  uint64_t rounds[MAX_LANES];
  Peers* peers;  // null: `shared` is shared by the ranks; else it is the rank's own, and lanes is 1

  SharedWord& announced(int lane, int of) const { return shared[1 + lane * size + of]; }
  char* slot(uint64_t round, int lane, int of) const {
    char* slots = reinterpret_cast<char*>(shared + 1 + lanes * size);
    return slots + (((round & 1) * lanes + lane) * size + of) * slot_bytes;
  }
  bool works() const { return __atomic_load_n(&state, __ATOMIC_RELAXED) == 0; }
  bool has_failed() const { return shared[0].value.load(std::memory_order_relaxed) != 0; }
  bool end(GroupState how) {
    __atomic_store_n(&state, static_cast<int32_t>(how), __ATOMIC_RELAXED);
    return false;
  }
};

}  // namespace quire
