#include "command/step/gather.hpp"

#include <cstring>
#include <stdexcept>

namespace muonrt::tool {

namespace {

/// Collective: every rank's bytes, in rank order, on rank 0; nothing elsewhere.
std::vector<std::vector<unsigned char>> collect(Comm& comm,
                                                const std::vector<unsigned char>& mine) {
  const int rank = comm.rank(), size = comm.size();
  const int64_t bytes = std::ssize(mine);
  std::vector<int64_t> all(static_cast<size_t>(size));
  comm.allgather(&bytes, all.data(), sizeof bytes);
  if (rank != 0) {
    std::vector<muonrt_message_t> sends;
    // Sent, never written to.
    if (bytes > 0) sends.push_back({0, 0, const_cast<unsigned char*>(mine.data()), bytes});
    comm.exchange(sends, {});
    return {};
  }
  std::vector<std::vector<unsigned char>> out(static_cast<size_t>(size));
  out[0] = mine;
  std::vector<muonrt_message_t> receives;
  for (int r = 1; r < size; ++r) {
    auto& other = out[static_cast<size_t>(r)];
    other.resize(static_cast<size_t>(all[static_cast<size_t>(r)]));
    if (!other.empty()) receives.push_back({r, 0, other.data(), std::ssize(other)});
  }
  comm.exchange({}, receives);
  return out;
}

/// A rank's message: its stretches, then their elements one after the other.
std::vector<unsigned char> packed(const std::vector<Stretch>& stretches, int64_t bytes,
                                  const void* local) {
  const int64_t count = std::ssize(stretches);
  int64_t elements = 0;
  for (const Stretch& s : stretches) elements += s.count;
  const size_t table = stretches.size() * sizeof(Stretch);
  std::vector<unsigned char> out(8 + table + static_cast<size_t>(elements * bytes));
  std::memcpy(out.data(), &count, 8);
  if (table > 0) std::memcpy(out.data() + 8, stretches.data(), table);
  unsigned char* to = out.data() + 8 + table;
  for (const Stretch& s : stretches) {
    const auto length = static_cast<size_t>(s.count * bytes);
    if (length == 0) continue;
    std::memcpy(to, static_cast<const unsigned char*>(local) + s.local * bytes, length);
    to += length;
  }
  return out;
}

/// Lays one rank's elements into the whole; those that are there already must be equal.
void place(std::vector<unsigned char>& whole, std::vector<bool>& placed,
           const std::vector<unsigned char>& message, int64_t bytes, const std::string& what,
           int rank) {
  int64_t count = 0;
  std::memcpy(&count, message.data(), 8);
  std::vector<Stretch> stretches(static_cast<size_t>(count));
  if (count > 0)
    std::memcpy(stretches.data(), message.data() + 8, stretches.size() * sizeof(Stretch));
  const unsigned char* from = message.data() + 8 + stretches.size() * sizeof(Stretch);
  const auto length = static_cast<size_t>(bytes);
  for (const Stretch& s : stretches) {
    for (int64_t i = 0; i < s.count; ++i, from += bytes) {
      const auto element = static_cast<size_t>(s.element + i);
      unsigned char* to = whole.data() + element * length;
      if (placed[element] && std::memcmp(to, from, length) != 0) {
        throw std::runtime_error(what + ": rank " + std::to_string(rank) +
                                 " holds another value of element " + std::to_string(element) +
                                 " than a rank before it (replicas differ)");
      }
      std::memcpy(to, from, length);
      placed[element] = true;
    }
  }
}

}  // namespace

std::vector<unsigned char> gather_elements(Comm& comm, int64_t elements, int64_t bytes,
                                           const std::vector<Stretch>& mine, const void* local,
                                           const std::string& what) {
  const auto messages = collect(comm, packed(mine, bytes, local));
  if (comm.rank() != 0) return {};
  std::vector<unsigned char> whole(static_cast<size_t>(elements * bytes));
  std::vector<bool> placed(static_cast<size_t>(elements), false);
  for (int r = 0; r < comm.size(); ++r) {
    place(whole, placed, messages[static_cast<size_t>(r)], bytes, what, r);
  }
  for (size_t i = 0; i < placed.size(); ++i) {
    if (!placed[i]) {
      throw std::runtime_error(what + ": no rank holds element " + std::to_string(i));
    }
  }
  return whole;
}

}  // namespace muonrt::tool
