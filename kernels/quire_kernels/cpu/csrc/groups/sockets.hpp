// Rounds of a group whose ranks do not share memory: each sends its slot to all others, and receives theirs.
//
// A rank that has left an attempt because of an error goes on with the next one. Its messages then have a later number
// than the others wait for, so these leave the attempt too; what they had sent for the earlier one is read and dropped.
#pragma once
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "groups/member.hpp"

namespace quire {

constexpr int POLL_MS = 50;  // interval at which a waiting rank looks whether the group has failed

// The messages to and from one other rank in one round.
class Transfer {
 public:
  Transfer(Member& member, int of, uint64_t wanted, const char* own, int64_t own_bytes, char* slot, int64_t bytes)
      : member(member), of(of), wanted(wanted), own(own), own_bytes(own_bytes), slot(slot), bytes(bytes),
        heading{wanted, static_cast<uint64_t>(own_bytes)}, found(member.peers->early[of]) {
    if (found.announced) member.peers->early[of] = {}, headed = sizeof found, look();
  }

  bool is_sent() const { return sent == SIZE + own_bytes; }
  bool is_done() const { return is_sent() && arrived; }
  int socket() const { return member.peers->sockets[of]; }
  short events() const { return (is_sent() ? 0 : POLLOUT) | (arrived ? 0 : POLLIN); }

  // Sends and receives what is possible without waiting; false if the connection is gone.
  bool advance() {
    while (!is_sent()) {
      const bool in_heading = sent < SIZE;
      const char* from = in_heading ? reinterpret_cast<const char*>(&heading) + sent : own + (sent - SIZE);
      const int64_t left = in_heading ? SIZE - sent : SIZE + own_bytes - sent;
      const ssize_t count = send(socket(), from, left, MSG_DONTWAIT | MSG_NOSIGNAL | (in_heading && own_bytes ? MSG_MORE : 0));
      if (count < 0 && !would_wait()) return false;
      if (count < 0) break;
      sent += count;
    }
    while (!arrived) {
      char dropped[4096];
      const bool in_heading = headed < SIZE;
      const int64_t left = in_heading ? SIZE - headed : static_cast<int64_t>(found.bytes) - received;
      char* to = in_heading ? reinterpret_cast<char*>(&found) + headed : is_wanted() ? slot + received : dropped;
      const int64_t most = in_heading || is_wanted() ? left : std::min<int64_t>(left, sizeof dropped);
      const ssize_t count = recv(socket(), to, most, MSG_DONTWAIT);
      if (count == 0 || (count < 0 && !would_wait())) return false;
      if (count < 0) break;
      (in_heading ? headed : received) += count;
      if (headed == SIZE && !look()) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t SIZE = sizeof(Heading);

  Member& member;
  const int of;
  const uint64_t wanted;
  const char* own;
  const int64_t own_bytes;
  char* slot;
  const int64_t bytes;
  Heading heading, found;
  int64_t sent = 0, headed = 0, received = 0;
  bool arrived = false;

  bool is_wanted() const { return found.announced == wanted; }
  static bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

  // After the heading and perhaps more of a message; false if it is not what this rank computes.
  bool look() {
    if (found.announced > wanted) {
      member.peers->early[of] = found, arrived = true;
      member.end(GroupState::left);
      return true;
    }
    if (is_wanted() && static_cast<int64_t>(found.bytes) != bytes) return member.end(GroupState::differs);
    if (received < static_cast<int64_t>(found.bytes)) return true;
    arrived = is_wanted();
    headed = received = 0;
    return true;
  }
};

// One round: `bytes(of)` is how much the slot of a rank holds. False if a rank has left the attempt, or the group fails.
template <class Bytes>
bool exchange(Member& member, uint64_t wanted, uint64_t round, Bytes&& bytes) {
  using Clock = std::chrono::steady_clock;
  std::vector<Transfer> transfers;
  transfers.reserve(member.size);
  const char* own = member.slot(round, 0, member.rank);
  for (int of = 0; of < member.size; of++)
    if (of != member.rank)
      transfers.emplace_back(member, of, wanted, own, bytes(member.rank), member.slot(round, 0, of), bytes(of));
  const auto began = Clock::now();
  for (;;) {
    pollfd waiting[MAX_RANKS];
    int count = 0;
    for (Transfer& transfer : transfers) {
      if (transfer.is_done()) continue;
      if (!transfer.advance()) return member.works() && member.end(GroupState::failed);
      if (!transfer.is_done()) waiting[count++] = {transfer.socket(), transfer.events(), 0};
    }
    if (!count) return member.works();
    if (member.has_failed()) return member.end(GroupState::failed);
    if (Clock::now() - began > std::chrono::milliseconds(member.timeout_ms)) return member.end(GroupState::late);
    poll(waiting, count, POLL_MS);
  }
}

}  // namespace quire
